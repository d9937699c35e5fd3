# SPDX-License-Identifier: Apache-2.0
"""What the runtime does about GPUs, as far as it can be seen without one: steps compiled by XLA,
unused cards, memory, states."""

import re
import subprocess

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import runtime
from fednar_tff.runtime.in_process import accelerators
from tools.gpu import placement

_COMPILED = """
import sys
import numpy as np
import fednar_tff
from fednar_tff import algorithms, optimizers, tasks

task = tasks.create_task('synthetic', num_clients=4, partition='iid')
fednar_tff.runtime.set_in_process_context(num_threads=1)
results = []
for jit_compile in (False, True):
  process = algorithms.build_fed_avg(
    task.functional_model_fn(), client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    loop_implementation=algorithms.PACKED, jit_compile=jit_compile)
  state = process.initialize()
  for round_num in range(2):
    state = process.next(state, [
      task.packed_client(c, round_num, batch_size=int(sys.argv[1]), local_steps=12, seed=0)
      for c in task.partition.client_ids]).state
  results.append(process.get_model_weights(state).trainable)
print(max(np.abs(a - b).max() for a, b in zip(*results)))
"""


@pytest.mark.parametrize(
  ('batch_size', 'num_shapes'), [pytest.param(10, 1, marks=pytest.mark.slow), (40, 2)]
)
def test_a_compiled_step_is_compiled_once_for_each_shape(
  batch_size, num_shapes, run_python, tmp_path, monkeypatch
):
  monkeypatch.setenv('XLA_FLAGS', f'--xla_dump_to={tmp_path}')
  # Each of the 4 clients has 100 examples: 40 leave batches of 20 at the end of an epoch.
  difference = float(run_python(_COMPILED, str(batch_size)))
  assert difference < 1e-5
  compiled = [p.name for p in tmp_path.glob('*take_step*before_optimizations.txt')]
  assert len(compiled) == num_shapes, compiled


@pytest.fixture
def pci_devices(tmp_path):
  """A machine with a network card of NVIDIA's, a display of another vendor, and two of NVIDIA's."""
  for name, vendor, kind in (
    ('0000:00:01.0', '0x10de', '0x020000'),
    ('0000:00:02.0', '0x8086', '0x030000'),
    ('0000:01:00.0', '0x10de', '0x030000'),
    ('0000:02:00.0', '0x10de', '0x030200'),
  ):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'vendor').write_text(f'{vendor}\n')
    (tmp_path / name / 'class').write_text(f'{kind}\n')
  return tmp_path


def test_a_card_that_tensorflow_does_not_use_is_told_with_its_reason(pci_devices, monkeypatch):
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  if tf.config.list_physical_devices('GPU'):
    pytest.skip('TensorFlow uses the GPU of this machine.')
  message = accelerators.unused_card(pci_devices)
  assert '0000:01:00.0, 0000:02:00.0' in message and '0000:00:0' not in message
  # In TensorFlow's own words, asked in another process; here it finds no driver or no libraries.
  reason = message.split('It says: ')[1]
  assert re.search('GPU|CUDA|cuda', reason) and 'gives no reason' not in reason
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '-1')
  assert accelerators.unused_card(pci_devices) is None


def test_no_card_is_no_problem(tmp_path):
  assert accelerators.unused_card(tmp_path) is None


def test_the_reason_is_the_last_line_on_gpus():
  log = (
    '2026-01-01 10:00:00.1: I tensorflow/core/platform/cpu_feature_guard.cc:182] This binary is '
    'optimized to use CUDA\n'
    '2026-01-01 10:00:01.2: W tensorflow/core/common_runtime/gpu/gpu_device.cc:2211] Cannot '
    'dlopen some GPU libraries.\n'
    'Skipping registering GPU devices...\n'
  )
  assert accelerators._reason_in(log) == 'Cannot dlopen some GPU libraries.'
  assert accelerators._reason_in('nothing') == 'it gives no reason'


@pytest.mark.parametrize(
  ('printed', 'clients'),
  [('', 1), ('2048\n', 1), ('8192\n16384\n', 2), ('24576\n', 4), ('81920\n', 4), ('[N/A]\n', 1)],
)
def test_clients_at_a_time_by_the_smallest_card(printed, clients):
  assert accelerators._clients_for(printed) == clients


