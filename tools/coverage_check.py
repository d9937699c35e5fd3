# SPDX-License-Identifier: Apache-2.0
"""Prints the coverage by room; fails if a branch of an update rule was not taken.

The update rules are in fednar_tff/optimizers and fednar_tff/algorithms. A line that no test can
reach is marked `# pragma: no cover` there, with the reason.
"""

import argparse
import collections
import json
import pathlib
import sys

_UPDATE_RULES = ('fednar_tff/optimizers/', 'fednar_tff/algorithms/')


def _share(covered: int, total: int) -> str:
  return f'{100 * covered / total:.1f} %' if total else '-'


def main(arguments: list[str]) -> int:
  parser = argparse.ArgumentParser(prog='python -m tools.coverage_check', description=__doc__)
  parser.add_argument('report', type=pathlib.Path, help='The JSON report of coverage.')
  files = json.loads(parser.parse_args(arguments).report.read_text())['files']
  rooms = collections.defaultdict(lambda: [0, 0])
  missed = []
  for name, report in sorted(files.items()):
    summary = report['summary']
    covered = summary['covered_lines'] + summary['covered_branches']
    total = summary['num_statements'] + summary['num_branches']
    parts = pathlib.PurePath(name).parts
    for room in ('fednar_tff', '/'.join(parts[:2]) if len(parts) > 2 else None):
      if room:
        rooms[room][0] += covered
        rooms[room][1] += total
    if name.startswith(_UPDATE_RULES):
      missed += [f'{name}:{line}' for line in report['missing_lines']]
      missed += [f'{name}:{start} -> {end}' for start, end in report['missing_branches']]
  for room, (covered, total) in sorted(rooms.items()):
    print(f'{room:28}{_share(covered, total):>8} of lines and branches')
  if missed:
    print('Not covered in an update rule:', *missed, sep='\n  ')
  return 1 if missed else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
