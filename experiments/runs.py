# SPDX-License-Identifier: Apache-2.0
r"""Lists runs: what each is doing, its accuracy and time, and in which settings they differ.

  python -m experiments.runs --runs=runs
  python -m experiments.runs diff runs/first runs/second

The first prints a line for each run and a column for each setting that is not the same in all; the
second says in what two runs differ. A run is finished, diverged, running (seen on the machine that
runs it), or stopped: then the same `train` command resumes it.
"""

import sys

from absl import flags

from experiments import command_line
from experiments.definition import help_text
from experiments.definition.settings import UsageError
from experiments.reading import listing, runs, tables

_RUNS = flags.DEFINE_list(
  'runs', ['runs'], 'Folders in which run directories are looked for, at any depth.'
)
_FORMAT = flags.DEFINE_enum('format', 'terminal', list(tables.STYLES), 'How the list is printed.')
_GROUPS = {'What is listed': ('runs',), 'Of this command': ('format', 'debug')}


def list_runs():
  """Returns the list of all runs."""
  runs.check_folders(_RUNS.value)
  found, problems = runs.find_runs(_RUNS.value)
  for problem in problems:
    print(f'runs: left out: {problem}.', file=sys.stderr)
  if not found:
    raise UsageError(
      f'no run in {", ".join(_RUNS.value)}; `python -m experiments.train` makes one.'
    )
  return listing.list_table(found)


def compare(directories):
  """Returns what two runs differ in."""
  if len(directories) != 2:
    raise UsageError(f'diff takes two directories of runs, found {len(directories)}.')
  found = []
  for directory in directories:
    try:
      found.append(runs.read_run(directory))
    except runs.DamagedRunError as e:
      raise UsageError(f'{directory} is no directory of a run: {e}.') from e
  return listing.difference_table(*found)


def main(words):
  if words and words[0] != 'diff':
    raise UsageError(f'{words[0]!r} is unknown; there is `diff A B`, and flags are --name=value.')
  table = compare(words[1:]) if words else list_runs()
  if _FORMAT.value != 'markdown' and table.notes:
    print('\n'.join(table.notes))
  print(tables.format_table(table, _FORMAT.value), end='')


if __name__ == '__main__':
  command_line.run(
    'runs', main, help_text=lambda: help_text.grouped(__doc__, _GROUPS), takes_words=True
  )
