# SPDX-License-Identifier: Apache-2.0
"""Algorithms whose clients carry a state from round to round, composed of their parts.

`compose_stateful` does for these what `tff.learning.templates.compose_learning_process` does for
the others. An algorithm says what a client does and what the server does. The template knows the
rest: schedules, metrics, aggregation, the server's step, and access to weights and hparams.
"""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import client_work, local_training, structures

# Takes the hparams of the round, the model's weights, what the server shares, the client's state
# and its dataset. Returns the result of `client_side.train_fn`, the client's new state, and a
# message, whose sum over the clients the server gets.
ClientFn = Callable[..., tuple[local_training.LocalResult, Any, Any]]
# Takes what the server shares, the mean update and the sum of the messages. Returns what the server
# shares from now on, and the step that the server optimizer descends along.
ServerFn = Callable[[Any, Any, Any], tuple[Any, Any]]


class StatefulState(NamedTuple):
  """The server's state.

  Attributes:
    global_model_weights: The model.
    client_work: The number of the next round, and the client optimizer's hparams.
    aggregator: The state of the aggregator of updates.
    finalizer: The state of the server optimizer.
    control: What the server shares with all clients, as SCAFFOLD's control variate `c`.
    control_aggregator: The state of the aggregator of messages.
  """

  global_model_weights: Any
  client_work: Any
  aggregator: Any
  finalizer: Any
  control: Any
  control_aggregator: Any


class StatefulOutput(NamedTuple):
  """What `next` of a `StatefulProcess` returns.

  Attributes:
    state: The server's new state.
    client_states: The clients' new states, in the order in which they came.
    metrics: The metrics of the round, as those of `build_fed_avg`, but without `distributor`.
  """

  state: Any
  client_states: Any
  metrics: Any


class StatefulProcess(tff.templates.IterativeProcess):
  """A learning process whose clients carry a state.

  It has `get_model_weights`, `set_model_weights`, `get_hparams` and `set_hparams` as a
  `tff.learning.templates.LearningProcess` has them. The clients' states enter and leave `next`, and
  the caller keeps them:

  ```
  state = process.initialize()
  client_states = collections.defaultdict(process.initial_client_state)
  for client_ids in rounds:
    states = [client_states[i] for i in client_ids]
    state, states, metrics = process.next(state, states, [datasets[i] for i in client_ids])
    client_states.update(zip(client_ids, states))
  ```
  """

  def __init__(
    self,
    initialize_fn: tff.Computation,
    next_fn: tff.Computation,
    get_model_weights: tff.Computation,
    set_model_weights: tff.Computation,
    get_hparams: tff.Computation,
    set_hparams: tff.Computation,
  ):
    super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)
    self._get_model_weights = get_model_weights
    self._set_model_weights = set_model_weights
    self._get_hparams = get_hparams
    self._set_hparams = set_hparams

  def initial_client_state(self) -> Any:
    """Returns the state of a client that was never seen: zeros, as NumPy arrays."""
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


def has_client_states(process: Any) -> bool:
  """Returns whether the clients of a process carry states, as those of `StatefulProcess` do.

  Then `process.next` takes the clients' states after the server's, and returns them likewise.
  """
  return hasattr(process, 'initial_client_state')


