"""SCAFFOLD: control variates correct each local gradient for the client's drift.

SCAFFOLD: Stochastic Controlled Averaging for Federated Learning
    Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank Reddi, Sebastian Stich,
    Ananda Theertha Suresh. ICML 2020.
    https://arxiv.org/abs/1910.06378, Algorithm 1 with option II.
"""

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import client_work, local_training, server_step, structures

_LEARNING_RATE_KEY = tff.learning.optimizers.LEARNING_RATE_KEY


class ScaffoldState(NamedTuple):
  """The server's state.

  Attributes:
    global_model_weights: The model.
    client_work: The number of the next round, and the client optimizer's hparams.
    aggregator: The state of the aggregator of updates.
    finalizer: The state of the server optimizer.
    control: The control variate `c`, in the structure of the trainable weights.
    control_aggregator: The state of the aggregator of control variates.
  """

  global_model_weights: Any
  client_work: Any
  aggregator: Any
  finalizer: Any
  control: Any
  control_aggregator: Any


class ScaffoldOutput(NamedTuple):
  """What `next` of SCAFFOLD returns.

  Attributes:
    state: The server's new state.
    client_states: The clients' new states, in the order in which they came.
    metrics: The metrics of the round, as those of `build_fed_avg`, but without `distributor`.
  """

  state: Any
  client_states: Any
  metrics: Any


class ScaffoldProcess(tff.templates.IterativeProcess):
  """A learning process whose clients carry a state, see `build_scaffold`."""

  def __init__(
    self, initialize_fn, next_fn, get_model_weights, set_model_weights, get_hparams, set_hparams
  ):
    super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)
    self._get_model_weights = get_model_weights
    self._set_model_weights = set_model_weights
    self._get_hparams = get_hparams
    self._set_hparams = set_hparams

  def initial_client_state(self) -> Any:
    """Returns the state of a client that was never seen: NumPy zeros as its control variate."""
    client_state_type = self.next.type_signature.parameter[1].member
    return tf.nest.map_structure(
      lambda s: np.zeros(s.shape, s.dtype.as_numpy_dtype),
      tff.types.type_to_tf_tensor_specs(client_state_type),
    )

  @property
  def get_model_weights(self) -> tff.Computation:
    """A computation that takes the server's state and returns the model weights."""
    return self._get_model_weights

  @property
  def set_model_weights(self) -> tff.Computation:
    """A computation that takes the server's state and weights and returns a state with these."""
    return self._set_model_weights

  @property
  def get_hparams(self) -> tff.Computation:
    """A computation that takes the server's state and returns the hparams of both optimizers."""
    return self._get_hparams

  @property
  def set_hparams(self) -> tff.Computation:
    """A computation that takes the server's state and hparams and returns a state with these."""
    return self._set_hparams


