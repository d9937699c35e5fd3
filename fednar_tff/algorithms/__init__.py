"""One round: federated algorithms as TFF processes."""

from fednar_tff.algorithms.fed_avg import build_fed_avg as build_fed_avg
from fednar_tff.algorithms.local_training import PACKED as PACKED
from fednar_tff.algorithms.local_training import packed_spec as packed_spec
from fednar_tff.algorithms.schedules import exponential_decay as exponential_decay
