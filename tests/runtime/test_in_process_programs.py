# SPDX-License-Identifier: Apache-2.0
"""What a test must look at from outside a process: devices, memory, threads and Ctrl-C."""

import os
import signal
import time

import pytest

_DEVICES = """
import collections, sys
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from fednar_tff import runtime

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
runtime.set_in_process_context(devices=['CPU:1', 'CPU:2', 'CPU:3'])
tf.debugging.set_log_device_placement(True)

spec = collections.OrderedDict(x=tf.TensorSpec([None, 6]), y=tf.TensorSpec([None, 1]))

def model_fn():
  model = tf.keras.Sequential([tf.keras.layers.InputLayer([6]), tf.keras.layers.Dense(1)])
  return tff.learning.models.from_keras_model(
    model, loss=tf.keras.losses.MeanSquaredError(), input_spec=spec)

process = tff.learning.algorithms.build_weighted_fed_avg(
  model_fn, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
  loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR)
data = tf.data.Dataset.from_tensors(collections.OrderedDict(x=tf.ones([4, 6]), y=tf.ones([4, 1])))
state = process.initialize()
before = sys.stderr.write('rounds start\\n')
state = process.next(state, [data] * 7).state
print(runtime.describe())
"""


def test_clients_train_on_the_devices_that_were_chosen(start_python, tmp_path):
  log = tmp_path / 'placement'
  with open(log, 'w') as stderr:
    process = start_python(_DEVICES, stderr=stderr, log_level='0')
    output, _ = process.communicate(timeout=200)
  assert process.returncode == 0, log.read_text()[-3000:]
  assert "'clients_by_device': {'CPU:1': 3, 'CPU:2': 2, 'CPU:3': 2}" in output
  # TensorFlow logs each op that it executes with its device: the products of forward and backward
  # pass.
  products = [
    line for line in log.read_text().splitlines() if '(MatMul)' in line or '_MklMatMul' in line
  ]
  used = {line.rsplit('device:', 1)[1].strip() for line in products}
  assert used == {'CPU:1', 'CPU:2', 'CPU:3'}


_INTERRUPTED = """
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from fednar_tff import runtime

@tff.tensorflow.computation(np.int64)
def spin(limit):
  return tf.while_loop(lambda i: i < limit, lambda i: (i + 1,), (tf.constant(0, tf.int64),))[0]

@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def run(x):
  return tff.federated_sum(tff.federated_map(spin, x))

runtime.set_in_process_context(num_threads=2)
assert run([1, 2, 3]) == 6
print('ready', flush=True)
try:
  run([10**12] * 10)
except KeyboardInterrupt:
  assert run([1, 2, 3]) == 6
  print('interrupted', flush=True)
"""


def test_ctrl_c_stops_the_clients_at_once(start_python):
  process = start_python(_INTERRUPTED)
  assert process.stdout.readline() == 'ready\n'
  time.sleep(1)
  process.send_signal(signal.SIGINT)
  assert process.stdout.readline() == 'interrupted\n'
  assert process.wait(timeout=20) == 0


_MEMORY = """
import collections, resource, sys
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from fednar_tff import runtime

num_clients, num_rounds, size = map(int, sys.argv[1:])
runtime.set_in_process_context(num_threads=2)
array = tff.TensorType(np.float32, [size])

@tff.tensorflow.computation(tff.SequenceType(np.int64))
def train(data):
  weights = tf.Variable(tf.zeros([size]))
  total = data.reduce(tf.constant(0, tf.int64), lambda s, x: s + x)
  with tf.control_dependencies([weights.assign_add(tf.fill([size], tf.cast(total, tf.float32)))]):
    return weights.read_value()

@tff.federated_computation(tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS))
def run(data):
  return tff.federated_mean(tff.federated_map(train, data))

def resident():
  with open('/proc/self/statm') as file:
    return int(file.read().split()[1]) * resource.getpagesize() / 2**20

data = [tf.data.Dataset.range(i % 5) for i in range(num_clients)]
expected = np.mean([sum(range(i % 5)) for i in range(num_clients)])
for number in range(1, num_rounds + 1):
  np.testing.assert_allclose(run(data)[0], expected, rtol=1e-5)
  if number == 20:
    print(resident())
print(resident())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)
"""


def test_memory_does_not_grow_with_the_rounds(run_python):
  after_20, after_200, _ = map(float, run_python(_MEMORY, '4', '200', '50000').split())
  assert after_200 < 1.05 * after_20


@pytest.mark.slow
def test_memory_does_not_grow_with_the_clients(run_python):
  # Each client sends 20 MB: 480 more of them send 9,600. How many are in memory at the same time
  # hangs on how fast the threads are: on a busy machine 80 to 250 MB more were seen, and 200 to 290
  # with 1,500 clients.
  few = float(run_python(_MEMORY, '20', '1', '5000000').split()[-1])
  many = float(run_python(_MEMORY, '500', '1', '5000000').split()[-1])
  assert many < few + 500


_THREADS = """
import tensorflow as tf
from fednar_tff import runtime
runtime.set_in_process_context()
print(runtime.describe()['intra_op_threads'], runtime.describe()['num_threads'])
"""


def test_each_op_has_one_thread_and_each_core_a_client(run_python):
  assert run_python(_THREADS).split() == ['1', str(os.cpu_count())]


@pytest.mark.parametrize(
  'setting', ['tf.constant(1)', 'tf.config.threading.set_intra_op_parallelism_threads(3)']
)
def test_the_users_own_threads_are_left_alone(run_python, setting):
  program = _THREADS.replace('runtime.set_in', f'{setting}\nruntime.set_in', 1)
  assert run_python(program).split()[0] == ('3' if '3' in setting else '0')
