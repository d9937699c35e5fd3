# SPDX-License-Identifier: Apache-2.0
"""FedDyn: each client's loss is bent so that all clients agree on the joint minimum.

Federated Learning Based on Dynamic Regularization
    Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough,
    Venkatesh Saligrama. ICLR 2021.
    https://arxiv.org/abs/2111.04263, Algorithm 1.
"""

import math

import tensorflow as tf

from fednar_tff.algorithms import arguments, fed_avg, local_training, stateful, structures


@arguments.with_arguments_of(
  fed_avg.build_fed_avg, without=('server_optimizer_fn', 'client_weighting')
)
def build_fed_dyn(
  model_fn: local_training.ModelFn,
  *,
  num_clients: int,
  regularization_strength: float,
  **fed_avg_arguments: 'arguments.Unpack[arguments.UnweightedArguments]',
) -> stateful.StatefulProcess:
  """Returns FedDyn: FedAvg whose clients step along `g - h_i + a (y - x)`.

  `a` is `regularization_strength`, and `N` is `num_clients`. A client's weights `y` go from the
  server's `x` to `y_i`, so its update is `D_i = x - y_i`. `D` is the mean of the updates of the
  clients `S` of a round. A round adds to FedAvg

  ```
  g <- g - h_i + a (y - x)       in each local step, inside the norm that is clipped
  h_i' = h_i + a D_i             for the clients of the round; h_i = 0 at first
  h <- h + a D |S| / N           the mean of the h_i of all clients
  x <- x - D - h / a
  ```

  All clients count alike. A client whose update is not finite keeps its `h_i`. The states of the
  clients, `h_i`, enter and leave `next`, and the caller keeps them; see `StatefulProcess`. In its
  state, `control` is `h`. Beside the mean of the updates, the server learns only how many were
  finite, so what `model_aggregator` makes private stays so.

  Args:
    model_fn: As in `build_fed_avg`.
    num_clients: The number of all clients, those of any round and those that are never sampled.
    regularization_strength: `a`, a positive float.
    **fed_avg_arguments: Those of `build_fed_avg`, but `server_optimizer_fn` and `client_weighting`.

  Raises:
    ValueError: If a number is out of range.
  """
  a = regularization_strength
  if not 0.0 < a < math.inf:
    raise ValueError(f'`regularization_strength` must be a positive number, found {a!r}.')
  structures.check_positive_integer('num_clients', num_clients)
  parts = fed_avg.build_parts(model_fn, **fed_avg_arguments)
  train_fn = parts.client_side.train_fn

  def client_fn(hparams, weights, h, h_i, dataset):
    del h  # Only the server needs it.

    def correct(gradient, weights, server_weights, h_i):
      leaves = zip(gradient, h_i, weights, server_weights)
      return [None if g is None else g - h + a * (y - x) for g, h, y, x in leaves]

    result = train_fn(hparams, weights, dataset, correct, [tf.nest.flatten(h_i)])
    h_i = tf.nest.map_structure(lambda h, d: h + a * d, h_i, result.update)
    return result, h_i, result.update_weight  # Which is 1 if the update is finite, and 0 if not.

  def server_fn(h, mean_update, num_finite):
    def next_h(h, d):  # The mean of no finite update is NaN.
      return tf.where(num_finite > 0.0, h + a * tf.cast(num_finite / num_clients, h.dtype) * d, h)

    h = tf.nest.map_structure(next_h, h, mean_update)
    return h, tf.nest.map_structure(lambda h, d: d + h / a, h, mean_update)

  return stateful.compose_stateful(*parts, client_fn=client_fn, server_fn=server_fn)
