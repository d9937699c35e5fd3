# SPDX-License-Identifier: Apache-2.0
"""The cluster runtime over two hosts: network namespaces with their own addresses, a Ray node in
each."""

import contextlib
import importlib.util
import os
import shutil
import signal
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

# What both programs begin with.
_TRAINING = """
import sys
import numpy as np
import psutil
import tensorflow as tf
import tensorflow_federated as tff
from fednar_tff import algorithms, optimizers, runtime, tasks
from fednar_tff.runtime.cluster import context as cluster_context

task = tasks.create_task('digits', model=sys.argv[2], num_clients=8)
process = algorithms.build_fed_avg(
  task.functional_model_fn(), client_optimizer_fn=optimizers.build_nar(0.05, 0.01),
  loop_implementation=algorithms.PACKED)

def train(context, num_rounds, after_round=lambda i: None):
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()
    for i in range(num_rounds):
      data = [task.packed_client(c, i, batch_size=20, local_steps=50, seed=0)
              for c in task.partition.client_ids]
      state = process.next(state, data).state
      after_round(i)
  return [np.asarray(w) for w in tf.nest.flatten(list(process.get_model_weights(state).trainable))]
"""

# Trains on both hosts; tells when rounds are under way, so that the test can end one of them.
_LOSING = """
context = runtime.create_cluster_context(sys.argv[1], num_workers=2)
print('hosts', *sorted(n['NodeManagerAddress'] for n in __import__('ray').nodes()), flush=True)
found = train(context, 12, lambda i: print('round', i, flush=True))
assert context.describe()['lost_workers'] == 1, context.describe()
assert context.describe()['num_workers'] == 1, context.describe()
for x, y in zip(found, train(context, 12), strict=True):  # On the host that is left.
  np.testing.assert_array_equal(x, y)
for x, y in zip(found, train(runtime.create_in_process_context(), 12), strict=True):
  np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
print('same weights', flush=True)
"""

# Trains on the other host; prints the bytes that crossed the network in a round, those that the
# runtime says it has sent, and those that have to be: the weights once, a sum of updates for each
# piece, and for each client 50 batches of 20 rows with 2 seeds.
_COUNTING = """
counts = []
def count(_):
  device = psutil.net_io_counters(pernic=True)['fednar0']
  counts.append(device.bytes_sent + device.bytes_recv)
context = runtime.create_cluster_context(sys.argv[1], num_workers=1)
weights = train(context, 8, count)
said = sum(context.describe()['bytes_in_last_round'].values())
num_pieces = len(cluster_context.cut(8, context.num_pieces))
needed = (1 + num_pieces) * sum(w.nbytes for w in weights) + 8 * 50 * (20 + 2) * 4
print((counts[-1] - counts[1]) // (len(counts) - 2), said, needed, flush=True)
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
    self._host = host
    # As hosts have their own disks, the second one has its own files at the place of the first's.
    own_disk = f'mount -t tmpfs none {folder} && ' if host else ''
    self._process = launcher.start_supervised(
      ['ip', 'netns', 'exec', _NAMES[host], 'sh', '-c', own_disk + 'exec "$@"', 'sh',
       sys.executable, '-m', 'ray.scripts.scripts', 'start', '--block',
       f'--node-ip-address={_ADDRESSES[host]}', '--disable-usage-stats',
       f'--object-store-memory={2 * 10**8}', *arguments],
      env=_environment(),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )  # fmt: skip
    said = []
    for line in self._process.stdout:
      said.append(line)
      if 'Ray runtime started' in line:
        return
    raise AssertionError(''.join(said))

  def signal(self, signum):
    """Sends a signal to all processes of the host."""
    pids = subprocess.run(
      ['ip', 'netns', 'pids', _NAMES[self._host]], capture_output=True, text=True, check=True
    ).stdout.split()
    for pid in pids:
      with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), signum)

  def end(self):
    self.signal(signal.SIGKILL)
    launcher.end(self._process)
    self._process.stdout.close()


def _environment():
  # Without what a private Ray of an earlier test has left: it would keep these on loopback.
  others = {name: value for name, value in os.environ.items() if not name.startswith('RAY_')}
  return {
    **others,
    'RAY_AUTH_MODE': 'token',
    'RAY_AUTH_TOKEN': 'fednar' * 8,
    'RAY_USAGE_STATS_ENABLED': '0',
    'TF_CPP_MIN_LOG_LEVEL': '3',
  }


@contextlib.contextmanager
def _start(source, model, num_cpus):
  """Starts a node in each host and a program in the first; yields the second and the program."""
  folder = tempfile.mkdtemp(prefix='fr', dir='/tmp')  # Short: it is part of the names of sockets.
  address = f'{_ADDRESSES[0]}:6399'
  with contextlib.ExitStack() as stack:
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    head = _Node(0, folder, '--head', '--port=6399', '--include-dashboard=false',
                 f'--temp-dir={folder}', f'--num-cpus={num_cpus[0]}')  # fmt: skip
    stack.callback(head.end)  # With the program, which is there, too.
    other = _Node(1, folder, f'--address={address}', f'--num-cpus={num_cpus[1]}')
    stack.callback(other.end)
    program = stack.enter_context(
      subprocess.Popen(
        [
          'ip',
          'netns',
          'exec',
          _NAMES[0],
          sys.executable,
          '-c',
          _TRAINING + source,
          address,
          model,
        ],
        env=_environment(),
        stdout=subprocess.PIPE,
        text=True,
      )
    )
    stack.callback(program.kill)
    yield other, program


@pytest.mark.parametrize('loss', ['its processes die', 'its network is gone'])
def test_two_hosts_train_and_one_of_them_may_be_lost(hosts, loss):
  with _start(_LOSING, 'mlp', num_cpus=(1, 1)) as (other, program):
    assert program.stdout.readline().split() == ['hosts', *_ADDRESSES]
    for line in program.stdout:
      if line.split() == ['round', '2']:
        break
    started = time.monotonic()
    if loss == 'its processes die':
      other.signal(signal.SIGSTOP)  # A round that needs it is under way when it dies.
      time.sleep(1)
      other.signal(signal.SIGKILL)
    else:
      _ip('-n', _NAMES[1], 'link', 'set', 'fednar1', 'down')
    while 'round 4' not in program.stdout.readline():
      assert program.poll() is None
    print(f'{loss}: training goes on after {time.monotonic() - started:.0f} s')
    rest, _ = program.communicate(timeout=200)
    assert program.returncode == 0 and 'same weights' in rest


def test_a_round_sends_weights_updates_and_indices_over_the_network(hosts):
  with _start(_COUNTING, 'cnn', num_cpus=(0, 1)) as (_, program):
    output, _ = program.communicate(timeout=200)
    on_the_wire, said, needed = map(int, output.split())
    print(f'{on_the_wire:,} bytes a round crossed the network, {said:,} said, {needed:,} needed')
    assert needed <= said <= 1.1 * needed
    assert said <= on_the_wire <= 1.1 * needed
