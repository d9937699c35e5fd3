r"""Runs the study of docs/study.md, or makes its page from the results in the repository.

  python -m experiments.study run         what is still missing, in the order of the protocol
  python -m experiments.study status      how far it is
  python -m experiments.study page        tables, figures and verdicts of docs/study.md

A run that is in results/study.jsonl is done, wherever it was run; its directory is not needed any
more. `run` can be stopped at any time and goes on where it was. Each finished run is added to the
file at once. --limit_minutes ends it in time: runs that are under way are saved.
"""

import json
import pathlib
import subprocess
import sys
import time

from absl import flags

from experiments import command_line
from experiments.definition import parsing, study
from experiments.definition.settings import RunDivergedError, UsageError
from experiments.reading import results, runs
from experiments.running import directory, grid, runners

_STAGES = flags.DEFINE_list('stages', list(study.STAGES), 'The stages, in their order.')
_RESULTS = flags.DEFINE_string('results', 'results/study.jsonl', 'The file of finished runs.')
_RUNS = flags.DEFINE_string('runs', 'runs', 'Where run directories go.')
_DOCS = flags.DEFINE_string('docs', 'docs', 'The folder of study.md and its images.')
_PARALLEL = flags.DEFINE_integer('parallel', 2, 'How many runs at a time.', lower_bound=1)
_THREADS = flags.DEFINE_integer('threads', 1, 'How many clients of a run at a time.', lower_bound=1)
_LIMIT_MINUTES = flags.DEFINE_float('limit_minutes', None, 'When to stop.', lower_bound=0.0)
_POLL_SECONDS = 1.0


def check_stages(names):
  """Raises a `UsageError` if a stage is not known."""
  for name in names:
    known = (*study.PILOT_STAGES, *study.STAGES)
    if name not in known:
      raise UsageError(f'--stages={name} is unknown: it takes {", ".join(known)}.')


def missing(done):
  """Returns the cells that are not among finished runs, in the order of the protocol."""
  cells = {}
  for name, settings in study.runs(_STAGES.value).items():
    if name not in done:
      path = pathlib.Path(_RUNS.value) / name
      arguments = [
        *parsing.as_arguments(settings),
        f'--clients_per_device={_THREADS.value}',
        f'--output_dir={path}',
      ]
      cells[name] = grid.Cell(path, tuple(arguments), parsing.parse(arguments))
  return cells


def version():
  """Returns the commit of this checkout, or None outside of one."""
  command = ['git', 'describe', '--always', '--tags', '--dirty']
  found = subprocess.run(command, capture_output=True, text=True, check=False)
  return found.stdout.strip() or None


def collect(name, path):
  """Adds a finished run to the file."""
  run = runs.read_run(path)
  if not (run.is_finished or run.has_diverged):
    raise UsageError(f'{path} is not finished.')
  result = json.loads((path / 'result.json').read_text())
  record = results.to_record(
    name,
    run,
    weights_sha256=result['weights_sha256'],
    seconds=round(sum(runs.read_seconds(path)), 1),
    version=version(),
  )
  results.write(_RESULTS.value, {**results.read(_RESULTS.value), name: record})


def run_all():
  """Runs what is missing; returns the exit status."""
  cells = missing(results.read(_RESULTS.value))
  directory.check_writable(_RUNS.value, 'runs')
  print(f'{len(cells)} runs are missing', flush=True)
  runner = runners.LocalRunner(_PARALLEL.value)
  end = None if _LIMIT_MINUTES.value is None else time.monotonic() + 60 * _LIMIT_MINUTES.value
  failed = 0
  jobs = {}
  try:
    for name, cell in cells.items():
      command = [sys.executable, '-m', 'experiments.train', '--quiet', *cell.arguments]
      jobs[name] = runner.submit(cell.directory, command)
    while jobs:
      for name in [name for name, job in jobs.items() if job.done()]:
        code = jobs.pop(name).result()
        if code in (0, RunDivergedError.status):
          collect(name, cells[name].directory)
          print(f'done: {name}, {len(jobs)} are left', flush=True)
        else:
          failed += 1
          reason = f'exit code {code}, see {cells[name].directory / "log.txt"}'
          print(f'study: failed: {name} ({reason})', file=sys.stderr, flush=True)
      if end is not None and time.monotonic() > end:
        print(f'time is over, {len(jobs)} are left', flush=True)
        break
      time.sleep(_POLL_SECONDS)
  finally:
    runner.stop()
  return 1 if failed else 0


def print_status():
  """Prints how many runs of each stage are there."""
  done = results.read(_RESULTS.value)
  for stage in _STAGES.value:
    names = study.runs([stage])
    print(f'{stage}: {sum(name in done for name in names)} of {len(names)} runs')


def main(words):
  check_stages(_STAGES.value)
  if words == ['run']:
    return run_all()
  if words == ['status']:
    return print_status()
  if words == ['page']:
    from experiments.reading import study_page  # Only now: it draws.

    return study_page.write(results.read(_RESULTS.value), pathlib.Path(_DOCS.value))
  raise UsageError(f'it takes one of run, status, page; found {" ".join(words) or "nothing"}.')


if __name__ == '__main__':
  command_line.run(
    'study', main, interrupted='stopped; the same command does the rest.', takes_words=True
  )
