# SPDX-License-Identifier: Apache-2.0
"""Algorithms whose clients carry states, for drivers that know only the server's state."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms

_Selection = Sequence[tuple[str, Any]]


class PlainState(NamedTuple):
  """The state of the server and of all clients that ever took part.

  It has arrays only, so that any program-state manager can save it.

  Attributes:
    server: The state of the process.
    client_ids: The clients, in the order in which they first took part.
    clients: Their states: the structure of one, with one row for each client.
  """

  server: Any
  client_ids: np.ndarray
  clients: Any


class _Next:
  """The round of a `PlainProcess`."""

  def __init__(self, process, context):
    self._process, self._context = process, context
    # Of the process itself, whose last argument are the clients' data.
    self.type_signature = process.next.type_signature

  def __call__(self, state: PlainState, selection: _Selection) -> Any:
    ids, data = _check_selection(selection)
    states = self._states_of(state, ids)
    output = self._invoke(state.server, states, data)
    if not inspect.isawaitable(output):
      return _plain_output(state, ids, output)

    async def next_state():
      return _plain_output(state, ids, await output)

    return tff.program.NativeValueReference(
      asyncio.ensure_future(next_state()), self.type_signature.result
    )

  def _invoke(self, *arguments):
    stack = tff.framework.get_context_stack()
    if self._context is None:
      if isinstance(stack.current, tff.program.FederatedContext):
        raise ValueError(
          '`context` of `keep_client_states` must be the context that the current '
          '`tff.program.FederatedContext` was made of, since that hands out no states of clients, '
          'found None.'
        )
      return self._process.next(*arguments)
    with stack.install(self._context):
      return self._process.next(*arguments)

  def _states_of(self, state, ids):
    rows = {client_id: row for row, client_id in enumerate(_texts(state.client_ids))}
    initial = self._process.initial_client_state()

    def state_of(client_id):
      if client_id not in rows:
        return initial
      # The leaves in the structure of a client's state; a manager that loads a state may use
      # containers of its own.
      leaves = [leaf[rows[client_id]] for leaf in tf.nest.flatten(state.clients)]
      return tf.nest.pack_sequence_as(initial, leaves)

    return [state_of(client_id) for client_id in ids]


class PlainProcess:
  """A process for TFF's own drivers, made by `keep_client_states`.

  Attributes:
    next: Takes a `PlainState` and a list of pairs of a client's id and data; returns a
      `tff.learning.templates.LearningProcessOutput`. Where computations are awaited, it returns a
      reference to that, for `tff.program.materialize_value`.
  """

  takes_client_ids = True

  def __init__(self, process: Any, context: Any):
    self._process = process
    self.next = _Next(process, context)

  def initialize(self) -> PlainState:
    """Returns the state before the first round, in which no client has taken part."""
    clients = tf.nest.map_structure(
      lambda leaf: np.zeros([0, *leaf.shape], leaf.dtype), self._process.initial_client_state()
    )
    return PlainState(self._process.initialize(), _as_array([]), clients)

  def get_model_weights(self, state: PlainState) -> Any:
    """Returns the model's weights."""
    return self._process.get_model_weights(state.server)

  def set_model_weights(self, state: PlainState, weights: Any) -> PlainState:
    """Returns the state with other weights of the model."""
    return state._replace(server=self._process.set_model_weights(state.server, weights))

  def get_hparams(self, state: PlainState) -> Any:
    """Returns the hparams of both optimizers."""
    return self._process.get_hparams(state.server)

  def set_hparams(self, state: PlainState, hparams: Any) -> PlainState:
    """Returns the state with other hparams."""
    return state._replace(server=self._process.set_hparams(state.server, hparams))

  def client_states(self, state: PlainState) -> dict[str, Any]:
    """Returns the states of the clients that ever took part, by id."""
    ids = _texts(state.client_ids)
    return dict(zip(ids, self.next._states_of(state, ids)))


def _check_selection(selection):
  pairs = list(selection)
  if not pairs:
    raise ValueError('A round needs at least one client, found none.')
  if not all(isinstance(p, (tuple, list)) and len(p) == 2 and isinstance(p[0], str) for p in pairs):
    found = type(pairs[0]).__name__
    raise TypeError(
      f'A selection must be a list of pairs of a client id and its data, found a list of {found}.'
    )
  ids = [client_id for client_id, _ in pairs]
  twice = sorted({client_id for client_id in ids if ids.count(client_id) > 1})
  if twice:
    raise ValueError(f'A client can take part once in a round, found {twice} more than once.')
  return ids, [data for _, data in pairs]


def _plain_output(state, ids, output):
  """Returns a round's output with the clients' new states inside a new state."""
  known = _texts(state.client_ids)
  all_ids = list(dict.fromkeys([*known, *ids]))
  row_of = {client_id: row for row, client_id in enumerate(all_ids)}
  rows = [row_of[client_id] for client_id in ids]

  def with_rows(old, *new):
    joined = np.zeros([len(all_ids), *old.shape[1:]], old.dtype)
    joined[: len(known)] = old
    joined[rows] = new
    return joined

  new_leaves = [tf.nest.flatten(client_state) for client_state in output.client_states]
  leaves = [
    with_rows(old, *(leaves[i] for leaves in new_leaves))
    for i, old in enumerate(tf.nest.flatten(state.clients))
  ]
  clients = tf.nest.pack_sequence_as(state.clients, leaves)
  return tff.learning.templates.LearningProcessOutput(
    PlainState(output.state, _as_array(all_ids), clients), output.metrics
  )


def _as_array(ids):
  return np.array([client_id.encode() for client_id in ids], object)


def _texts(ids):
  return [client_id.decode() for client_id in ids]


def keep_client_states(
  process: Any, *, context: tff.framework.AsyncContext | tff.framework.SyncContext | None = None
) -> PlainProcess:
  """Puts the states of clients (of SCAFFOLD, FedDyn) into the state of the server.

  For drivers that know nothing of clients' states: `tff.simulation.run_training_process` and
  `tff.learning.programs.train_model`. Each client's state is a row of arrays in the state that they
  pass on, so it is saved and loaded with it. Which client is which has to be told with the data: a
  round takes pairs `(client_id, data)`, as `build_data_source` hands them out.

  ```
  process = keep_client_states(algorithms.build_scaffold(...))
  data_source = build_data_source(task, process, batch_size=20, local_epochs=1)
  selection_fn = data_source.selection_fn(clients_per_round=10)
  state = tff.simulation.run_training_process(process, selection_fn, total_rounds=100)
  ```

  A round copies the states of all clients that ever took part, and a saved state holds them all:
  with many clients and a large model, `run` is the better driver, which writes only what changed.

  Args:
    process: A process of `build_scaffold`, `build_fed_dyn` or `compose_stateful`.
    context: What rounds run on; None means the current context. Has to be given within a
      `tff.program.FederatedContext`, and is the context that this was made of.

  Raises:
    TypeError: If the clients of `process` carry no state. From `next`, if clients come without ids.
    ValueError: From `next`, if a round has no client or a client twice, or `context` is missing.
  """
  if not algorithms.has_client_states(process):
    raise TypeError(
      '`process` must be an algorithm whose clients carry states, such as that of '
      f'`build_scaffold`, found {type(process).__name__}, which is plain already.'
    )
  return PlainProcess(process, context)
