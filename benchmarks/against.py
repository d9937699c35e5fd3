# SPDX-License-Identifier: Apache-2.0
"""This checkout's rounds against another one's: `python -m benchmarks.against ../before`.

Both run in this environment, each in a process of its own that takes turns with the other; see
`benchmarks.turns`. Printed are the median of the ratios of the turns, and their range.
"""

import argparse
import pathlib

from benchmarks import contenders, ratios, turns, workloads

_CONTENDERS = ('packed', 'in_process_iterator')


def compare(contender: str, workload: str, other: pathlib.Path, num_turns: int) -> dict:
  """Returns the seconds of each turn, `here` and `there`.

  Raises:
    SystemExit: If one of them fails.
  """
  places = [
    turns.Place('here', contender, workload),
    turns.Place('there', contender, workload, other),
  ]
  taken = turns.take(places, num_turns, rounds_of_a_turn=3)
  for place, reason in taken.skipped.items():
    raise SystemExit(f'{contenders.get(contender).title} fails {place}: {reason}')
  return taken.seconds


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('other', type=pathlib.Path, help='The other checkout.')
  parser.add_argument(
    '--workloads', nargs='+', choices=workloads.WORKLOADS, default=['A', 'B', 'T']
  )
  parser.add_argument('--contenders', nargs='+', choices=contenders.CONTENDERS, default=_CONTENDERS)
  parser.add_argument('--turns', type=int, default=5)
  arguments = parser.parse_args()
  for workload in arguments.workloads:
    for contender in arguments.contenders:
      seconds = compare(contender, workload, arguments.other.resolve(), arguments.turns)
      ratio = ratios.ratio({'seconds': seconds}, 'here', 'there')
      here, there = (ratios.spread(seconds[place]).median for place in ('here', 'there'))
      print(
        f'{workload}  {ratio.format(3)} x  {here:.3f} s against {there:.3f} s  '
        f'{contenders.get(contender).title}',
        flush=True,
      )


if __name__ == '__main__':
  main()
