# SPDX-License-Identifier: Apache-2.0
"""How a driver of the cluster runtime begins and ends: nothing missing, nothing left behind."""

import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import time

import psutil
import pytest

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


def test_a_silent_address_is_named_within_seconds(run_python):
  output = run_python(
    """
from fednar_tff import runtime
try:
  runtime.set_cluster_context('127.0.0.1:9')
except runtime.WorkerLostError as e:
  print(e)
"""
  )
  assert len(output.splitlines()) == 1 and "No Ray cluster answers at '127.0.0.1:9'" in output


# The program prints its descendants and Ray's folder, then ends in the way it is told.
_PROGRAM = """
import sys, tempfile, time
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

runtime.set_cluster_context(num_workers=1, object_store_memory=10**8)
assert run([1, 2, 3]) == 6
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
end = sys.argv[1]
if end == 'exception':
  raise ValueError('on purpose')
if end == 'busy':
  run([10**12] * 4)
if end == 'wait':
  time.sleep(600)
"""


@pytest.fixture
def folder(monkeypatch):
  """A folder for temporary files, with a short name: it is part of the names of sockets."""
  path = pathlib.Path('/tmp') / f'fednar_test_{os.getpid()}'
  path.mkdir()
  monkeypatch.setenv('TMPDIR', str(path))
  yield path
  shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize(
  ('end', 'signum'),
  [
    ('busy', signal.SIGKILL),
    pytest.param('normally', None, marks=pytest.mark.slow),
    pytest.param('exception', None, marks=pytest.mark.slow),
    pytest.param('busy', signal.SIGINT, marks=pytest.mark.slow),
    pytest.param('wait', signal.SIGTERM, marks=pytest.mark.slow),
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
  deadline = time.monotonic() + 10
  while any(map(_is_running, pids)) and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not [pid for pid in pids if _is_running(pid)]
  assert not list(folder.glob('fednar_ray_*'))


def _is_running(pid):
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


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
