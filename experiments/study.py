# SPDX-License-Identifier: Apache-2.0
r"""Runs the study of docs/study.md, or makes its page from the results in the repository.

  python -m experiments.study run         what is still missing, stage by stage
  python -m experiments.study status      how far it is
  python -m experiments.study page        tables, figures and verdicts of docs/study.md

A run that is in results/study.jsonl is done, wherever it was run; its directory is not needed any
more. `run` can be stopped at any time and goes on where it was. Each finished run is added to the
file at once. --limit_minutes ends it in time: runs that are under way are saved.
"""

import pathlib
import sys

from absl import flags

from experiments import command_line
from experiments.definition import study
from experiments.definition.settings import UsageError
from experiments.reading import results
from experiments.running import directory, studying

_STAGES = flags.DEFINE_list('stages', list(study.COUNTING_STAGES), 'The stages, in their order.')
_RESULTS = flags.DEFINE_string('results', 'results/study.jsonl', 'The file of finished runs.')
_MEASURED = flags.DEFINE_string(
  'measured', 'benchmarks/results.json', 'The file of measurements of `make bench`.'
)
_RUNS = flags.DEFINE_string('runs', 'runs', 'Where run directories go.')
_DOCS = flags.DEFINE_string('docs', 'docs', 'The folder of study.md and its images.')
_PARALLEL = flags.DEFINE_integer('parallel', 2, 'How many runs at a time.', lower_bound=1)
_THREADS = flags.DEFINE_integer('threads', 1, 'How many clients of a run at a time.', lower_bound=1)
_LIMIT_MINUTES = flags.DEFINE_float('limit_minutes', None, 'When to stop.', lower_bound=0.0)


def run():
  """Runs what is missing."""
  target, folder = pathlib.Path(_RESULTS.value), pathlib.Path(_RUNS.value)
  studying.check_pilots(results.read(target), _STAGES.value)
  cells = studying.missing(results.read(target), _STAGES.value, folder, _THREADS.value)
  directory.check_writable(folder, 'runs')
  print(f'{len(cells)} runs are missing', flush=True)
  command = [sys.executable, '-m', 'experiments.train', '--quiet']
  seconds = None if _LIMIT_MINUTES.value is None else 60 * _LIMIT_MINUTES.value
  return 0 if studying.run_all(cells, command, target, _PARALLEL.value, seconds) else 1


def status():
  """Prints how many runs of each stage are there."""
  done = results.read(pathlib.Path(_RESULTS.value))
  for stage in _STAGES.value:
    names = study.runs([stage])
    print(f'{stage}: {sum(name in done for name in names)} of {len(names)} runs')


def page():
  """Makes the page anew."""
  from experiments.reading import study_page  # Only now: it draws.

  records = results.read(pathlib.Path(_RESULTS.value))
  seconds = results.read_seconds_of_rounds(pathlib.Path(_MEASURED.value))
  study_page.write(records, seconds, pathlib.Path(_DOCS.value))


_ACTIONS = {'run': run, 'status': status, 'page': page}


def main(words):
  studying.check_stages(_STAGES.value)
  if len(words) != 1 or words[0] not in _ACTIONS:
    found = ' '.join(words) or 'nothing'
    raise UsageError(f'it takes one of {", ".join(_ACTIONS)}, found {found}.')
  return _ACTIONS[words[0]]()


if __name__ == '__main__':
  command_line.run(
    'study', main, interrupted='stopped; the same command does the rest.', takes_words=True
  )
