# SPDX-License-Identifier: Apache-2.0
"""Where the commands of a sweep run: here, or on Slurm."""

import shutil
import signal
import subprocess
import sys
import threading
from concurrent import futures

from experiments.definition.settings import UsageError


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

  def __init__(self, minutes, cpus, gpus, partition):
    if shutil.which('sbatch') is None:
      raise UsageError(
        '--executor=slurm needs Slurm, and there is no `sbatch` here; --executor=local runs '
        'without.'
      )
    try:
      import submitit
    except ImportError as e:
      raise UsageError('--executor=slurm needs submitit: pip install submitit.') from e
    self._submitit = submitit
    self._parameters = {'timeout_min': minutes, 'cpus_per_task': cpus}
    if partition:
      self._parameters['slurm_partition'] = partition
    if gpus:
      self._parameters['slurm_gres'] = f'gpu:{gpus}'

  def submit(self, directory, command):
    directory.mkdir(parents=True, exist_ok=True)
    executor = self._submitit.AutoExecutor(folder=directory / 'slurm', cluster='slurm')
    executor.update_parameters(**self._parameters, name=directory.name)
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
