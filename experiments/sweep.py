r"""Runs a grid of presets, overrides and seeds: here, or on Slurm.

  python -m experiments.sweep --presets='experiments/presets/cpu/cifar10_*fed_avg_*alpha0.3_steps20*' \
      --seeds=0,1,2 --output_dir=runs/cpu

Cells that are finished are skipped, broken ones are resumed, and one that fails does not stop the others. The same command does the rest of a
sweep that was stopped. --dry_run lists the commands.
"""

import glob
import itertools
import pathlib
import shlex
import signal
import subprocess
import sys
import threading
from concurrent import futures

import tqdm
from absl import app, flags

_PRESETS = flags.DEFINE_list('presets', None, 'Flag files, as paths or patterns.', required=True)
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
  'slurm_minutes', 24 * 60, 'The time limit of a cell on Slurm.'
)
_SLURM_GPUS = flags.DEFINE_integer('slurm_gpus', 0, 'GPUs of a cell on Slurm.')
_SLURM_CPUS = flags.DEFINE_integer('slurm_cpus', 2, 'Cores of a cell on Slurm.')


class UsageError(Exception):
  """A flag is wrong; the message is one line."""


def expand_presets(patterns):
  """Returns the flag files of some patterns, each once, in order."""
  found = []
  for pattern in patterns:
    matches = sorted(glob.glob(pattern))
    if not matches:
      raise UsageError(f'--presets: no file matches {pattern!r}.')
    found += [path for path in matches if path not in found]
  return found


def expand_overrides(overrides):
  """Returns each combination of overrides, as a list of (name, value)."""
  axes = []
  for override in overrides:
    name, equals, values = override.partition('=')
    if not equals or not name or not values:
      raise UsageError(f'--set takes name=value or name=a,b,c, found {override!r}.')
    axes.append([(name, value) for value in values.split(',')])
  return [list(combination) for combination in itertools.product(*axes)]


def cells(presets, overrides, seeds, output_dir):
  """Returns {run directory: command} of a grid, seed by seed: the first seed alone fills a table."""
  found = {}
  for seed, preset, combination in itertools.product(seeds, presets, expand_overrides(overrides)):
    parts = [
      pathlib.Path(preset).stem,
      *(f'{name}{value}' for name, value in combination),
      f'seed{seed}',
    ]
    directory = pathlib.Path(output_dir) / '_'.join(parts).replace('/', '-')
    found[directory] = [
      sys.executable, '-m', 'experiments.train', f'--flagfile={preset}',
      *(f'--{name}={value}' for name, value in combination), f'--seed={seed}', f'--output_dir={directory}',
    ]  # fmt: skip
  return found


class LocalRunner:
  """Runs commands here, some at a time, and ends them when it is told to."""

  def __init__(self, parallel):
    self._pool = futures.ThreadPoolExecutor(parallel)
    self._processes = set()
    self._lock = threading.Lock()
    self._stopped = False

  def submit(self, directory, command):
    return self._pool.submit(self._run, directory, command)

  def _run(self, directory, command):
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / 'log.txt', 'a') as log:
      with self._lock:
        if self._stopped:
          return None
        # In a group of its own, so that Ctrl-C reaches it through `stop`, once.
        process = subprocess.Popen(
          command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._processes.add(process)
      code = process.wait()
      with self._lock:
        self._processes.discard(process)
    return code

  def stop(self):
    """Asks the commands to save and end, and waits for it."""
    with self._lock:
      self._stopped = True
      for process in self._processes:
        process.send_signal(signal.SIGTERM)
    self._pool.shutdown(cancel_futures=True)


class SlurmRunner:
  """Hands commands to Slurm through submitit, and leaves them there when it is stopped."""

  def __init__(self):
    import submitit

    self._submitit = submitit

  def submit(self, directory, command):
    directory.mkdir(parents=True, exist_ok=True)
    executor = self._submitit.AutoExecutor(folder=directory / 'slurm', cluster='slurm')
    parameters = {
      'timeout_min': _SLURM_MINUTES.value,
      'cpus_per_task': _SLURM_CPUS.value,
      'name': directory.name,
    }
    if _SLURM_PARTITION.value:
      parameters['slurm_partition'] = _SLURM_PARTITION.value
    if _SLURM_GPUS.value:
      parameters['slurm_gres'] = f'gpu:{_SLURM_GPUS.value}'
    executor.update_parameters(**parameters)
    return _SlurmJob(executor.submit(subprocess.call, command))

  def stop(self):
    pass


class _SlurmJob:
  def __init__(self, job):
    self._job = job

  def result(self):
    try:
      return self._job.result()
    except Exception as e:
      print(
        f'sweep: Slurm job {self._job.job_id} failed: {str(e).splitlines()[-1] if str(e) else e!r}',
        file=sys.stderr,
      )
      return 1


def run_all(grid, runner):
  """Runs a grid and returns the directories that failed."""
  failed = []
  try:
    jobs = {directory: runner.submit(directory, command) for directory, command in grid.items()}
    for directory, job in tqdm.tqdm(jobs.items(), 'sweep', unit='run', disable=None):
      code = job.result()
      if code != 0:
        failed.append(directory)
        tqdm.tqdm.write(
          f'failed (exit code {code}): {directory}, see {directory / "log.txt"}', file=sys.stderr
        )
  except (KeyboardInterrupt, SystemExit):
    print('sweep: stopping; the same command does the rest.', file=sys.stderr)
    runner.stop()
    raise
  return failed


def main(argv):
  if len(argv) > 1:
    sys.exit(f'sweep: {argv[1]!r} is not a flag; all arguments are --name=value.')
  try:
    grid = cells(expand_presets(_PRESETS.value), _SET.value, _SEEDS.value, _OUTPUT_DIR.value)
  except UsageError as e:
    print(f'sweep: {e}', file=sys.stderr)
    sys.exit(2)
  finished = [directory for directory in grid if (directory / 'result.json').exists()]
  todo = {directory: command for directory, command in grid.items() if directory not in finished}
  if _DRY_RUN.value:
    for command in todo.values():
      print(shlex.join(command))
    print(f'# {len(todo)} to run, {len(finished)} finished already')
    return
  print(f'{len(todo)} to run, {len(finished)} finished already, into {_OUTPUT_DIR.value}')
  runner = SlurmRunner() if _EXECUTOR.value == 'slurm' else LocalRunner(_PARALLEL.value)
  signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
  try:
    failed = run_all(todo, runner)
  except KeyboardInterrupt:
    sys.exit(130)
  print(
    f'{len(todo) - len(failed)} done, {len(failed)} failed' + ''.join(f'\n  {d}' for d in failed)
  )
  sys.exit(1 if failed else 0)


if __name__ == '__main__':
  app.run(main)
