"""This checkout's rounds against those of another one, in turns: `python -m benchmarks.against ../before`.

Both run in this environment. Each contender is a process of its own, as in `benchmarks.rounds`. The two take turns, and who
goes first alternates; a turn is the fastest of three rounds. Printed are the median of the ratios of the turns, and their range.
"""

import argparse
import pathlib
import statistics

import tqdm

from benchmarks import rounds

_CONTENDERS = (
  'in-process, our FedAvg-NAR, packed',
  'in-process, DATASET_ITERATOR',
)


def compare(contender: str, workload: str, other: pathlib.Path, num_turns: int) -> list[tuple]:
  """Returns the seconds of each turn, as pairs (here, there)."""
  pair = []
  try:
    for checkout in (pathlib.Path.cwd(), other):
      pair.append(rounds.Contender(contender, workload, checkout))
      if pair[-1].run_round() is None:  # The first round compiles.
        raise SystemExit(f'{contender} fails in {checkout}.')
    turns = []
    for turn in tqdm.trange(num_turns, desc=f'{workload}, {contender}', disable=None):
      order = (0, 1) if turn % 2 == 0 else (1, 0)
      fastest = {i: min(pair[i].run_round() for _ in range(3)) for i in order}
      turns.append((fastest[0], fastest[1]))
    return turns
  finally:
    for process in pair:
      process.stop()


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('other', type=pathlib.Path, help='The other checkout.')
  parser.add_argument('--workloads', nargs='+', choices=rounds.WORKLOADS, default=['A', 'B', 'T'])
  parser.add_argument('--turns', type=int, default=5)
  arguments = parser.parse_args()
  for workload in arguments.workloads:
    for contender in _CONTENDERS:
      turns = compare(contender, workload, arguments.other.resolve(), arguments.turns)
      ratios = sorted(here / there for here, there in turns)
      here, there = (statistics.median(seconds) for seconds in zip(*turns))
      print(
        f'{workload}  {statistics.median(ratios):.3f} x ({ratios[0]:.3f} to {ratios[-1]:.3f})  '
        f'{here:.3f} s against {there:.3f} s  {contender}',
        flush=True,
      )


if __name__ == '__main__':
  main()
