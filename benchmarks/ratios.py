# SPDX-License-Identifier: Apache-2.0
"""What is read off the turns: seconds, ratios and speeds, each with its spread.

A ratio is formed turn by turn, and only between contenders that took turns in the same run.
"""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from benchmarks import arithmetic, contenders, workloads

OURS = 'packed'
BEFORE = 'before'


class Spread(NamedTuple):
  """The median over the turns, and the least and the most."""

  median: float
  least: float
  most: float

  def format(self, digits: int = 2) -> str:
    """Returns it as text, such as `1.02 (0.98 to 1.10)`."""
    return f'{self.median:.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})'


def spread(values: Iterable[float]) -> Spread:
  """Returns the spread of some values."""
  values = list(values)
  return Spread(statistics.median(values), min(values), max(values))


def title(key: str, record: Mapping[str, Any]) -> str:
  """Returns what a contender of a run is called in tables."""
  if key == BEFORE:
    return f'{contenders.CONTENDERS[OURS].title}, at commit {record["before"]}'
  return contenders.get(key).title


def precision(key: str) -> str:
  """Returns the type in which a contender multiplies matrices."""
  return 'float32' if key == BEFORE else contenders.get(key).precision


def ratio(record: Mapping[str, Any], contender: str, opponent: str) -> Spread | None:
  """Returns a contender's seconds over its opponent's; None if they did not take turns."""
  seconds = record['seconds']
  if contender not in seconds or opponent not in seconds:
    return None
  return spread(x / y for x, y in zip(seconds[contender], seconds[opponent], strict=True))


def speed(record: Mapping[str, Any], key: str) -> Spread:
  """Returns the billions of operations a second (GFLOP/s) of a contender."""
  flop = arithmetic.round_flop(workloads.get(record['workload']))
  return spread(flop / seconds / 1e9 for seconds in record['seconds'][key])


def matrix_speed(record: Mapping[str, Any], kind: str) -> Spread | None:
  """Returns the GFLOP/s of products of matrices of a type during a run; None if not measured."""
  seconds = record['seconds'].get(f'matrix_{kind}')
  return spread(record['matrix_flop'] / s / 1e9 for s in seconds) if seconds else None


def share(record: Mapping[str, Any], key: str) -> Spread | None:
  """Returns a contender's speed over that of products of matrices in its type, turn by turn."""
  matrix = record['seconds'].get(f'matrix_{precision(key)}')
  if not matrix:
    return None
  flop = arithmetic.round_flop(workloads.get(record['workload']))
  pairs = zip(record['seconds'][key], matrix, strict=True)
  return spread((flop / own) / (record['matrix_flop'] / product) for own, product in pairs)


def rows(name: str, record: Mapping[str, Any]) -> list[list[str]]:
  """Returns a line of the table for each contender of a run; see `HEADER`."""
  lines = []
  for key in record['seconds']:
    if key in contenders.MATRICES:
      continue
    ours, part = ratio(record, OURS, key), share(record, key)
    lines.append(
      [
        title(key, record),
        spread(record['seconds'][key]).format(3),
        ours.format() if ours and key != OURS else '',
        f'{speed(record, key).median:.1f}',
        f'{100 * part.median:.1f} %' if part else '',
        name,
      ]
    )
  return lines


HEADER = [
  '',
  'seconds a round: median (least to most)',
  'ours, packed, over it',
  'GFLOP/s',
  'of the matrix speed',
  'run',
]
