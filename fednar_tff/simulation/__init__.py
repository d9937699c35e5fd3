# SPDX-License-Identifier: Apache-2.0
"""Many rounds: sampling, evaluation, checkpoints, metrics and client states."""

from fednar_tff.simulation.callbacks import Callback as Callback
from fednar_tff.simulation.callbacks import CallbackError as CallbackError
from fednar_tff.simulation.callbacks import EarlyStopping as EarlyStopping
from fednar_tff.simulation.client_evaluation import ClientSummary as ClientSummary
from fednar_tff.simulation.client_evaluation import Personalization as Personalization
from fednar_tff.simulation.client_evaluation import (
  build_client_evaluation as build_client_evaluation,
)
from fednar_tff.simulation.client_evaluation import build_personalization as build_personalization
from fednar_tff.simulation.client_evaluation import build_prediction as build_prediction
from fednar_tff.simulation.client_evaluation import confusion_matrix as confusion_matrix
from fednar_tff.simulation.client_evaluation import summarize_clients as summarize_clients
from fednar_tff.simulation.client_states import ClientStates as ClientStates
from fednar_tff.simulation.data_source import build_data_source as build_data_source
from fednar_tff.simulation.evaluation import build_evaluation as build_evaluation
from fednar_tff.simulation.plain_process import keep_client_states as keep_client_states
from fednar_tff.simulation.progress import DivergedError as DivergedError
from fednar_tff.simulation.progress import Progress as Progress
from fednar_tff.simulation.rounds import Run as Run
from fednar_tff.simulation.run import run as run
from fednar_tff.simulation.seeds import Seeds as Seeds
from fednar_tff.simulation.seeds import derive_seeds as derive_seeds
from fednar_tff.simulation.seeds import sample_clients as sample_clients
from fednar_tff.simulation.storage import RunDirectoryError as RunDirectoryError
from fednar_tff.simulation.storage import check_output_dir as check_output_dir
from fednar_tff.simulation.trackers import MLflowTracker as MLflowTracker
from fednar_tff.simulation.trackers import TrackerError as TrackerError
from fednar_tff.simulation.trackers import WandbTracker as WandbTracker
from fednar_tff.simulation.trained_model import EXPORT_FORMATS as EXPORT_FORMATS
from fednar_tff.simulation.trained_model import TrainedModel as TrainedModel
from fednar_tff.simulation.trained_model import export_model as export_model
from fednar_tff.simulation.trained_model import load_model as load_model