def test_clients_per_device_changes_threads_and_not_results():
  @tff.tensorflow.computation(np.float32)
  def work(x):
    return tf.reduce_sum(tf.sin(x * tf.range(1000.0)))

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def run(x):
    return tff.federated_sum(tff.federated_map(work, x))

  clients = [np.float32(0.1 * i) for i in range(7)]
  results = set()
  for clients_per_device in (1, 2, 5):
    context = runtime.create_in_process_context(
      devices=['CPU:0'], clients_per_device=clients_per_device
    )
    results.add(context.invoke(run, clients).tobytes())
    assert context.describe()['num_threads'] == clients_per_device
  assert len(results) == 1
  with pytest.raises(ValueError, match='must be None, found 2 and 3'):
    runtime.create_in_process_context(num_threads=2, clients_per_device=3)
  with pytest.raises(ValueError, match='`clients_per_device` must be at least 1, found 0'):
    runtime.create_in_process_context(clients_per_device=0)


def test_describe_names_the_device_that_executes():
  context = runtime.create_in_process_context()
  assert context.describe()['executes_on'] == ('/device:CPU:0',)


_MEMORY = """
import sys
import tensorflow as tf
from tensorflow.python.framework import load_library
from fednar_tff import runtime

load_library.load_pluggable_device_library(sys.argv[1])
runtime.create_in_process_context(
  memory_growth=sys.argv[2] == 'True', deterministic=True, allow_tf32=False)
print([tf.config.experimental.get_memory_growth(g) for g in tf.config.list_physical_devices('GPU')])
print(tf.config.experimental.tensor_float_32_execution_enabled())
tf.random.uniform([])  # Without a seed, which is an error if operations are to be deterministic.
"""


@pytest.mark.parametrize('memory_growth', [True, pytest.param(False, marks=pytest.mark.slow)])
def test_settings_reach_tensorflow(memory_growth, start_python):
  try:
    library = placement.compile_device()
  except placement.UnavailableError as e:
    pytest.skip(f'No pretended GPU: {e}')
  process = start_python(_MEMORY, str(library), str(memory_growth), stderr=subprocess.PIPE)
  output, errors = process.communicate(timeout=100)
  grows, tf32 = output.splitlines()
  assert grows == ('[True]' if memory_growth else '[None]') and tf32 == 'False', output
  assert process.returncode and 'determinism' in errors, errors[-2000:]


_STATES = """
import collections
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from fednar_tff import runtime
from fednar_tff.runtime.in_process import values

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
context = runtime.create_in_process_context(devices=['CPU:1', 'CPU:2'])
state = tff.TensorType(np.float32, [3])

@tff.tensorflow.computation(state, state)
def work(server, client):
  return server + client

at_server, at_clients = (tff.FederatedType(state, p) for p in (tff.SERVER, tff.CLIENTS))

@tff.federated_computation(at_server, at_clients)
def run(server, clients):
  new = tff.federated_map(work, (tff.federated_broadcast(server), clients))
  return new, tff.federated_sum(new)

moved, converted = [], []
on_device, to_tensor = values.on_device, values.to_tensor

def note_move(value, device):
  result = on_device(value, device)
  if result is not value:
    moved.append((value.device[-5:], result.device[-5:]))
  return result

def note_conversion(value):
  result = to_tensor(value)
  if result is not value:
    converted.append(result.device[-5:])
  return result

values.on_device, values.to_tensor = note_move, note_conversion
clients = [np.full([3], i, np.float32) for i in range(4)]
new, total = context.invoke(run, (np.ones([3], np.float32), clients))
print([x.tolist() for x in new], total.tolist())
print(sorted(converted))
print(sorted(collections.Counter(moved).items()))
"""


def test_states_are_moved_in_the_clients_turn_and_come_back_to_the_host(run_python):
  results, converted, moved = run_python(_STATES).splitlines()
  assert (
    results
    == '[[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [3.0, 3.0, 3.0], [4.0, 4.0, 4.0]] [10.0, 10.0, 10.0]'
  )
  # Each client's state is made a tensor where the client trains.
  assert converted == "['CPU:1', 'CPU:1', 'CPU:2', 'CPU:2']"
  # The server's value goes to each device once, each result to the host.
  assert moved == str(
    [
      (('CPU:0', 'CPU:1'), 1),
      (('CPU:0', 'CPU:2'), 1),
      (('CPU:1', 'CPU:0'), 2),
      (('CPU:2', 'CPU:0'), 2),
    ]
  )


def test_a_state_that_comes_back_as_it_was_is_a_copy():
  context = runtime.create_in_process_context()
  kind = tff.TensorType(np.float32, [2])

  @tff.federated_computation(tff.FederatedType(kind, tff.CLIENTS))
  def run(x):
    return x

  given = [np.zeros([2], np.float32)]
  found = context.invoke(run, given)
  np.testing.assert_array_equal(found[0], given[0])
  assert found[0] is not given[0]
