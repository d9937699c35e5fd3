# SPDX-License-Identifier: Apache-2.0
"""A sweep on a real Slurm: one node, started for the test from the distribution's packages."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import pytest

from tests.experiments.command import SMALL, call

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    any(
      shutil.which(name, path='/usr/sbin:/usr/bin:/sbin:/bin') is None
      for name in ('slurmctld', 'slurmd', 'sbatch', 'munged')
    ),
    reason='Slurm is not installed (Debian: slurmctld slurmd slurm-client munge)',
  ),
  pytest.mark.skipif(os.geteuid() != 0, reason='only root can start a Slurm of its own'),
]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def wait_until(condition, seconds=30):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.2)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
  """Starts munge and Slurm with all their files in one folder, and ends them by their own ids."""
  folder = tmp_path / 'slurm'
  for name in ('state', 'spool'):
    (folder / name).mkdir(parents=True)
  (folder / 'munge.key').write_bytes(os.urandom(1024))
  (folder / 'munge.key').chmod(0o600)
  configuration = CONFIGURATION.format(
    folder=folder, host=socket.gethostname().split('.')[0], cpus=os.cpu_count()
  )
  (folder / 'slurm.conf').write_text(configuration)
  monkeypatch.setenv('SLURM_CONF', str(folder / 'slurm.conf'))
  monkeypatch.setenv('PATH', f'{os.environ["PATH"]}:/usr/sbin:/usr/bin')
  files = {'socket': 'socket', 'key': 'key', 'log': 'log', 'seed': 'seed', 'pid': 'pid'}
  options = [
    f'--{k}{"" if k == "socket" else "-file"}={folder}/munge.{v}' for k, v in files.items()
  ]
  try:
    subprocess.run(['munged', '--force', *options], check=True)
    subprocess.run(['slurmctld'], check=True)
    subprocess.run(['slurmd'], check=True)
    wait_until(
      lambda: (
        'idle' in subprocess.run(['sinfo'], capture_output=True, text=True, check=False).stdout
      )
    )
    yield
  finally:
    for name in ('slurmd.pid', 'slurmctld.pid', 'munge.pid'):
      if (folder / name).exists():
        pid = int((folder / name).read_text())
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda pid=pid: not pathlib.Path(f'/proc/{pid}').exists())


def test_sweep_runs_its_cells_on_slurm(slurm, tmp_path):
  del slurm
  preset = tmp_path / 'small.flags'
  preset.write_text('\n'.join([*SMALL, '--total_rounds=4']) + '\n')
  runs = tmp_path / 'runs'
  result = call(
    f'--presets={preset}',
    '--seeds=0,1',
    f'--output_dir={runs}',
    '--executor=slurm',
    '--slurm_minutes=10',
    '--slurm_cpus=1',
    module='experiments.sweep',
    cwd=tmp_path,
  )
  assert result.returncode == 0, result.stdout + result.stderr
  assert '2 done, 0 diverged, 0 failed' in result.stdout
  for seed in (0, 1):
    assert (runs / f'small_seed{seed}' / 'result.json').exists()
    assert list((runs / f'small_seed{seed}' / 'slurm').iterdir())
