# SPDX-License-Identifier: Apache-2.0
"""A run's directory: checkpoints, metrics, and the lock that keeps two processes apart.

Everything goes through TFF's program managers; this module adds what they leave open when a process
is killed in the middle of a write.
"""

import asyncio
import concurrent.futures
import contextlib
import csv
import errno
import fcntl
import json
import logging
import pathlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.simulation import checkpoints

_KEY = 'round_num'
_DESCRIPTION = 'run.json'
TASK = 'task.json'
# More than one, so that a damaged newest checkpoint loses no more than the rounds since the one
# before.
_CHECKPOINTS_KEPT = 3


class RunDirectoryError(Exception):
  """A run's directory cannot be used; the message says why and what to do."""


@contextlib.contextmanager
def writing_to(path: pathlib.Path) -> Iterator[None]:
  """Turns errors of files, TensorFlow and SQLite into a `RunDirectoryError` with the path."""
  try:
    yield
  except (OSError, tf.errors.OpError, sqlite3.Error) as e:
    full = getattr(e, 'errno', None) == errno.ENOSPC or any(
      text in str(e) for text in ('No space left', 'disk is full')
    )
    reason = 'the disk is full' if full else _first_line(e)
    raise RunDirectoryError(
      f'Cannot write to {path}: {reason}. What was saved before is whole; start again to resume.'
    ) from e


def check_output_dir(path: str | pathlib.Path) -> None:
  """Makes a run's directory if there is none, and tries to write to it.

  Call it before anything that takes long.

  Raises:
    RunDirectoryError: If it cannot be made or written.
  """
  path = pathlib.Path(path)
  try:
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
      pass
  except OSError as e:
    raise RunDirectoryError(f'Cannot write to {path}: {e.strerror or e}.') from e


