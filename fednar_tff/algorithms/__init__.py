# SPDX-License-Identifier: Apache-2.0
"""One round: federated algorithms as TFF processes."""

from fednar_tff.algorithms.centralized import build_centralized as build_centralized
from fednar_tff.algorithms.client_data import DATA_SIZE as DATA_SIZE
from fednar_tff.algorithms.client_data import PACKED as PACKED
from fednar_tff.algorithms.client_data import packed_spec as packed_spec
from fednar_tff.algorithms.client_data import takes_data_size as takes_data_size
from fednar_tff.algorithms.client_data import takes_packed_clients as takes_packed_clients
from fednar_tff.algorithms.client_work import ClientSide as ClientSide
from fednar_tff.algorithms.client_work import build_client_side as build_client_side
from fednar_tff.algorithms.fed_adam import build_fed_adam as build_fed_adam
from fednar_tff.algorithms.fed_adam import build_reference_adam as build_reference_adam
from fednar_tff.algorithms.fed_avg import build_corrected_fed_avg as build_corrected_fed_avg
from fednar_tff.algorithms.fed_avg import build_fed_avg as build_fed_avg
from fednar_tff.algorithms.fed_avgm import build_fed_avgm as build_fed_avgm
from fednar_tff.algorithms.fed_dyn import build_fed_dyn as build_fed_dyn
from fednar_tff.algorithms.fed_exp import build_fed_exp as build_fed_exp
from fednar_tff.algorithms.fed_prox import build_fed_prox as build_fed_prox
from fednar_tff.algorithms.local_models import TRAINING_METRICS as TRAINING_METRICS
from fednar_tff.algorithms.local_training import LocalResult as LocalResult
from fednar_tff.algorithms.privacy import nar_update_bound as nar_update_bound
from fednar_tff.algorithms.registry import ALGORITHMS as ALGORITHMS
from fednar_tff.algorithms.registry import get_builder as get_builder
from fednar_tff.algorithms.scaffold import ScaffoldProcess as ScaffoldProcess
from fednar_tff.algorithms.scaffold import build_scaffold as build_scaffold
from fednar_tff.algorithms.schedules import constant as constant
from fednar_tff.algorithms.schedules import cosine_decay as cosine_decay
from fednar_tff.algorithms.schedules import exponential_decay as exponential_decay
from fednar_tff.algorithms.schedules import linear_warm_up as linear_warm_up
from fednar_tff.algorithms.schedules import step_decay as step_decay
from fednar_tff.algorithms.server_step import build_finalizer as build_finalizer
from fednar_tff.algorithms.server_step import create_aggregator as create_aggregator
from fednar_tff.algorithms.stateful import StatefulProcess as StatefulProcess
from fednar_tff.algorithms.stateful import compose_stateful as compose_stateful
from fednar_tff.algorithms.stateful import has_client_states as has_client_states
