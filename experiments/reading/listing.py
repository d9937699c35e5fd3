# SPDX-License-Identifier: Apache-2.0
"""Runs in a list: what each is doing, how far it is, and in which settings they differ."""

import csv
import math
import os
import pathlib
from collections.abc import Sequence

from experiments.definition import catalogue
from experiments.definition import settings as settings_lib
from experiments.reading import grouping, tables
from experiments.reading.runs import Run


def state(run: Run) -> str:
  """Returns 'finished', 'diverged', 'running' (on this machine) or 'stopped'."""
  if run.has_diverged:
    return 'diverged'
  if run.is_finished:
    return 'finished'
  return 'running' if _is_locked(run.path / '.lock') else 'stopped'


def _is_locked(path: pathlib.Path) -> bool:
  """Returns whether a process holds a lock, without trying it, which could disturb a run."""
  try:
    found = os.stat(path)
    locks = pathlib.Path('/proc/locks').read_text()
  except OSError:
    return False
  device = f'{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}'
  return any(device in line.split() for line in locks.splitlines())


def seconds(run: Run) -> float:
  """Returns how long the rounds that are done took together; NaN if that was not written."""
  try:
    with open(run.path / 'timing.csv', newline='') as file:
      return math.fsum(float(row['seconds']) for row in csv.DictReader(file))
  except (OSError, ValueError, KeyError, TypeError):
    return math.nan


def duration(number: float) -> str:
  """Returns a time in words.

  >>> duration(7.2), duration(125), duration(36_000)
  ('7s', '2m05s', '10h00m')
  """
  if math.isnan(number):
    return '-'
  whole = round(number)
  if whole < 60:
    return f'{whole}s'
  if whole < 3600:
    return f'{whole // 60}m{whole % 60:02}s'
  return f'{whole // 3600}h{whole % 3600 // 60:02}m'


def settings_of(run: Run) -> dict:
  """Returns all that defines a run: what changes results, the seeds included."""
  values = {**run.identity, **dict(run.seeds)}
  return {s.name: values[s.name] for s in settings_lib.SETTINGS if s.name in values}


def differing(runs: Sequence[Run]) -> list[str]:
  """Returns the settings that are not equal in all runs, in the order of `train --help`."""
  values = [settings_of(run) for run in runs]

  def differs(name):
    # A setting that only some tasks, say, have does not tell runs of two tasks apart: the task
    # does.
    follows = bool(catalogue.owners(name))
    return len({str(v.get(name)) for v in values if name in v or not follows}) > 1

  return [s.name for s in settings_lib.SETTINGS if differs(s.name)]


def list_table(runs: Sequence[Run]) -> tables.Table:
  """Returns the list: a row for each run, a column for each setting that differs."""
  names = differing(runs)
  rows = []
  for run in runs:
    done = int(run.rows[-1]['round_num']) if run.rows else 0
    accuracy = None if run.has_diverged else run.accuracy()
    settings = settings_of(run)
    rows.append([
      str(run.path),
      state(run),
      f'{done}/{run.identity["total_rounds"]}',
      '-' if accuracy is None else f'{100 * accuracy:.2f}',
      duration(seconds(run)),
      *(grouping.text(settings.get(name)) for name in names),
    ])  # fmt: skip
  header = ['run', 'state', 'round', 'accuracy', 'time', *map(grouping.header, names)]
  return tables.Table(f'{len(runs)} runs', [], header, rows, len(header))


def difference_table(first: Run, second: Run) -> tables.Table:
  """Returns what two runs differ in: settings first, then what came out."""
  ours, theirs = settings_of(first), settings_of(second)
  rows = [
    [name, grouping.text(ours.get(name)), grouping.text(theirs.get(name))]
    for name in differing([first, second])
  ]
  same = 'All settings that change results are equal, the seeds too.'
  notes = [] if rows else [same]
  for label, function in (
    ('state', state),
    ('rounds done', lambda run: str(len(run.rows))),
    ('accuracy in %', _accuracy_text),
    ('time', lambda run: duration(seconds(run))),
  ):
    texts = [function(first), function(second)]
    if texts[0] != texts[1]:
      rows.append([label, *texts])
  return tables.Table(
    f'{first.path} and {second.path}', notes, ['', str(first.path), str(second.path)], rows, 3
  )


def _accuracy_text(run):
  accuracy = run.accuracy()
  return '-' if accuracy is None else f'{100 * accuracy:.2f}'
