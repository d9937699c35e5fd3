# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: control variates correct each local gradient for the client's drift.

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
    Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank Reddi, Sebastian Stich,
    Ananda Theertha Suresh. ICML 2020.
    https://arxiv.org/abs/1910.06378, Algorithm 1 with option II.
"""

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import (
  arguments,
  client_data,
  client_work,
  fed_avg,
  local_training,
  server_step,
  stateful,
  structures,
)

_LEARNING_RATE_KEY = tff.learning.optimizers.LEARNING_RATE_KEY
# Their names from before other algorithms had clients with states, too.
ScaffoldProcess = stateful.StatefulProcess
ScaffoldState = stateful.StatefulState
ScaffoldOutput = stateful.StatefulOutput


@arguments.with_arguments_of(fed_avg.build_fed_avg)
def build_scaffold(
  model_fn: local_training.ModelFn,
  *,
  num_clients: int,
  server_optimizer_fn: tff.learning.optimizers.Optimizer | None = None,
  client_weighting: client_data.ClientWeighting = tff.learning.ClientWeighting.UNIFORM,
  model_aggregator: server_step.ModelAggregator | None = None,
  control_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  total_examples: int | None = None,
  **fed_avg_arguments: 'arguments.Unpack[arguments.ClientArguments]',
) -> stateful.StatefulProcess:
  """Returns SCAFFOLD: FedAvg whose clients step along `g + c - c_i`.

  With server weights `x`, control variates `c` of the server and `c_i` of the clients (0 at first),
  learning rate `l` of the round, a client's weights `y_i` after its `K_i` local steps, and `N`
  (`num_clients`), a round adds to FedAvg

  ```
  g <- g + c - c_i                         in each local step, inside the norm that is clipped
  c_i' = c_i - c + (x - y_i) / (K_i l)     for the clients of the round
  c <- c + sum_i (c_i' - c_i) / N
  ```

  so that `c` is the mean of the control variates of all `N` clients. That sum is not weighted,
  whatever `client_weighting` is, unless `total_examples` is given: then a client that holds `n_i`
  of them counts `n_i / total_examples` in place of `1 / N`, as in the released code. A client whose
  update is not finite, or that took no step, keeps its `c_i`.

  The clients' states enter and leave `next`, and the caller keeps them; see `StatefulProcess`.

  Args:
    model_fn: As in `build_fed_avg`.
    num_clients: The number of all clients, those of any round and those that are never sampled.
    server_optimizer_fn: As in `build_fed_avg`.
    client_weighting: As in `build_fed_avg`.
    model_aggregator: As in `build_fed_avg`.
    control_aggregator: A factory that sums `c_i' - c_i`; None means a plain sum. These tell as much
      as the updates: where those are aggregated privately or securely, pass a factory that does the
      same here.
    total_examples: The number of examples that all clients hold together; only with
      `client_weighting=algorithms.DATA_SIZE`.
    **fed_avg_arguments: The other arguments of `build_fed_avg`.

  Returns:
    A `StatefulProcess`; in its state, `control` is `c`.

  Raises:
    TypeError: If an aggregator is of the wrong type.
    ValueError: If a number is not positive, `total_examples` is given without `DATA_SIZE`, or the
      client optimizer has no hparam `learning_rate`.
  """
  structures.check_positive_integer('num_clients', num_clients)
  if total_examples is not None:
    structures.check_positive_integer('total_examples', total_examples)
    if client_weighting is not client_data.DATA_SIZE:
      raise ValueError(
        '`client_weighting` must be `algorithms.DATA_SIZE` if `total_examples` is given, '
        f'found {client_weighting!r}.'
      )
  if control_aggregator is not None and not isinstance(
    control_aggregator, tff.aggregators.UnweightedAggregationFactory
  ):
    raise TypeError(
      '`control_aggregator` must be an unweighted factory of `tff.aggregators`, '
      f'found {control_aggregator!r}.'
    )
  client_side = client_work.build_client_side(
    model_fn, client_weighting=client_weighting, **fed_avg_arguments
  )
  hparams = tff.structure.name_list(client_side.schedule.get_hparams.type_signature.result)
  if _LEARNING_RATE_KEY not in hparams:
    raise ValueError(
      f'`client_optimizer_fn` must have the hparam `{_LEARNING_RATE_KEY}`, found {hparams}.'
    )
  weights_type = client_side.weights_type
  aggregator = server_step.create_aggregator(
    model_aggregator, weights_type.trainable, client_weighting
  )
  finalizer = server_step.build_finalizer(
    server_optimizer_fn, weights_type, aggregator.next.type_signature.result.result.member
  )

  def client_fn(hparams, weights, c, c_i, dataset):
    drift = [a - b for a, b in zip(*map(tf.nest.flatten, (c, c_i)))]

    def subtract_drift(gradient, weights, server_weights, drift):
      del weights, server_weights
      return [None if g is None else g + d for g, d in zip(gradient, drift)]

    result = client_side.train_fn(hparams, weights, dataset, subtract_drift, [drift])
    distance = tf.cast(result.num_steps, tf.float32) * tf.cast(
      hparams[_LEARNING_RATE_KEY], tf.float32
    )
    update, server_control = map(tf.nest.flatten, (result.update, c))
    change = tf.cond(
      result.is_finite & (distance > 0.0),
      lambda: [u / tf.cast(distance, u.dtype) - x for u, x in zip(update, server_control)],
      lambda: [tf.zeros_like(x) for x in server_control],
    )
    change = tf.nest.pack_sequence_as(c_i, change)
    c_i = tf.nest.map_structure(tf.add, c_i, change)
    if total_examples is not None:
      change = tf.nest.map_structure(lambda d: d * tf.cast(result.update_weight, d.dtype), change)
    return result, c_i, change

  def server_fn(c, mean_update, sum_of_changes):
    total = num_clients if total_examples is None else total_examples
    c = tf.nest.map_structure(lambda x, d: x + d / tf.cast(total, d.dtype), c, sum_of_changes)
    return c, mean_update

  return stateful.compose_stateful(
    client_side,
    aggregator,
    finalizer,
    shared_type=weights_type.trainable,
    client_fn=client_fn,
    server_fn=server_fn,
    message_aggregator=control_aggregator,
  )
