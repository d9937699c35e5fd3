# SPDX-License-Identifier: Apache-2.0
"""How a driver of the cluster runtime begins and ends: nothing missing, nothing left behind."""

import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from fednar_tff.runtime.workers import launcher

# Not `importorskip`: Ray is to be imported by the runtime.
pytestmark = pytest.mark.skipif(
  importlib.util.find_spec('ray') is None, reason='needs the extra [cluster]'
)


def test_without_ray_the_error_names_the_extra(run_python):
  output = run_python(
    """
import sys
sys.modules['ray'] = None
from fednar_tff import runtime
try:
  runtime.set_cluster_context()
except ImportError as e:
  print(e)
"""
  )
  assert len(output.splitlines()) == 1 and "pip install 'fednar_tff[cluster]'" in output


def test_what_cannot_start_is_named_within_seconds(run_python):
  output = run_python(
    """
from fednar_tff import runtime
for arguments in ({'address': '127.0.0.1:9'}, {'num_workers': 1000}, {'object_store_memory': 1}):
  try:
    runtime.set_cluster_context(**arguments)
  except (runtime.WorkerLostError, ValueError) as e:
    print(e)
"""
  )
  silent, too_many, too_small = output.splitlines()
  assert "No Ray cluster answers at '127.0.0.1:9'" in silent
  assert '`num_workers` times `cpus_per_worker` is 1000' in too_many
  assert 'Ray did not start on this machine; it said: ' in too_small


# The program prints its descendants and its workers, then ends in the way it is told.
_PROGRAM = """
import sys
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff
from fednar_tff import runtime

@tff.tensorflow.computation(np.int64)
def spin(limit):
  return tf.while_loop(lambda i: i < limit, lambda i: (i + 1,), (tf.constant(0, tf.int64),))[0]

@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def run(x):
  return tff.federated_sum(tff.federated_map(spin, x))

end, *address = sys.argv[1:]
context = runtime.create_cluster_context(*address, num_workers=1, object_store_memory=10**8)
tff.framework.set_default_context(context)
assert run([1, 2, 3]) == 6
pids = {child.pid for child in psutil.Process().children(recursive=True)}
print(*(pids | {worker['process'] for worker in context._team.descriptions}), flush=True)
if end == 'exception':
  raise ValueError('on purpose')
if end == 'busy':
  run([10**12] * 4)
"""


@pytest.fixture
def folder(monkeypatch):
  """A folder for temporary files, with a short name: it is part of the names of sockets."""
  path = pathlib.Path('/tmp') / f'fednar_{os.getpid()}'
  path.mkdir()
  monkeypatch.setenv('TMPDIR', str(path))
  yield path
  shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize(
  ('end', 'signum'),
  [
    pytest.param('busy', signal.SIGKILL, marks=pytest.mark.slow),
    pytest.param('normally', None, marks=pytest.mark.slow),
    pytest.param('exception', None, marks=pytest.mark.slow),
    pytest.param('busy', signal.SIGINT, marks=pytest.mark.slow),
    pytest.param('busy', signal.SIGTERM, marks=pytest.mark.slow),
  ],
)
def test_nothing_outlives_the_driver(start_python, end, signum, folder):
  process = start_python(_PROGRAM, end)
  pids = [int(pid) for pid in process.stdout.readline().split()]
  assert len(pids) > 5 and list(folder.glob('fednar_ray_*'))
  if signum is not None:
    time.sleep(1)
    process.send_signal(signum)
  started = time.monotonic()
  process.communicate(timeout=30)
  assert time.monotonic() - started < 10
  _wait_until_ended(pids)
  assert not list(folder.glob('fednar_ray_*'))


def _wait_until_ended(pids):
  deadline = time.monotonic() + 10
  while any(map(_is_running, pids)) and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not [pid for pid in pids if _is_running(pid)]


def _is_running(pid):
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


@pytest.fixture
def address_of_ray(folder, monkeypatch):
  """A Ray cluster that others have started."""
  monkeypatch.setenv('RAY_AUTH_MODE', 'token')
  monkeypatch.setenv('RAY_AUTH_TOKEN', 'fednar' * 8)
  port = launcher.unused_port()
  ray = launcher.start_supervised(
    [sys.executable, '-m', 'ray.scripts.scripts', 'start', '--head', '--block',
     '--node-ip-address=127.0.0.1', f'--port={port}', '--num-cpus=1', f'--temp-dir={folder}',
     '--include-dashboard=false', '--disable-usage-stats', f'--object-store-memory={10**8}'],
    stdout=subprocess.PIPE, text=True,
  )  # fmt: skip
  while 'Ray runtime started' not in ray.stdout.readline():
    assert ray.poll() is None
  yield f'127.0.0.1:{port}'
  launcher.end(ray)
  ray.stdout.close()


@pytest.mark.slow
def test_a_cluster_of_others_keeps_no_worker_of_a_driver_that_is_gone(start_python, address_of_ray):
  # It has room for one worker: each driver needs that the one before has left none.
  for signum in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
    process = start_python(_PROGRAM, 'busy', address_of_ray)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert pids
    time.sleep(1)
    process.send_signal(signum)
    process.communicate(timeout=30)
    _wait_until_ended(pids)


@pytest.mark.slow
def test_a_ray_that_was_imported_before_is_started_with_a_warning(start_python):
  process = start_python(
    """
import ray
from fednar_tff import runtime
runtime.set_cluster_context(num_workers=1, object_store_memory=10**8)
print(runtime.describe()['num_workers'])
""",
    stderr=subprocess.PIPE,
  )
  output, errors = process.communicate(timeout=200)
  assert output.split() == ['1'], errors
  assert 'without a token' in errors


@pytest.mark.slow
def test_without_the_token_nobody_gets_in(run_python):
  output = run_python(
    """
import os, subprocess, sys
from fednar_tff import runtime
runtime.set_cluster_context(num_workers=1, object_store_memory=10**8)
import ray
address = ray.get_runtime_context().gcs_address
environment = {k: v for k, v in os.environ.items() if not k.startswith('RAY_AUTH')}
program = f'import ray; ray.init({address!r}); print("in")'
for changes in ({}, {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': 'x' * 32}, dict(os.environ)):
  found = subprocess.run([sys.executable, '-c', program], env={**environment, **changes},
                         capture_output=True, text=True, timeout=120)
  print('in' if 'in' in found.stdout.split() else 'out')
"""
  )
  assert output.split() == ['out', 'out', 'in']


@pytest.mark.slow
def test_a_second_cluster_after_the_first_one_has_ended(run_python):
  # The first context is collected while Ray is connected to the second cluster.
  output = run_python("""
import numpy as np
import tensorflow_federated as tff
from fednar_tff import runtime
from fednar_tff.runtime.cluster import local_ray

@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def total(x):
  return tff.federated_sum(x)

for num_workers in (1, 2):
  context = runtime.create_cluster_context(num_workers=num_workers, object_store_memory=10**8)
  print(context.invoke(total, [np.float32(1)] * 5))
  local_ray.running().stop()
""")
  assert output.split() == ['5.0', '5.0']
