# SPDX-License-Identifier: Apache-2.0
"""Finished runs in one small file: a line of JSON for each, with its settings, result and curves.

A curve is thinned to the rounds in which the test set was evaluated. What is counted in every round
(clipped steps, their norms, the training loss) is there as its mean over the rounds since the one
before; the norm of clipped steps is a mean over those steps. The first runs of the study were kept
without the norm of the model.
"""

import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.definition.settings import UsageError
from experiments.reading import runs

_EVALUATED = ('test_accuracy', 'test_loss', 'model_norm')
_COUNTED = ('train_loss', 'clipped_steps', 'total_steps')
_DIGITS = 5
# The run of `make bench` in which rounds with NAR and with the baseline took turns.
_BOTH_ROUNDS, _NAR, _BASELINE = 'B7', 'packed', 'clipped'


def thin(rows: Iterable[Mapping[str, float]]) -> list[dict[str, float]]:
  """Returns a row for each evaluation, with means over the rounds since the one before."""
  thinned, window = [], []
  for row in rows:
    window.append(row)
    if 'test_accuracy' not in row:
      continue
    kept = {'round_num': row['round_num']}
    kept.update((name, row[name]) for name in _EVALUATED if name in row)
    for name in _COUNTED:
      found = [r[name] for r in window if name in r]
      if found:
        kept[name] = sum(found) / len(found)
    clipped = sum(r.get('clipped_steps', 0) for r in window if 'mean_clipped_norm' in r)
    if clipped:
      norms = (
        r['mean_clipped_norm'] * r['clipped_steps'] for r in window if 'mean_clipped_norm' in r
      )
      kept['mean_clipped_norm'] = sum(norms) / clipped
    thinned.append(kept)
    window = []
  return thinned


def to_record(name: str, run: runs.Run, **others: Any) -> dict[str, Any]:
  """Returns what is kept of a finished run.

  Args:
    name: What the run is called.
    run: The run.
    **others: What else is said of it: seconds, version, the hash of the weights.
  """
  rows = thin(run.rows)
  columns = dict.fromkeys(key for row in rows for key in row)
  return {
    'name': name,
    'settings': {**run.identity, **dict(run.seeds)},
    **{f'{s}_test_accuracy': _rounded(run.accuracy(s)) for s in runs.STATISTICS},
    'diverged': run.has_diverged,
    **others,
    'curves': {key: [_rounded(row.get(key)) for row in rows] for key in columns},
  }


def to_run(record: Mapping[str, Any]) -> runs.Run:
  """Returns a run with the thinned curves of a record, for tables and figures."""
  curves = record['curves']
  rows = [
    {key: value for key, value in zip(curves, values) if value is not None}
    for values in zip(*curves.values())
  ]
  return runs.Run(
    pathlib.Path(record['name']),
    dict(record['settings']),
    rows,
    is_finished=not record['diverged'],
    has_diverged=record['diverged'],
  )


def read(path: pathlib.Path) -> dict[str, dict[str, Any]]:
  """Returns the records of a file by name; none if there is no file.

  Raises:
    UsageError: If a line is damaged, or two have one name.
  """
  found = {}
  try:
    lines = pathlib.Path(path).read_text().splitlines()
  except FileNotFoundError:
    return found
  for number, line in enumerate(lines, 1):
    try:
      record = json.loads(line)
      name = record['name']
    except (ValueError, KeyError, TypeError) as e:
      raise UsageError(f'{path}, line {number} is damaged ({type(e).__name__}: {e}).') from e
    if name in found:
      raise UsageError(f'{path}, line {number} is a second line of {name}.')
    found[name] = record
  return found


def read_seconds_of_rounds(path: pathlib.Path) -> list[tuple[float, float]]:
  """Returns the seconds of a round with NAR, and of one with the baseline, turn by turn.

  Args:
    path: The file of measurements of `make bench`. Without it, or the run in it, there are none.

  Raises:
    UsageError: If the file is damaged.
  """
  try:
    measured = json.loads(pathlib.Path(path).read_text())
    if _BOTH_ROUNDS not in measured:
      return []
    seconds = measured[_BOTH_ROUNDS]['seconds']
    return list(zip(seconds[_NAR], seconds[_BASELINE], strict=True))
  except FileNotFoundError:
    return []
  except (ValueError, KeyError, TypeError) as e:
    raise UsageError(f'{path} is damaged ({type(e).__name__}: {e}).') from e


def write(path: pathlib.Path, records: Mapping[str, Mapping[str, Any]]) -> None:
  """Writes records, in the order of their names, in one step."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_suffix('.temp')
  lines = [json.dumps(records[name], separators=(',', ':')) for name in sorted(records)]
  with open(temporary, 'w') as file:
    file.write('\n'.join([*lines, '']))
    file.flush()
    os.fsync(file.fileno())
  temporary.replace(path)


def _rounded(value):
  if value is None or not math.isfinite(value):
    return None
  return float(f'{value:.{_DIGITS}g}')
