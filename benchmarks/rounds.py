# SPDX-License-Identifier: Apache-2.0
"""Seconds a round of each contender, in turns: `python -m benchmarks.rounds`.

What is measured is cut into pieces of at most eight minutes on two cores. Each is a run of its
own, kept in runs/bench. `--pieces B1 T2` runs some, `--workloads A` those of a workload, and
`--resume` only those that are not there yet for this version of the package. For other comparisons
there is `--workloads A --contenders packed torch`. Ours with packed clients is in every piece. So
is a product of matrices, which tells how fast the machine was. `python -m benchmarks.page
--collect` then writes docs/performance.md.
"""

import argparse
import pathlib
import sys
from typing import NamedTuple

from benchmarks import contenders, ratios, results, turns, workloads


class Piece(NamedTuple):
  """Contenders that take turns; of `rounds` rounds a turn the fastest counts."""

  workload: str
  contenders: tuple[str, ...]
  rounds: int = 2


_MODELS = ('packed', 'packed_bfloat16', 'bare', 'torch', 'torch_bfloat16')
_REDUCE = ('packed', 'native_reduce', 'in_process_reduce')
_ONE_DNN = ('packed', 'packed_no_one_dnn')
_ITERATOR = ('packed', 'native_iterator', 'in_process_iterator', 'remote')
PIECES = {
  'A1': Piece('A', _MODELS),
  'A2': Piece('A', (*_REDUCE, *_ITERATOR[1:])),
  'A3': Piece('A', ('packed', 'pfl', 'flower', 'fedjax')),
  'A4': Piece('A', _ONE_DNN),
  'B1': Piece('B', _MODELS),
  'B2': Piece('B', _REDUCE),
  'B3': Piece('B', _ITERATOR, 1),
  'B6': Piece('B', ('packed', 'cluster', 'remote'), 1),
  'B4': Piece('B', ('packed', 'pfl', 'flower'), 1),
  'B5': Piece('B', ('packed', 'fedjax'), 1),
  'B7': Piece('B', ('packed', 'clipped')),
  'B8': Piece('B', _ONE_DNN, 1),
  'T1': Piece('T', ('packed', 'packed_bfloat16', 'bare', ratios.BEFORE)),
  'T2': Piece('T', ('packed', 'torch', 'torch_bfloat16')),
  'T3': Piece('T', _REDUCE, 1),
  'T4': Piece('T', _ITERATOR, 1),
  'T5': Piece('T', _ONE_DNN, 1),
  'S1': Piece('S', ('packed', 'bare', 'fedjax', 'torch'), 3),
  'S2': Piece('S', (*_REDUCE, *_ITERATOR[1:])),
  'S3': Piece('S', ('packed', 'pfl', 'flower'), 1),
  'S4': Piece('S', _ONE_DNN, 3),
}
_NOT_GIVEN = '`--before=CHECKOUT` was not given'


def _places(workload, keys, before):
  """Returns those who take turns, and why the others do not."""
  base = workload.split('-')[0]
  precisions = sorted({ratios.precision(key) for key in keys}, reverse=True)
  places, skipped = [], {}
  for key in [*(f'matrix_{precision}' for precision in precisions), *keys]:
    checkout = before if key == ratios.BEFORE else None
    if key == ratios.BEFORE and before is None:
      skipped[key] = _NOT_GIVEN
      continue
    contender = ratios.OURS if key == ratios.BEFORE else key
    if base in workloads.WORKLOADS and base not in contenders.get(contender).runs:
      skipped[key] = f'it is not written for workload {base}'
      continue
    places.append(turns.Place(key, contender, workload, checkout))
  return places, skipped


def measure(
  workload: str,
  keys: tuple[str, ...],
  *,
  num_turns: int = 5,
  rounds: int = 2,
  before: pathlib.Path | None = None,
) -> dict:
  """Lets contenders take turns on a workload; returns the record that is kept of it."""
  from benchmarks.contenders import matrix

  places, skipped = _places(workload, keys, before)
  for key, reason in skipped.items():
    print(f'  skipped: {key}: {reason}', file=sys.stderr, flush=True)
  taken = turns.take(places, num_turns, rounds)
  return {
    'kind': 'rounds',
    'workload': workload,
    'turns': num_turns,
    'rounds': rounds,
    'before': results.commit_of(before) if before else None,
    'matrix_flop': matrix.round_flop(),
    'seconds': taken.seconds,
    'skipped': {**skipped, **taken.skipped},
    'versions': taken.versions,
  }


def show(name: str, record: dict) -> None:
  """Prints a run as a table."""
  print(f'\n{name}: workload {record["workload"]}, {record["turns"]} turns', flush=True)
  for kind in ('float32', 'bfloat16'):
    speed = ratios.matrix_speed(record, kind)
    if speed:
      print(f'  {speed.format(1)} GFLOP/s: products of matrices, {kind}')
  lines = [ratios.HEADER, *ratios.rows(name, record)]
  widths = [max(len(line[i]) for line in lines) for i in range(len(ratios.HEADER))]
  for line in lines:
    print('  ' + '  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def choose(
  names: list[str] | None, of_workloads: list[str] | None, keys: list[str] | None
) -> dict[str, Piece]:
  """Returns the pieces that are asked for, by the names under which they are kept."""
  if keys:
    return {
      f'{workload}-{"+".join(keys)}': Piece(workload, tuple(keys))
      for workload in of_workloads or workloads.WORKLOADS
    }
  if names:
    return {name: PIECES[name] for name in names}
  return {
    name + workload.removeprefix(piece.workload): piece._replace(workload=workload)
    for workload in of_workloads or workloads.WORKLOADS
    for name, piece in PIECES.items()
    if piece.workload == workload.split('-')[0]
  }


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--pieces', nargs='+', choices=PIECES, help='all by default')
  parser.add_argument('--workloads', nargs='+', help=f'{", ".join(workloads.WORKLOADS)}; -tiny')
  parser.add_argument('--contenders', nargs='+', choices=[*contenders.CONTENDERS, ratios.BEFORE])
  parser.add_argument('--turns', type=int, default=5)
  parser.add_argument('--rounds', type=int, help='rounds of a turn')
  parser.add_argument('--before', type=pathlib.Path, help='a checkout to compare ours with')
  parser.add_argument('--resume', action='store_true', help='skip what is there for this version')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.serve:
    turns.serve(arguments.serve, arguments.workloads[0])
    return
  pieces = choose(arguments.pieces, arguments.workloads, arguments.contenders)
  for name, piece in pieces.items():
    if arguments.resume and results.is_done(name):
      print(f'{name}: is there already', flush=True)
      continue
    print(f'{name}: {", ".join(piece.contenders)}', flush=True)
    record = measure(
      piece.workload,
      piece.contenders,
      num_turns=arguments.turns,
      rounds=arguments.rounds or piece.rounds,
      before=arguments.before.resolve() if arguments.before else None,
    )
    results.save(name, record)
    show(name, record)


if __name__ == '__main__':
  main()