class RunDirectory:
  """Saves and loads what a run has to keep."""

  def __init__(self, path: pathlib.Path, description: Mapping[str, Any]):
    """Opens or creates a run's directory, for this process alone.

    Args:
      path: The directory.
      description: What the run is, as values of JSON by name: a directory that holds a run with
        another description is left as it is.

    Raises:
      RunDirectoryError: If another process uses the directory, it holds another run, or it cannot
        be written.
    """
    self.path = pathlib.Path(path)
    check_output_dir(self.path)
    self._lock = open(self.path / '.lock', 'a')
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
      self._lock.close()
      raise RunDirectoryError(f'{self.path} is in use by another process.') from e
    self._description = dict(description)
    try:
      self._check_description()
    except BaseException:
      self._lock.close()
      raise
    self._remove_leftovers()
    # The managers are coroutines; a thread of their own runs them also where a loop runs already,
    # as in a notebook.
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._checkpoints = tff.program.FileProgramStateManager(
      self.path / 'checkpoints', keep_total=_CHECKPOINTS_KEPT, keep_first=False
    )
    try:
      self._metrics = self._csv('metrics.csv')
      self._timing = self._csv('timing.csv')
    except BaseException:
      self.close()
      raise
    self._events = tff.program.TensorBoardReleaseManager(self.path / 'events')

  def _csv(self, name):
    try:
      return tff.program.CSVFileReleaseManager(
        self.path / name, save_mode=tff.program.CSVSaveMode.APPEND, key_fieldname=_KEY
      )
    except (tff.program.CSVKeyFieldnameNotFoundError, ValueError) as e:
      raise RunDirectoryError(
        f'{self.path / name} is damaged: it must begin with a line of names, {_KEY} among them, '
        'and end with a round. Choose another directory.'
      ) from e

  def _check_description(self):
    """Compares a run with the one that is here; nothing is touched before."""
    description = self._description
    path = self.path / _DESCRIPTION
    try:
      saved = json.loads(path.read_text())
      names = [n for n in {**saved, **description} if saved.get(n) != description.get(n)]
    except FileNotFoundError:
      return  # A new directory, or one of an earlier version.
    except (ValueError, TypeError, AttributeError) as e:
      raise RunDirectoryError(f'{path} is damaged. Choose another directory.') from e
    if names:
      lines = [_difference(name, saved.get(name), description.get(name)) for name in names]
      raise RunDirectoryError(
        f'{self.path} holds a run with other settings ({"; ".join(lines)}). '
        'Choose another directory.'
      )

  def save_description(self, task_arguments: Mapping[str, Any] | None = None) -> None:
    """Writes what the run is and, if it is known, how its task is created."""
    try:
      self._save_json(_DESCRIPTION, self._description)
      if task_arguments is not None:
        self._save_json(TASK, task_arguments)
    except OSError as e:
      raise RunDirectoryError(f'Cannot write to {self.path}: {e.strerror}.') from e

  def _save_json(self, name, value):
    path = self.path / name
    temporary = path.with_suffix('.json_temp')
    temporary.write_text(json.dumps(value, indent=2, default=str) + '\n')
    temporary.replace(path)

  def _remove_leftovers(self):
    """Removes what a killed process left half-written."""
    for leftover in [*self.path.glob('*.csv_temp*'), *self.path.glob('checkpoints/*_temp*')]:
      if leftover.is_dir():
        shutil.rmtree(leftover)
      else:
        leftover.unlink()
    for name in ('metrics.csv', 'timing.csv'):
      path = self.path / name
      if path.exists() and not path.read_bytes().endswith(b'\n'):
        whole_lines = path.read_bytes().rpartition(b'\n')[0]
        replacement = path.with_suffix('.csv_temp')
        replacement.write_bytes(whole_lines + b'\n' if whole_lines else b'')
        replacement.replace(path)
      if path.exists() and not path.stat().st_size:
        path.unlink()

  def _wait_for(self, coroutine):
    with writing_to(self.path):
      return self._thread.submit(asyncio.run, coroutine).result()

  def save_checkpoint(self, content: Any, version: int) -> None:
    """Saves what `checkpoints.to_save` returned."""
    self._wait_for(self._checkpoints.save(content, version))

  def load_latest_checkpoint(self, structure: Any) -> tuple[Any, int] | None:
    """Returns the newest checkpoint that is whole, as `(state, version)`, or None.

    Damaged newer ones are set aside.
    """
    like = [np.asarray(leaf) for leaf in tf.nest.flatten(structure)]
    for version in reversed(self.checkpoint_versions()):
      path = self.path / 'checkpoints' / f'program_state_{version}'
      try:
        leaves = checkpoints.read(path).leaves
        leaves = [x.astype(y.dtype).reshape(y.shape) for x, y in zip(leaves, like, strict=True)]
        return tf.nest.pack_sequence_as(structure, leaves), version
      except Exception as e:
        if _can_be_read(path):
          self.close()
          raise RunDirectoryError(
            f'{self.path} holds a run of another model or algorithm. Choose another directory.'
          ) from e
        logging.warning('Checkpoint %s is damaged and set aside (%s).', path, _first_line(e))
        shutil.rmtree(path.with_name(f'damaged_{version}'), ignore_errors=True)
        path.rename(path.with_name(f'damaged_{version}'))
    return None

  def checkpoint_versions(self) -> list[int]:
    """Returns the rounds of the checkpoints that are kept, oldest first."""
    return self._wait_for(self._checkpoints.get_versions()) or []

  def release(self, round_num: int, metrics: Mapping[str, Any], seconds: float) -> None:
    """Writes a round's metrics in place of what an earlier process wrote from that round on.

    The clock time goes into a file of its own, so that equal runs write equal metrics.
    """
    written = {k: _shortest(v) for k, v in metrics.items()}
    self._wait_for(self._metrics.release(written, round_num))
    self._wait_for(self._timing.release({'seconds': f'{seconds:.4f}'}, round_num))
    shown = {k: v for k, v in metrics.items() if v is not None}
    self._wait_for(self._events.release(shown, round_num))

  def read_metrics(self, last_round: int) -> list[dict[str, Any]]:
    """Returns the written metrics of all rounds up to one, with `round_num` and `seconds`."""
    seconds = {row[_KEY]: row['seconds'] for row in self._read_csv('timing.csv')}
    rows = [
      {name: _parse(text) for name, text in {**row, 'seconds': seconds.get(row[_KEY], '')}.items()}
      for row in self._read_csv('metrics.csv')
    ]
    return [row for row in rows if row[_KEY] <= last_round]

  def _read_csv(self, name):
    path = self.path / name
    if not path.exists():
      return []
    with open(path, newline='') as file:
      return list(csv.DictReader(file))

  def close(self) -> None:
    """Lets another process use the directory."""
    self._thread.shutdown()
    self._lock.close()


def _difference(name: str, saved: Any, wanted: Any) -> str:
  """Says in what two runs differ, without the long values."""
  if max(len(str(saved)), len(str(wanted))) > 40:
    return f'another {name}'
  return f'{name}: {saved} in the directory, {wanted} now'


def _can_be_read(path: pathlib.Path) -> bool:
  """Returns whether a checkpoint that does not fit a state is whole all the same."""
  try:
    tf.saved_model.load(str(path))()
    return True
  except Exception:
    return False


def _first_line(error: Exception) -> str:
  return (str(error).splitlines() or [type(error).__name__])[0]


def _shortest(value: Any) -> str:
  """Returns the shortest text that reads back as the same number; nothing for None."""
  return '' if value is None else str(np.asarray(value)[()])


def _parse(text: str) -> Any:
  """Returns the number whose `_shortest` text this is."""
  if not text:
    return None
  try:
    return np.int64(text)
  except ValueError:
    return np.float32(text)
