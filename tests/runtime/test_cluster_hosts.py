# SPDX-License-Identifier: Apache-2.0
"""The cluster runtime over two hosts: network namespaces with their own addresses, a Ray node in
each."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

from fednar_tff.runtime.workers import launcher

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(importlib.util.find_spec('ray') is None, reason='needs the extra [cluster]'),
  pytest.mark.skipif(os.geteuid() != 0, reason='only root may make network namespaces'),
  pytest.mark.skipif(shutil.which('ip') is None, reason='needs `ip` (Debian: iproute2)'),
]

_NAMES = ('fednar_a', 'fednar_b')
_ADDRESSES = ('10.231.7.1', '10.231.7.2')

# Trains on both hosts; tells when rounds are under way, so that the test can kill one.
_PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from fednar_tff import algorithms, optimizers, runtime, tasks

task = tasks.create_task('digits', num_clients=8)
process = algorithms.build_fed_avg(
  task.functional_model_fn(), client_optimizer_fn=optimizers.build_nar(0.05, 0.01),
  loop_implementation=algorithms.PACKED)

def train(context, say):
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()
    for i in range(12):
      data = [task.packed_client(c, i, batch_size=20, local_steps=50, seed=0)
              for c in task.partition.client_ids]
      state = process.next(state, data).state
      if say:
        print('round', i, flush=True)
  return [np.asarray(w) for w in tf.nest.flatten(list(process.get_model_weights(state).trainable))]

context = runtime.create_cluster_context(sys.argv[1], num_workers=2)
nodes = {node['NodeManagerAddress'] for node in __import__('ray').nodes() if node['Alive']}
print('hosts', *sorted(nodes), flush=True)
found = train(context, True)
assert context.describe()['lost_workers'] == 1, context.describe()
expected = train(runtime.create_in_process_context(), False)
for x, y in zip(found, expected, strict=True):
  np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)
print('same weights', flush=True)
"""


def _ip(*arguments):
  subprocess.run(['ip', *arguments], check=True, capture_output=True)


def _remove_hosts():
  for name in _NAMES:
    subprocess.run(['ip', 'netns', 'delete', name], capture_output=True, check=False)


@pytest.fixture
def hosts():
  """Makes two hosts that see each other and nothing else."""
  _remove_hosts()
  try:
    for name in _NAMES:
      _ip('netns', 'add', name)
      _ip('-n', name, 'link', 'set', 'lo', 'up')
    _ip('link', 'add', 'fednar0', 'netns', _NAMES[0], 'type', 'veth',
        'peer', 'name', 'fednar1', 'netns', _NAMES[1])  # fmt: skip
    for name, device, address in zip(_NAMES, ('fednar0', 'fednar1'), _ADDRESSES):
      _ip('-n', name, 'address', 'add', f'{address}/24', 'dev', device)
      _ip('-n', name, 'link', 'set', device, 'up')
  except subprocess.CalledProcessError as e:
    _remove_hosts()
    pytest.skip(f'no network namespaces here: {e.stderr.decode().strip()}')
  yield
  _remove_hosts()


class _Node:
  """A Ray node in one of the hosts."""

  def __init__(self, host, folder, *arguments):
    # As hosts have their own disks, the second one has its own files at the place of the first's.
    own_disk = f'mount -t tmpfs none {folder} && ' if host else ''
    self.process = launcher.start_supervised(
      ['ip', 'netns', 'exec', _NAMES[host], 'sh', '-c', own_disk + 'exec "$@"', 'sh',
       sys.executable, '-m', 'ray.scripts.scripts', 'start', '--block',
       f'--node-ip-address={_ADDRESSES[host]}', '--num-cpus=1', '--disable-usage-stats',
       f'--object-store-memory={2 * 10**8}', *arguments],
      env=_environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )  # fmt: skip
    said = []
    for line in self.process.stdout:
      said.append(line)
      if 'Ray runtime started' in line:
        return
    raise AssertionError(''.join(said))

  def kill(self, host):
    """Kills all processes of a host, as a power failure would."""
    pids = subprocess.run(
      ['ip', 'netns', 'pids', _NAMES[host]], capture_output=True, text=True, check=True
    ).stdout.split()
    for pid in pids:
      try:
        os.kill(int(pid), 9)
      except ProcessLookupError:
        pass
    launcher.end(self.process)
    self.process.stdout.close()


def _environment():
  return {
    **os.environ,
    'RAY_AUTH_MODE': 'token',
    'RAY_AUTH_TOKEN': 'fednar' * 8,
    'RAY_USAGE_STATS_ENABLED': '0',
    'TF_CPP_MIN_LOG_LEVEL': '3',
  }


def test_two_hosts_train_and_one_of_them_may_die(hosts):
  folder = tempfile.mkdtemp(prefix='fr', dir='/tmp')  # Short: it is part of the names of sockets.
  head = _Node(
    0, folder, '--head', '--port=6399', '--include-dashboard=false', f'--temp-dir={folder}'
  )
  other = program = None
  try:
    other = _Node(1, folder, f'--address={_ADDRESSES[0]}:6399')
    program = subprocess.Popen(
      ['ip', 'netns', 'exec', _NAMES[0], sys.executable, '-c', _PROGRAM, f'{_ADDRESSES[0]}:6399'],
      env=_environment(),
      stdout=subprocess.PIPE,
      text=True,
    )
    assert program.stdout.readline().split() == ['hosts', *_ADDRESSES]
    for line in program.stdout:
      if line.split() == ['round', '2']:
        break
    time.sleep(0.2)
    other.kill(1)
    rest, _ = program.communicate(timeout=200)
    assert program.returncode == 0 and 'same weights' in rest
  finally:
    if other is not None:
      other.kill(1)
    head.kill(0)  # With the program, which is there, too.
    if program is not None:
      program.wait()
      program.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)