def compose_stateful(
  client_side: client_work.ClientSide,
  aggregator: tff.templates.AggregationProcess,
  finalizer: tff.learning.templates.FinalizerProcess,
  *,
  client_fn: ClientFn,
  server_fn: ServerFn,
  shared_type: tff.Type | None = None,
  client_state_type: tff.Type | None = None,
  message_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
) -> StatefulProcess:
  """Returns the process of an algorithm whose clients carry a state.

  A round of it is

  ```
  result_i, s_i', m_i = client_fn(hparams, x, shared, s_i, data_i)     on each client i
  shared, D           = server_fn(shared, mean of the result_i.update, sum of the m_i)
  x                   <- x - eta D                                     by the finalizer
  ```

  Both functions are written in TensorFlow. What the server shares and the states `s_i` are zeros at
  first.

  Args:
    client_side: The clients' part of the algorithm, of `build_client_side`.
    aggregator: Makes one update of all updates, of `create_aggregator`.
    finalizer: The server's optimizer, of `build_finalizer`.
    client_fn: `client_fn(hparams, weights, shared, client_state, dataset)` returns
      `(result, client_state, message)`. `result` is what `client_side.train_fn` returns. `message`
      is a structure of tensors; the server gets its sum over the clients.
    server_fn: `server_fn(shared, mean_update, message_sum)` returns `(shared, step)`. The mean of
      no finite update is NaN; a step that is not finite is not taken.
    shared_type: The type of what the server shares with all clients; None if it is that of the
      trainable weights.
    client_state_type: The type of a client's state; None if it is the same.
    message_aggregator: A factory that sums the messages; None means a plain sum.

  Raises:
    TypeError: If a function returns a state of another type than it was given.
  """
  schedule, weights_type = client_side.schedule, client_side.weights_type
  hparams_type = schedule.get_hparams.type_signature.result
  update_type = aggregator.next.type_signature.result.result.member
  if shared_type is None:
    shared_type = weights_type.trainable
  if client_state_type is None:
    client_state_type = shared_type
  if message_aggregator is None:
    message_aggregator = tff.aggregators.SumFactory()

  @tff.tensorflow.computation
  def initial_shared():
    return structures.zeros(shared_type)

  @tff.tensorflow.computation(
    hparams_type, weights_type, shared_type, client_state_type, client_side.data_type
  )
  def client_update(hparams, weights, shared, client_state, dataset):
    result, client_state, message = client_fn(hparams, weights, shared, client_state, dataset)
    return collections.OrderedDict(
      update=result.update,
      weight=result.update_weight,
      metrics=result.metrics,
      client_state=client_state,
      message=message,
    )

  sent_type = client_update.type_signature.result
  _check_type('client_fn', 'client state', client_state_type, sent_type.client_state)
  message_sum = message_aggregator.create(sent_type.message)
  message_sum_type = message_sum.next.type_signature.result.result.member

  @tff.tensorflow.computation(shared_type, update_type, message_sum_type)
  def server_update(shared, mean_update, message_sum):
    return tuple(server_fn(shared, mean_update, message_sum))

  _check_type('server_fn', 'shared value', shared_type, server_update.type_signature.result[0])

  @tff.federated_computation
  def init_fn():
    return tff.federated_zip(
      StatefulState(
        global_model_weights=tff.federated_eval(client_side.initial_weights_fn, tff.SERVER),
        client_work=tff.federated_eval(schedule.initialize, tff.SERVER),
        aggregator=aggregator.initialize(),
        finalizer=finalizer.initialize(),
        control=tff.federated_eval(initial_shared, tff.SERVER),
        control_aggregator=message_sum.initialize(),
      )
    )

  @tff.federated_computation(
    init_fn.type_signature.result,
    tff.FederatedType(client_state_type, tff.CLIENTS),
    tff.FederatedType(client_side.data_type, tff.CLIENTS),
  )
  def next_fn(state, client_states, client_data):
    work = tff.federated_map(schedule.advance, state.client_work)
    shared = map(tff.federated_broadcast, (work.hparams, state.global_model_weights, state.control))
    sent = tff.federated_map(client_update, (*shared, client_states, client_data))
    mean = aggregator.next(state.aggregator, sent.update, sent.weight)
    messages = message_sum.next(state.control_aggregator, sent.message)
    control, step = tff.federated_map(server_update, (state.control, mean.result, messages.result))
    server = finalizer.next(state.finalizer, state.global_model_weights, step)
    new_state = StatefulState(
      server.result, work, mean.state, server.state, control, messages.state
    )
    metrics = collections.OrderedDict(
      client_work=client_work.measurements(client_side, sent.metrics, work.hparams),
      aggregator=mean.measurements,
      finalizer=server.measurements,
    )
    return StatefulOutput(
      tff.federated_zip(new_state), sent.client_state, tff.federated_zip(metrics)
    )

  accessors = _build_accessors(init_fn.type_signature.result.member, schedule, finalizer)
  return StatefulProcess(init_fn, next_fn, *accessors)


def _check_type(function: str, what: str, expected: tff.Type, found: tff.Type) -> None:
  if not expected.is_assignable_from(found):
    raise TypeError(f'`{function}` must return a {what} of type {expected}, found {found}.')


def _build_accessors(
  state_type: tff.Type,
  schedule: Any,
  finalizer: tff.learning.templates.FinalizerProcess,
) -> tuple[tff.Computation, ...]:
  """Returns `get_model_weights`, `set_model_weights`, `get_hparams` and `set_hparams`."""

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    return state.global_model_weights

  @tff.tensorflow.computation(state_type, get_model_weights.type_signature.result)
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

  return get_model_weights, set_model_weights, get_hparams, set_hparams
