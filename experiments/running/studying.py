# SPDX-License-Identifier: Apache-2.0
"""Runs of the study: which are missing, how they run, and how they come into the results."""

import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from experiments.definition import parsing, study
from experiments.definition.settings import RunDivergedError, UsageError
from experiments.reading import results, runs
from experiments.running import grid, runners

_POLL_SECONDS = 1.0


def check_stages(names: Iterable[str]) -> None:
  """Raises a `UsageError` if a stage is not known."""
  for name in names:
    if name not in study.ALL_STAGES:
      raise UsageError(f'--stages={name} is unknown: it takes {", ".join(study.ALL_STAGES)}.')


def check_pilots(records: Mapping[str, Any], stages: Iterable[str]) -> None:
  """Raises a `UsageError` if runs that count would have settings that the pilot has not chosen."""
  from experiments.reading import study_page  # Only now: it draws.

  for name in study.pilots(stages):
    chosen, used = study_page.choices(records, name), study.chosen_settings(name)
    if chosen is None:
      stages = list(study.PILOTS[name].stages())
      if study.runs(stages).keys() <= records.keys():
        raise UsageError(f'the pilot on {name} chose nothing: all rates of one kind diverged.')
      raise UsageError(
        f'the pilot on {name} is not finished: run --stages={",".join(stages)} before the others.'
      )
    if chosen != used:
      raise UsageError(
        f'the pilot on {name} chooses {chosen}, and experiments/definition/presets.py has {used}.'
      )


def missing(
  done: Container[str], stages: Iterable[str], folder: pathlib.Path, threads: int
) -> dict[str, grid.Cell]:
  """Returns the runs that are not done, by name, in the order of the protocol.

  Args:
    done: The names of finished runs.
    stages: The stages.
    folder: Where run directories go.
    threads: How many clients of a run train at the same time.
  """
  cells = {}
  for name, settings in study.runs(stages).items():
    if name not in done:
      path = folder / name
      arguments = [
        *parsing.as_arguments(settings),
        f'--clients_per_device={threads}',
        f'--output_dir={path}',
      ]
      cells[name] = grid.Cell(path, tuple(arguments), parsing.parse(arguments))
  return cells


def version(checkout: pathlib.Path = pathlib.Path()) -> str | None:
  """Returns the commit of a checkout, with `-dirty` if code differs; None outside of one.

  Results and docs are no code: the study itself writes them.

  Args:
    checkout: A folder of it; by default the current one.
  """

  def git(*arguments):
    command = ['git', '-C', str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

  changed = git('status', '--porcelain', '--untracked-files=no', '--', ':/*.py')
  return git('describe', '--always', '--tags') + ('-dirty' if changed else '') or None


def collect(name: str, path: pathlib.Path, target: pathlib.Path) -> None:
  """Adds the finished run in a directory to the file of results."""
  run = runs.read_run(path)
  if not (run.is_finished or run.has_diverged):
    raise UsageError(f'{path} is not finished.')
  result = json.loads((path / 'result.json').read_text())
  environment = json.loads((path / 'config.json').read_text())['environment']
  record = results.to_record(
    name,
    run,
    weights_sha256=result['weights_sha256'],
    seconds=round(sum(runs.read_seconds(path)), 1),
    version=version(),
    processor=environment.get('processor'),  # None of a run that was begun before it was kept.
  )
  results.write(target, {**results.read(target), name: record})


def run_all(
  cells: dict[str, grid.Cell],
  command: Sequence[str],
  target: pathlib.Path,
  parallel: int,
  seconds: float | None,
) -> bool:
  """Runs cells, and adds each to the file of results when it is done.

  Args:
    cells: The runs by name.
    command: What runs one, with its arguments after it.
    target: The file of results.
    parallel: How many run at a time.
    seconds: After how long it stops, saving the runs that are under way; None for never.

  Returns:
    Whether none failed. A run that diverged has not failed.
  """
  end = None if seconds is None else time.monotonic() + seconds
  runner = runners.LocalRunner(parallel)
  all_good, jobs = True, {}
  try:
    for name, cell in cells.items():
      jobs[name] = runner.submit(cell.directory, [*command, *cell.arguments])
    while jobs:
      for name in [name for name, job in jobs.items() if job.done()]:
        code = jobs.pop(name).result()
        path = cells[name].directory
        if code in (0, RunDivergedError.status):
          collect(name, path, target)
          print(f'done: {name}, {len(jobs)} are left', flush=True)
        else:
          all_good = False
          print(
            f'study: failed (exit code {code}): {name}, see {path / "log.txt"}',
            file=sys.stderr,
            flush=True,
          )
      if end is not None and time.monotonic() > end:
        print(f'time is over, {len(jobs)} are left', flush=True)
        break
      time.sleep(_POLL_SECONDS)
  finally:
    runner.stop()
  return all_good
