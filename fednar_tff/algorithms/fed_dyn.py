"""FedDyn: each client's loss is bent so that all clients agree on the joint minimum.

Federated Learning Based on Dynamic Regularization
    Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough,
    Venkatesh Saligrama. ICLR 2021.
    https://arxiv.org/abs/2111.04263, Algorithm 1.
"""

import collections
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import client_work, local_training, scaffold, server_step


def build_fed_dyn(
  model_fn: local_training.ModelFn,
  *,
  num_clients: int,
  regularization_strength: float,
  model_aggregator: server_step.ModelAggregator | None = None,
  **arguments: Any,
) -> scaffold.ScaffoldProcess:
  """Returns FedDyn: FedAvg whose clients step along `g - h_i + a (y - x)`.

  With server weights `x`, `a` (`regularization_strength`), a client's weights `y` in its local
  steps and update `D_i = x - y_i` after them, the mean `D` of the updates of the clients `S` of a
  round, and `N` (`num_clients`), a round adds to FedAvg

  ```
  g <- g - h_i + a (y - x)       in each local step, inside the norm that is clipped
  h_i' = h_i + a D_i             for the clients of the round; h_i = 0 at first
  h <- h + a D |S| / N           the mean of the h_i of all clients
  x <- x - D - h / a
  ```

  All clients count alike. A client whose update is not finite keeps its `h_i`. The states of the
  clients, `h_i`, enter and leave `next` as those of `build_scaffold` do; the caller keeps them.

  Args:
    model_fn: As in `build_fed_avg`.
    num_clients: The number of all clients, those of any round and those that are never sampled.
    regularization_strength: `a`, a positive float.
    model_aggregator: As in `build_fed_avg`. Nothing else is taken from a client's update, so what
      this makes private stays so.
    **arguments: The other arguments of `build_fed_avg`, but not `server_optimizer_fn` and
      `client_weighting`.

  Returns:
    A process as that of `build_scaffold`; in its state, `control` is `h`.

  Raises:
    ValueError: If a number is out of range.
  """
  a = regularization_strength
  if not 0.0 < a < math.inf:
    raise ValueError(f'`regularization_strength` must be a positive number, found {a!r}.')
  # Its state is SCAFFOLD's, and so is all but the round itself.
  base = scaffold.build_scaffold(
    model_fn, num_clients=num_clients, model_aggregator=model_aggregator, **arguments
  )
  uniform = tff.learning.ClientWeighting.UNIFORM
  client_side = client_work.build_client_side(model_fn, client_weighting=uniform, **arguments)
  schedule, weights_type = client_side.schedule, client_side.weights_type
  h_type, hparams_type = weights_type.trainable, schedule.get_hparams.type_signature.result
  aggregator = server_step.create_aggregator(model_aggregator, h_type, uniform)
  finalizer = server_step.build_finalizer(None, weights_type, h_type)

  @tff.tensorflow.computation(hparams_type, weights_type, h_type, client_side.data_type)
  def client_update(hparams, weights, client_h, dataset):
    def correct(gradient, client_weights, server_weights, client_h):
      leaves = zip(gradient, client_h, client_weights, server_weights)
      return [None if g is None else g - h_i + a * (y - x) for g, h_i, y, x in leaves]

    constants = [tf.nest.flatten(client_h)]
    result = client_side.train_fn(hparams, weights, dataset, correct, constants)
    return result, tf.nest.map_structure(lambda h_i, d: h_i + a * d, client_h, result.update)

  @tff.tensorflow.computation(h_type, h_type, np.float32)
  def server_update(h, mean_update, num_finite):
    def next_h(h, d):  # The mean of no finite update is NaN.
      return tf.where(num_finite > 0.0, h + a * tf.cast(num_finite / num_clients, h.dtype) * d, h)

    h = tf.nest.map_structure(next_h, h, mean_update)
    return h, tf.nest.map_structure(lambda h, d: d + h / a, h, mean_update)

  @tff.federated_computation(base.next.type_signature.parameter)
  def next_fn(state, client_states, client_data):
    work = tff.federated_map(schedule.advance, state.client_work)
    sent = map(tff.federated_broadcast, (work.hparams, state.global_model_weights))
    result, client_states = tff.federated_map(client_update, (*sent, client_states, client_data))
    mean = aggregator.next(state.aggregator, result.update, result.update_weight)
    num_finite = tff.federated_sum(result.update_weight)
    h, step = tff.federated_map(server_update, (state.control, mean.result, num_finite))
    server = finalizer.next(state.finalizer, state.global_model_weights, step)
    metrics = collections.OrderedDict(
      client_work=client_work.measurements(client_side, result.metrics, work.hparams),
      aggregator=mean.measurements,
      finalizer=server.measurements,
    )
    state = (server.result, work, mean.state, server.state, h, state.control_aggregator)
    state = tff.federated_zip(scaffold.ScaffoldState(*state))
    return scaffold.ScaffoldOutput(state, client_states, tff.federated_zip(metrics))

  accessors = (base.get_model_weights, base.set_model_weights, base.get_hparams, base.set_hparams)
  return scaffold.ScaffoldProcess(base.initialize, next_fn, *accessors)
