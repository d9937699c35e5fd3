# SPDX-License-Identifier: Apache-2.0
"""The arguments that all builders share.

`build_fed_avg` states them. The other builders take them by `with_arguments_of`, which shows them
in their signatures. The types below show them to type checkers.
"""

from typing import TYPE_CHECKING, TypedDict

import tensorflow_federated as tff

from fednar_tff.algorithms import client_data, schedules, server_step
from fednar_tff.signatures import with_arguments_of as with_arguments_of

if TYPE_CHECKING:
  from typing_extensions import Unpack as Unpack


class _RequiredArguments(TypedDict):
  client_optimizer_fn: tff.learning.optimizers.Optimizer


class ClientArguments(_RequiredArguments, total=False):
  """The arguments of `build_fed_avg` that say how clients train."""

  learning_rate_fn: schedules.ScheduleFn | None
  weight_decay_fn: schedules.ScheduleFn | None
  metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None
  loop_implementation: client_data.LoopImplementation
  jit_compile: bool


class UnweightedArguments(ClientArguments, total=False):
  """These, and what says how updates are averaged if all clients count alike."""

  model_aggregator: server_step.ModelAggregator | None


class MeanArguments(UnweightedArguments, total=False):
  """These, and what says how much each client counts."""

  client_weighting: client_data.ClientWeighting


class FedAvgArguments(MeanArguments, total=False):
  """All arguments of `build_fed_avg` but the model."""

  server_optimizer_fn: tff.learning.optimizers.Optimizer | None
