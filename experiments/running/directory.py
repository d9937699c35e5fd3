# SPDX-License-Identifier: Apache-2.0
"""A run's directory: whether a run may go there, and how far the one that is there has come."""

import contextlib
import errno
import json
import os
import pathlib
import tempfile

from experiments.definition import identity
from experiments.definition.settings import RunFailedError, UsageError


def output_dir(settings) -> pathlib.Path:
  """Returns where a run is written."""
  return pathlib.Path(settings['output_dir'] or pathlib.Path('runs') / identity.run_name(settings))


def read_config(path, remedy=' Choose another --output_dir.'):
  """Returns what `config.json` of a directory says, or None if there is none.

  Raises:
    UsageError: If it is damaged.
  """
  config = path / 'config.json'
  try:
    found = json.loads(config.read_text())
    return {**found, 'settings': identity.of_config(found['settings'])}
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (OSError, ValueError, KeyError, TypeError) as e:
    raise UsageError(f'{config} is damaged ({type(e).__name__}: {e}).{remedy}') from e


def read_run_config(path, flag='run'):
  """Returns what `config.json` of a directory says.

  Raises:
    UsageError: If the directory holds no run of `train`.
  """
  config = read_config(pathlib.Path(path), '') if pathlib.Path(path).is_dir() else None
  if config is None:
    raise UsageError(f'--{flag}={path} is no directory of a run: it has no config.json.')
  return config


def check(path, settings) -> None:
  """Raises a `UsageError` if a directory holds another run, or too many rounds of this one."""
  config = read_config(path)
  if config is None:
    return
  lines = identity.difference(config['settings'], settings, ignored=('total_rounds',))
  if lines:
    raise UsageError(
      f'{path} holds a run with other settings ({"; ".join(lines)}). Choose another --output_dir.'
    )
  done = rounds_done(path)
  if done > settings['total_rounds']:
    raise UsageError(
      f'--total_rounds={settings["total_rounds"]} is less than the {done} rounds that {path} has.'
    )


def rounds_done(path) -> int:
  """Returns the number of the last round in a directory's metrics."""
  try:
    lines = (path / 'metrics.csv').read_bytes().split(b'\n')[1:-1]  # Half a line is none.
  except OSError:
    return 0
  number = lines[-1].partition(b',')[0] if lines else b''
  return int(number) if number.isdigit() else 0


def is_finished(path, settings) -> bool:
  """Returns whether a directory that may hold a run holds all its rounds, and its result."""
  return (
    read_config(path) is not None
    and read_result(path) is not None
    and rounds_done(path) >= settings['total_rounds']
  )


def read_result(path):
  """Returns what `result.json` of a directory says, or None if it cannot be read."""
  try:
    found = json.loads((path / 'result.json').read_text())
  except (OSError, ValueError):
    return None
  return found if isinstance(found, dict) else None


def has_diverged(path) -> bool:
  """Returns whether the run in a directory ended because it diverged."""
  return bool((read_result(path) or {}).get('diverged'))


def check_writable(path, flag='output_dir') -> None:
  """Raises a `UsageError` if a directory cannot be made or written; leaves nothing behind."""
  existing = pathlib.Path(path)
  while not os.path.lexists(existing) and existing != existing.parent:
    existing = existing.parent
  try:
    with tempfile.TemporaryFile(dir=existing):
      pass
  except OSError as e:
    raise UsageError(f'--{flag}={path} cannot be written: {e.strerror or e}.') from e


@contextlib.contextmanager
def writing_to(path):
  """Turns errors of the file system into a `RunFailedError` that names the directory."""
  try:
    yield
  except OSError as e:
    reason = 'the disk is full' if e.errno == errno.ENOSPC else e.strerror or e
    raise RunFailedError(
      f'Cannot write to {path}: {reason}. What was saved before is whole; start again to resume.'
    ) from e


def save_json(path, value) -> None:
  """Writes a file in one step: it is there whole, or not at all."""
  temporary = path.with_suffix('.json_temp')
  temporary.write_text(json.dumps(value, indent=2, default=str) + '\n')
  temporary.replace(path)
