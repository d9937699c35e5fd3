# SPDX-License-Identifier: Apache-2.0
r"""Runs many cells, of a table or a figure of the paper or presets, here or on Slurm.

  python -m experiments.sweep --table=cifar10 --variant=cpu --algorithms=fed_avg --seeds=0,1,2 \
      --output_dir=runs/cpu

Cells that are finished are skipped, broken ones are resumed, and one that fails, or whose directory
holds a run with other settings, does not stop the others. The same command does the rest of a sweep
that was stopped. --dry_run lists the commands.
"""

import shlex
import sys

import tqdm
from absl import flags

from experiments import command_line
from experiments.definition import help_text, presets
from experiments.definition.settings import RunDivergedError
from experiments.running import directory, grid, runners

_TABLE = flags.DEFINE_string('table', None, f'A table of the paper: {", ".join(presets.TABLES)}.')
_FIGURE = flags.DEFINE_string(
  'figure', None, f'A figure of the paper: {", ".join(presets.FIGURES)}.'
)
_VARIANT = flags.DEFINE_string(
  'variant', None, f'Of a table or figure: {", ".join(presets.VARIANTS)}; the first unless given.'
)
_ALGORITHMS = flags.DEFINE_list('algorithms', None, 'Only the cells with one of these algorithms.')
_ALPHAS = flags.DEFINE_list('alphas', None, 'Only the cells with one of these alphas.')
_PRESETS = flags.DEFINE_list(
  'presets',
  None,
  'Instead: names of presets as variant/name, patterns of them, or flag files of your own.',
)
_SET = flags.DEFINE_multi_string(
  'set', [], 'An override name=value, or several values as name=a,b,c; may be repeated.'
)
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'The seeds.')
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs', 'The folder that the run directories go to.'
)
_EXECUTOR = flags.DEFINE_enum('executor', 'local', ['local', 'slurm'], 'Where the cells run.')
_PARALLEL = flags.DEFINE_integer('parallel', 1, 'How many cells run here at a time.', lower_bound=1)
_DRY_RUN = flags.DEFINE_boolean('dry_run', False, 'Only list the commands.')
_SLURM_PARTITION = flags.DEFINE_string('slurm_partition', None, "Slurm's partition.")
_SLURM_MINUTES = flags.DEFINE_integer(
  'slurm_minutes', 24 * 60, 'The time limit of a cell on Slurm.', lower_bound=1
)
_SLURM_GPUS = flags.DEFINE_integer('slurm_gpus', 0, 'GPUs of a cell on Slurm.', lower_bound=0)
_SLURM_CPUS = flags.DEFINE_integer('slurm_cpus', 2, 'Cores of a cell on Slurm.', lower_bound=1)
_GROUPS = {
  'Which cells (give one of --table, --figure and --presets)': (
    'table', 'figure', 'variant', 'algorithms', 'alphas', 'presets', 'set', 'seeds',
  ),
  'Where they run': (
    'executor', 'parallel', 'slurm_partition', 'slurm_minutes', 'slurm_gpus', 'slurm_cpus',
  ),
  'Of this command': ('output_dir', 'dry_run', 'debug'),
}  # fmt: skip


def read_cells():
  """Returns the cells that the flags ask for."""
  grid.check_seeds(_SEEDS.value)
  sources = grid.sources(_TABLE.value, _FIGURE.value, _VARIANT.value, _PRESETS.value)
  sources = grid.narrow(sources, _ALGORITHMS.value, _ALPHAS.value)
  return grid.make(sources, grid.overrides(_SET.value), _SEEDS.value, _OUTPUT_DIR.value)


def make_runner():
  if _EXECUTOR.value == 'local':
    return runners.LocalRunner(_PARALLEL.value)
  return runners.SlurmRunner(
    _SLURM_MINUTES.value, _SLURM_CPUS.value, _SLURM_GPUS.value, _SLURM_PARTITION.value
  )


def command(cell):
  """Returns the command that runs a cell."""
  return [sys.executable, '-m', 'experiments.train', *cell.arguments]


def run_all(cells, runner):
  """Runs cells and returns the directories of those that diverged, and of those that failed."""
  diverged, failed = [], []
  try:
    jobs = {cell.directory: runner.submit(cell.directory, command(cell)) for cell in cells}
    for path, job in tqdm.tqdm(jobs.items(), 'sweep', unit='run', disable=None):
      try:
        code = job.result()
        reason = f'exit code {code}' if code != 0 else None
        if code == RunDivergedError.status:
          diverged.append(path)
          tqdm.tqdm.write(f'diverged: {path}', file=sys.stderr)
          continue
      except OSError as e:  # A full disk, say: the next cell may be on another.
        reason = str(e)
      if reason is not None:
        failed.append(path)
        tqdm.tqdm.write(f'failed ({reason}): {path}, see {path / "log.txt"}', file=sys.stderr)
  except (KeyboardInterrupt, SystemExit):
    print('sweep: stopping ...', file=sys.stderr)
    runner.stop()
    raise
  return diverged, failed


def main():
  cells = read_cells()
  refused = {cell.directory: reason for cell in cells if (reason := grid.refusal(cell))}
  usable = [cell for cell in cells if cell.directory not in refused]
  todo = [cell for cell in usable if not grid.is_finished(cell)]
  counts = f'{len(todo)} to run, {len(usable) - len(todo)} finished already'
  if refused:
    counts += f', {len(refused)} left out'
  for reason in refused.values():
    print(f'sweep: left out: {reason}', file=sys.stderr)
  if _DRY_RUN.value:
    print('\n'.join([*(shlex.join(command(cell)) for cell in todo), f'# {counts}']))
    return 0
  directory.check_writable(_OUTPUT_DIR.value)
  runner = make_runner()
  print(f'{counts}, into {_OUTPUT_DIR.value}', flush=True)
  diverged, failed = run_all(todo, runner)
  done = len(todo) - len(diverged) - len(failed)
  print(
    f'{done} done, {len(diverged)} diverged, {len(failed)} failed'
    + ''.join(f'\n  {d}' for d in failed)
  )
  return 1 if failed or refused else 0


if __name__ == '__main__':
  command_line.run(
    'sweep',
    main,
    help_text=lambda: help_text.grouped(__doc__, _GROUPS),
    interrupted='stopped; the same command does the rest.',
  )
