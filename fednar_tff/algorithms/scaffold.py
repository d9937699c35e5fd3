# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: control variates correct each local gradient for the client's drift.

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
    Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank Reddi, Sebastian Stich,
    Ananda Theertha Suresh. ICML 2020.
    https://arxiv.org/abs/1910.06378, Algorithm 1 with option II.
"""

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import arguments, client_data, fed_avg, local_training, stateful
from fednar_tff.algorithms.structures import check_positive_integer

_LEARNING_RATE_KEY = tff.learning.optimizers.LEARNING_RATE_KEY
# Its name from before other algorithms had clients with states, too.
ScaffoldProcess = stateful.StatefulProcess


@arguments.with_arguments_of(fed_avg.build_fed_avg)
def build_scaffold(
  model_fn: local_training.ModelFn,
  *,
  num_clients: int,
  control_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  total_examples: int | None = None,
  **fed_avg_arguments: 'arguments.Unpack[arguments.FedAvgArguments]',
) -> stateful.StatefulProcess:
  """Returns SCAFFOLD: FedAvg whose clients step along `g + c - c_i`.

  The server has a control variate `c` and each of the `N` (`num_clients`) clients one, `c_i`; all
  are 0 at first. A client of the round takes `K_i` steps with learning rate `l`, from the server's
  weights `x` to `y_i`, so its update is `D_i = x - y_i`. A round adds to FedAvg

  ```
  g <- g + c - c_i                     in each local step, inside the norm that is clipped
  c_i' = c_i - c + D_i / (K_i l)       for the clients of the round
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
  check_positive_integer('num_clients', num_clients)
  if total_examples is not None:
    check_positive_integer('total_examples', total_examples)
    weighting = fed_avg_arguments.get('client_weighting')
    if weighting is not client_data.DATA_SIZE:
      raise ValueError(
        '`client_weighting` must be `algorithms.DATA_SIZE` if `total_examples` is given, '
        f'found {weighting!r}.'
      )
  if not isinstance(control_aggregator, (type(None), tff.aggregators.UnweightedAggregationFactory)):
    raise TypeError(
      '`control_aggregator` must be an unweighted factory of `tff.aggregators`, '
      f'found {control_aggregator!r}.'
    )
  parts = fed_avg.build_parts(model_fn, **fed_avg_arguments)
  client_side = parts.client_side
  hparams = tff.structure.name_list(client_side.schedule.get_hparams.type_signature.result)
  if _LEARNING_RATE_KEY not in hparams:
    raise ValueError(
      f'`client_optimizer_fn` must have the hparam `{_LEARNING_RATE_KEY}`, found {hparams}.'
    )

  def client_fn(hparams, x, c, c_i, dataset):
    drift = tf.nest.map_structure(tf.subtract, c, c_i)

    def add_drift(gradient, y, x, drift):
      del y, x
      return [None if g is None else g + d for g, d in zip(gradient, drift)]

    result = client_side.train_fn(hparams, x, dataset, add_drift, [tf.nest.flatten(drift)])
    k_l = tf.cast(result.num_steps, tf.float32) * tf.cast(hparams[_LEARNING_RATE_KEY], tf.float32)
    change = tf.cond(  # c_i' - c_i
      result.is_finite & (k_l > 0.0),
      lambda: tf.nest.map_structure(lambda d, c: d / tf.cast(k_l, d.dtype) - c, result.update, c),
      lambda: tf.nest.map_structure(tf.zeros_like, c),
    )
    c_i = tf.nest.map_structure(tf.add, c_i, change)
    if total_examples is not None:
      change = tf.nest.map_structure(lambda d: d * tf.cast(result.update_weight, d.dtype), change)
    return result, c_i, change

  def server_fn(c, mean_update, sum_of_changes):
    total = num_clients if total_examples is None else total_examples
    c = tf.nest.map_structure(lambda c, d: c + d / tf.cast(total, d.dtype), c, sum_of_changes)
    return c, mean_update

  return stateful.compose_stateful(
    *parts, client_fn=client_fn, server_fn=server_fn, message_aggregator=control_aggregator
  )
