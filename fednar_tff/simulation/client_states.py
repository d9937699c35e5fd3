# SPDX-License-Identifier: Apache-2.0
"""What clients carry from round to round, consistent with the checkpoints."""

import pathlib
import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fednar_tff.simulation import storage

# With row ids, the key is an index beside the states, and a search for old ones reads no state.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS states (
  client_id TEXT, round_num INTEGER, state BLOB, PRIMARY KEY (client_id, round_num)
)
"""


class ClientStates:
  """A store of client states by client id.

  A client that was never stored has the initial state, and takes no room. With a path, what
  `commit` has stored survives any end of the process, and `restore` goes back to how it was when
  the round of an older checkpoint ended: each state is kept under the round that made it, until
  `prune` gives it up.
  """

  def __init__(
    self,
    initial_state: Any,
    path: str | pathlib.Path | None = None,
    *,
    keep_in_memory: bool = True,
  ):
    """Opens or creates a store.

    Args:
      initial_state: The state of a client that was never stored: a structure of tensors or arrays.
      path: A file to keep the states in; None keeps them in memory only.
      keep_in_memory: Whether all states stay in memory, too, and are written only when committed.
        If False, memory does not grow with the number of clients.

    Raises:
      RunDirectoryError: If the file cannot be written; so do the other methods.
      ValueError: If there is neither a path nor memory to keep states in.
    """
    if path is None and not keep_in_memory:
      raise ValueError('`path` must be given if `keep_in_memory` is False, found None.')
    self._initial = tf.nest.map_structure(np.asarray, initial_state)
    self._memory: dict[str, Any] | None = {} if keep_in_memory else None
    self._uncommitted: set[str] = set()
    self._database: Any = None
    self._path: Any = path
    if path is not None:
      with storage.writing_to(self._path):
        self._open(path)

  def _open(self, path):
    self._database = sqlite3.connect(path, isolation_level='DEFERRED', check_same_thread=False)
    # What is committed must be on the disk before the checkpoint that refers to it is.
    self._database.execute('PRAGMA synchronous = FULL')
    self._database.execute(_SCHEMA)
    self._database.commit()

  def get(self, client_ids: Sequence[str]) -> list[Any]:
    """Returns the states of some clients."""
    return [self._get(client_id) for client_id in client_ids]

  def _get(self, client_id):
    if self._memory is not None and client_id in self._memory:
      return self._memory[client_id]
    if self._database is None:
      return self._initial
    row = self._database.execute(
      'SELECT state FROM states WHERE client_id = ? ORDER BY round_num DESC LIMIT 1', [client_id]
    ).fetchone()
    state = self._initial if row is None else self._from_bytes(row[0])
    if self._memory is not None and row is not None:
      self._memory[client_id] = state
    return state

  def put(self, client_ids: Sequence[str], states: Sequence[Any], round_num: int) -> None:
    """Stores the states that some clients have after a round."""
    for client_id, state in zip(client_ids, states):
      if self._memory is None:
        with storage.writing_to(self._path):
          self._write(client_id, state, round_num)
      else:
        self._memory[client_id] = tf.nest.map_structure(np.asarray, state)
        self._uncommitted.add(client_id)

  def commit(self, round_num: int) -> None:
    """Makes what was put so far permanent; called before the checkpoint of `round_num`."""
    if self._database is not None:
      with storage.writing_to(self._path):
        for client_id in sorted(self._uncommitted):
          self._write(client_id, self._get(client_id), round_num)
        self._database.commit()
    self._uncommitted.clear()

  def restore(self, round_num: int) -> None:
    """Forgets what was stored after `round_num`, from which a run resumes."""
    self._uncommitted.clear()
    if self._memory is not None:
      self._memory.clear()
    if self._database is not None:
      with storage.writing_to(self._path):
        self._database.rollback()
        self._database.execute('DELETE FROM states WHERE round_num > ?', [round_num])
        self._database.commit()

  def prune(self, round_num: int) -> None:
    """Drops what is needed only to go back further than `round_num`, the oldest checkpoint."""
    if self._database is not None:
      with storage.writing_to(self._path):
        self._database.execute(
          'DELETE FROM states WHERE round_num < (SELECT MAX(newer.round_num) FROM states AS newer '
          'WHERE newer.client_id = states.client_id AND newer.round_num <= ?)',
          [round_num],
        )
        self._database.commit()

  def client_ids(self) -> list[str]:
    """Returns the clients that have a stored state."""
    found = set(self._memory or ())
    if self._database is not None:
      found.update(
        row[0] for row in self._database.execute('SELECT DISTINCT client_id FROM states')
      )
    return sorted(found)

  def close(self) -> None:
    """Drops what is not committed and lets go of the file; states can still be read."""
    if self._database is not None:
      self._database.rollback()

  def _write(self, client_id, state, round_num):
    self._database.execute(
      'INSERT OR REPLACE INTO states VALUES (?, ?, ?)',
      [client_id, round_num, self._to_bytes(state)],
    )

  def _to_bytes(self, state):
    return b''.join(np.ascontiguousarray(leaf).tobytes() for leaf in tf.nest.flatten(state))

  def _from_bytes(self, data):
    leaves, start = [], 0
    for like in tf.nest.flatten(self._initial):
      leaves.append(np.frombuffer(data, like.dtype, like.size, start).reshape(like.shape))
      start += like.nbytes
    return tf.nest.pack_sequence_as(self._initial, leaves)