def build_scaffold(
  model_fn: local_training.ModelFn,
  *,
  num_clients: int,
  server_optimizer_fn: tff.learning.optimizers.Optimizer | None = None,
  client_weighting: local_training.ClientWeighting = tff.learning.ClientWeighting.UNIFORM,
  model_aggregator: server_step.ModelAggregator | None = None,
  control_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  total_examples: int | None = None,
  **fed_avg_arguments: Any,
) -> ScaffoldProcess:
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

  The clients' states enter and leave `next`; the caller keeps them:

  ```
  state = process.initialize()
  client_states = collections.defaultdict(process.initial_client_state)
  for client_ids in rounds:
    states = [client_states[i] for i in client_ids]
    state, states, metrics = process.next(state, states, [datasets[i] for i in client_ids])
    client_states.update(zip(client_ids, states))
  ```

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
    A process with `initialize()`, `next(state, client_states, client_data)`,
    `initial_client_state()`, and `get_model_weights`, `set_model_weights`, `get_hparams`,
    `set_hparams` as a `tff.learning.templates.LearningProcess` has them.

  Raises:
    TypeError: If an aggregator is of the wrong type.
    ValueError: If a number is not positive, `total_examples` is given without `DATA_SIZE`, or the
      client optimizer has no hparam `learning_rate`.
  """
  for name, value in (('num_clients', num_clients), ('total_examples', total_examples)):
    if name == 'total_examples' and value is None:
      continue
    if not isinstance(value, (int, np.integer)) or value < 1:
      raise ValueError(f'`{name}` must be a positive integer, found {value!r}.')
  if total_examples is not None and client_weighting is not local_training.DATA_SIZE:
    raise ValueError(
      '`client_weighting` must be `algorithms.DATA_SIZE` if `total_examples` is given, '
      f'found {client_weighting!r}.'
    )
  client_side = client_work.build_client_side(
    model_fn, client_weighting=client_weighting, **fed_avg_arguments
  )
  schedule = client_side.schedule
  hparams_type = schedule.get_hparams.type_signature.result
  if _LEARNING_RATE_KEY not in tff.structure.name_list(hparams_type):
    raise ValueError(
      f'SCAFFOLD needs a client optimizer with the hparam `{_LEARNING_RATE_KEY}`, '
      f'found one with {tff.structure.name_list(hparams_type)}.'
    )
  weights_type = client_side.weights_type
  control_type = weights_type.trainable
  aggregator = server_step.create_aggregator(model_aggregator, control_type, client_weighting)
  finalizer = server_step.build_finalizer(
    server_optimizer_fn, weights_type, aggregator.next.type_signature.result.result.member
  )
  if control_aggregator is None:
    control_aggregator = tff.aggregators.SumFactory()
  if not isinstance(control_aggregator, tff.aggregators.UnweightedAggregationFactory):
    raise TypeError(
      '`control_aggregator` must be an unweighted factory of `tff.aggregators`, '
      f'found {control_aggregator!r}.'
    )
  control_sum = control_aggregator.create(control_type)

  @tff.tensorflow.computation
  def initial_control():
    return structures.zeros(control_type)

  @tff.tensorflow.computation(
    hparams_type, weights_type, control_type, control_type, client_side.data_type
  )
  def client_update(hparams, weights, control, client_control, dataset):
    drift = [c - c_i for c, c_i in zip(*map(tf.nest.flatten, (control, client_control)))]

    def subtract_drift(gradient, weights, server_weights, drift):
      del weights, server_weights
      return [None if g is None else g + d for g, d in zip(gradient, drift)]

    result = client_side.train_fn(hparams, weights, dataset, subtract_drift, [drift])
    distance = tf.cast(result.num_steps, tf.float32) * tf.cast(
      hparams[_LEARNING_RATE_KEY], tf.float32
    )
    changes = result.is_finite & (distance > 0.0)
    update, server_control = map(tf.nest.flatten, (result.update, control))
    change = tf.cond(
      changes,
      lambda: [u / tf.cast(distance, u.dtype) - c for u, c in zip(update, server_control)],
      lambda: [tf.zeros_like(c) for c in server_control],
    )
    change = tf.nest.pack_sequence_as(client_control, change)
    client_control = tf.nest.map_structure(tf.add, client_control, change)
    if total_examples is not None:
      change = tf.nest.map_structure(lambda d: d * tf.cast(result.update_weight, d.dtype), change)
    return collections.OrderedDict(
      update=result.update,
      weight=result.update_weight,
      metrics=result.metrics,
      client_control=client_control,
      change=change,
    )

  @tff.tensorflow.computation(control_type, control_type)
  def next_control(control, sum_of_changes):
    total = num_clients if total_examples is None else total_examples
    return tf.nest.map_structure(
      lambda c, d: c + d / tf.cast(total, d.dtype), control, sum_of_changes
    )

  @tff.federated_computation
  def init_fn():
    return tff.federated_zip(
      ScaffoldState(
        global_model_weights=tff.federated_eval(client_side.initial_weights_fn, tff.SERVER),
        client_work=tff.federated_eval(schedule.initialize, tff.SERVER),
        aggregator=aggregator.initialize(),
        finalizer=finalizer.initialize(),
        control=tff.federated_eval(initial_control, tff.SERVER),
        control_aggregator=control_sum.initialize(),
      )
    )

  @tff.federated_computation(
    init_fn.type_signature.result,
    tff.FederatedType(control_type, tff.CLIENTS),
    tff.FederatedType(client_side.data_type, tff.CLIENTS),
  )
  def next_fn(state, client_states, client_data):
    work_state = tff.federated_map(schedule.advance, state.client_work)
    result = tff.federated_map(
      client_update,
      (
        tff.federated_broadcast(work_state.hparams),
        tff.federated_broadcast(state.global_model_weights),
        tff.federated_broadcast(state.control),
        client_states,
        client_data,
      ),
    )
    mean_update = aggregator.next(state.aggregator, result.update, result.weight)
    server = finalizer.next(state.finalizer, state.global_model_weights, mean_update.result)
    changes = control_sum.next(state.control_aggregator, result.change)
    new_state = ScaffoldState(
      global_model_weights=server.result,
      client_work=work_state,
      aggregator=mean_update.state,
      finalizer=server.state,
      control=tff.federated_map(next_control, (state.control, changes.result)),
      control_aggregator=changes.state,
    )
    metrics = collections.OrderedDict(
      client_work=client_work.measurements(client_side, result.metrics, work_state.hparams),
      aggregator=mean_update.measurements,
      finalizer=server.measurements,
    )
    return ScaffoldOutput(
      tff.federated_zip(new_state), result.client_control, tff.federated_zip(metrics)
    )

  state_type = init_fn.type_signature.result.member

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    return state.global_model_weights

  @tff.tensorflow.computation(state_type, weights_type)
  def set_model_weights(state, weights):
    return state._replace(global_model_weights=weights)

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return collections.OrderedDict(
      client_work=schedule.get_hparams(state.client_work),
      finalizer=finalizer.get_hparams(state.finalizer),
    )

  @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
  def set_hparams(state, hparams):
    return state._replace(
      client_work=schedule.set_hparams(state.client_work, hparams['client_work']),
      finalizer=finalizer.set_hparams(state.finalizer, hparams['finalizer']),
    )

  return ScaffoldProcess(
    init_fn, next_fn, get_model_weights, set_model_weights, get_hparams, set_hparams
  )
