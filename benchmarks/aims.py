# SPDX-License-Identifier: Apache-2.0
"""The aims of issue 16 as data, and whether the committed measurements meet them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks import ratios

Measurements = Mapping[str, Mapping[str, Any]]
HEADER = ['', 'before', 'aim', 'measured: median (least to most)', '', 'run']


class Found(NamedTuple):
  """A measured value, and the run that it is from."""

  value: ratios.Spread
  run: str


class Aim(NamedTuple):
  """A value that should be at most `most`; `before` is what it was when the aim was set."""

  text: str
  before: str
  most: float
  find: Callable[[Measurements], Found | None]
  unit: str = ''


def newest(measurements: Measurements, workload: str) -> list[tuple[str, Mapping[str, Any]]]:
  """Returns the runs of a workload, the newest one first."""
  runs = [(name, r) for name, r in measurements.items() if r.get('workload') == workload]
  return sorted(runs, key=lambda run: run[1]['date'], reverse=True)


def _ratio(workload, contender, opponent):
  """Finds the ratio in the newest run in which both took turns."""

  def find(measurements):
    for name, record in newest(measurements, workload):
      value = ratios.ratio(record, contender, opponent)
      if value:
        return Found(value, name)
    return None

  return find


def _client_batches(measurements):
  record = measurements.get('client_data')
  values = record and record['milliseconds']['Task.client_batches']
  return Found(ratios.spread(values), 'client_data') if values else None


def _nar_step(measurements):
  record = measurements.get('optimizer_step')
  if not record:
    return None
  seconds = record['seconds'][max(record['seconds'], key=lambda n: int(n.replace(',', '')))]
  pairs = zip(seconds['build_nar'], seconds['clip_by_global_norm, then SGD'], strict=True)
  return Found(ratios.spread(x / y for x, y in pairs), 'optimizer_step')


_BFLOAT16 = 'packed_bfloat16'
AIMS = (
  Aim('B, bfloat16 over float32, both ours', '1', 0.65, _ratio('B', _BFLOAT16, 'packed')),
  Aim('A, bfloat16 over float32, both ours', '1', 0.75, _ratio('A', _BFLOAT16, 'packed')),
  Aim('T, float32, over the commit before', '1', 0.7, _ratio('T', 'packed', ratios.BEFORE)),
  Aim('T, bfloat16, over the commit before', '1', 0.45, _ratio('T', _BFLOAT16, ratios.BEFORE)),
  Aim('T over PyTorch', 'about 0.7', 0.5, _ratio('T', 'packed', 'torch')),
  Aim('A, packed over the bare loop', '1.13', 1.05, _ratio('A', 'packed', 'bare')),
  Aim('B, packed over the bare loop', '0.97', 1.05, _ratio('B', 'packed', 'bare')),
  Aim('S over FedJAX', '7 to 10', 1.0, _ratio('S', 'packed', 'fedjax')),
  Aim('S over TFF native', '0.15', 0.03, _ratio('S', 'packed', 'native_reduce')),
  Aim('`client_batches`, a client', '22 to 51 ms', 2.0, _client_batches, ' ms'),
  Aim('a NAR step over clip-then-SGD, 11 M weights', '1.43', 1.1, _nar_step),
  Aim(
    "T, TFF's process with its default loop, in-process over native",
    '1.74',
    1.0,
    _ratio('T', 'in_process_reduce', 'native_reduce'),
  ),
)


def rows(measurements: Measurements) -> list[list[str]]:
  """Returns a line of the table for each aim; see `HEADER`."""
  lines = []
  for aim in AIMS:
    found = aim.find(measurements)
    line = [aim.text, aim.before, f'<= {aim.most:g}{aim.unit}']
    if found is None:
      lines.append([*line, 'not measured', '', ''])
      continue
    verdict = 'met' if found.value.median <= aim.most else '**missed**'
    digits = 3 if aim.most < 0.1 else 2
    lines.append([*line, found.value.format(digits) + aim.unit, verdict, found.run])
  return lines
