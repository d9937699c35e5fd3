# SPDX-License-Identifier: Apache-2.0
"""Federated averaging, and the composition that the other algorithms vary.

Communication-Efficient Learning of Deep Networks from Decentralized Data
    H. Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Aguera y Arcas.
    AISTATS 2017. https://arxiv.org/abs/1602.05629, Algorithm 1.
"""

from typing import NamedTuple

import tensorflow_federated as tff

from fednar_tff.algorithms import (
  arguments,
  client_data,
  client_work,
  local_training,
  schedules,
  server_step,
)


class Parts(NamedTuple):
  """What a round is composed of.

  Attributes:
    client_side: What the clients do.
    aggregator: Makes one update of all updates.
    finalizer: The server's step along it.
  """

  client_side: client_work.ClientSide
  aggregator: tff.templates.AggregationProcess
  finalizer: tff.learning.templates.FinalizerProcess


def compose(
  client_side: client_work.ClientSide,
  aggregator: tff.templates.AggregationProcess,
  finalizer: tff.learning.templates.FinalizerProcess,
  correction_fn: local_training.CorrectionFn | None = None,
) -> tff.learning.templates.LearningProcess:
  """Returns the learning process of its parts."""
  return tff.learning.templates.compose_learning_process(
    client_side.initial_weights_fn,
    tff.learning.templates.build_broadcast_process(client_side.weights_type),
    client_work.build_client_work(client_side, correction_fn),
    aggregator,
    finalizer,
  )


@arguments.with_arguments_of(client_work.build_client_side)
def build_parts(
  model_fn: local_training.ModelFn,
  *,
  server_optimizer_fn: tff.learning.optimizers.Optimizer | None = None,
  client_weighting: client_data.ClientWeighting = tff.learning.ClientWeighting.UNIFORM,
  model_aggregator: server_step.ModelAggregator | None = None,
  **client_arguments: 'arguments.Unpack[arguments.ClientArguments]',
) -> Parts:
  """Returns the parts of `build_fed_avg`, which has the same arguments."""
  client_side = client_work.build_client_side(
    model_fn, client_weighting=client_weighting, **client_arguments
  )
  weights_type = client_side.weights_type
  aggregator = server_step.create_aggregator(
    model_aggregator, weights_type.trainable, client_weighting
  )
  mean_type = aggregator.next.type_signature.result.result.member
  finalizer = server_step.build_finalizer(server_optimizer_fn, weights_type, mean_type)
  return Parts(client_side, aggregator, finalizer)


@arguments.with_arguments_of(build_parts)
def build_corrected_fed_avg(
  model_fn: local_training.ModelFn,
  *,
  correction_fn: local_training.CorrectionFn | None,
  **fed_avg_arguments: 'arguments.Unpack[arguments.FedAvgArguments]',
) -> tff.learning.templates.LearningProcess:
  """Returns `build_fed_avg` with each local gradient changed by `correction_fn`."""
  return compose(*build_parts(model_fn, **fed_avg_arguments), correction_fn)


def build_fed_avg(
  model_fn: local_training.ModelFn,
  *,
  client_optimizer_fn: tff.learning.optimizers.Optimizer,
  server_optimizer_fn: tff.learning.optimizers.Optimizer | None = None,
  learning_rate_fn: schedules.ScheduleFn | None = None,
  weight_decay_fn: schedules.ScheduleFn | None = None,
  client_weighting: client_data.ClientWeighting = tff.learning.ClientWeighting.UNIFORM,
  model_aggregator: server_step.ModelAggregator | None = None,
  metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
  loop_implementation: client_data.LoopImplementation = (
    tff.learning.LoopImplementation.DATASET_ITERATOR
  ),
  jit_compile: bool = False,
) -> tff.learning.templates.LearningProcess:
  """Returns federated averaging; with `client_optimizer_fn=build_nar(...)`, it is FedNAR.

  With server weights `x`, client weights `y_i` after local training from `x`, client weights `p_i`
  in the mean and the server's learning rate `eta` (1 unless a server optimizer is given), a round
  is

  ```
  D_i = x - y_i
  x <- x - eta sum_i p_i D_i / sum_i p_i
  ```

  A client whose update is not finite contributes nothing, neither to the model nor to the metrics,
  and is counted; if no client contributes, model and server optimizer stay as they were. A round's
  metrics are

  *   `client_work`: `train`, with the model's metrics, `clipped_steps` and `total_steps`, both
      summed over clients, `mean_clipped_norm` (of the clipped steps, before clipping) and
      `num_non_finite_clients`; `learning_rate` and `weight_decay` of the round. For an optimizer
      that counts no clipping, its metrics are 0; for one without such a hparam, the learning rate
      is NaN and the weight decay 0;
  *   `finalizer`: `server_step_size`, 0 if the model stayed, and `model_norm`, that of the
      trainable weights after the round;
  *   `distributor` and `aggregator`: those of TFF.

  Args:
    model_fn: A function without arguments that returns a new `tff.learning.models.VariableModel`,
      or a `tff.learning.models.FunctionalModel`.
    client_optimizer_fn: A `tff.learning.optimizers.Optimizer`. Its state starts anew on each client
      in each round.
    server_optimizer_fn: A `tff.learning.optimizers.Optimizer` that descends along the mean update;
      None means gradient descent with learning rate 1.
    learning_rate_fn: The learning rate as a function of the round, which is an integer tensor and
      starts at 0; see `exponential_decay`. It overrides the client optimizer's hparam; None leaves
      the hparam constant.
    weight_decay_fn: The same for the weight decay.
    client_weighting: How clients are weighted in the mean: a `tff.learning.ClientWeighting`,
      uniform as in the paper or, with `NUM_EXAMPLES`, by the examples that a client processed in
      the round; or `algorithms.DATA_SIZE`, by the examples that it holds, as in the released code.
      Only packed clients say those (see `packed_spec`); of a dataset of batches, `DATA_SIZE` counts
      what was processed, too.
    model_aggregator: A weighted or unweighted factory of `tff.aggregators`, as from
      `tff.learning.dp_aggregator`; None means the mean. An unweighted one counts a client that is
      not finite as one with an update of zero.
    metrics_aggregator: As in TFF, `tff.learning.metrics.sum_then_finalize` if None. It also
      aggregates the metrics that are added here.
    loop_implementation: A `tff.learning.LoopImplementation`, or `PACKED` for packed clients, which
      is the fastest.
    jit_compile: Whether XLA compiles the local step, once for each size of a batch. It needs a
      `FunctionalModel` and a loop that is not `DATASET_REDUCE`. On a CPU it is slower; dropout
      draws other numbers.

  Raises:
    TypeError: If an argument is of the wrong type.
    ValueError: If a hparam that the client optimizer does not have is scheduled, an unweighted
      aggregator is to weight, or a step is to be compiled that cannot be.
  """
  return build_corrected_fed_avg(
    model_fn,
    correction_fn=None,
    client_optimizer_fn=client_optimizer_fn,
    server_optimizer_fn=server_optimizer_fn,
    learning_rate_fn=learning_rate_fn,
    weight_decay_fn=weight_decay_fn,
    client_weighting=client_weighting,
    model_aggregator=model_aggregator,
    metrics_aggregator=metrics_aggregator,
    loop_implementation=loop_implementation,
    jit_compile=jit_compile,
  )
