# SPDX-License-Identifier: Apache-2.0
"""The remote runtime, on workers of this machine: results, lost workers, silent addresses."""

import collections
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import runtime
from fednar_tff.runtime import worker
from fednar_tff.runtime.workers import launcher

_INTS = tff.FederatedType(np.int32, tff.CLIENTS)
_SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 3]), y=tf.TensorSpec([None, 1]))


@tff.federated_computation(_INTS)
def _add(x):
  return tff.federated_sum(x)


def _model_fn():
  model = tf.keras.Sequential(
    [tf.keras.layers.InputLayer([3]), tf.keras.layers.Dense(1, kernel_initializer='ones')]
  )
  return tff.learning.models.from_keras_model(
    model, loss=tf.keras.losses.MeanSquaredError(), input_spec=_SPEC
  )


@pytest.fixture
def start_workers():
  started = []

  def start(number):
    started.extend(launcher.WorkerProcess() for _ in range(number))
    return started

  yield start
  for process in started:
    process.stop()


def _context(workers):
  return runtime.create_remote_context([f'localhost:{w.port}' for w in workers])


def _train(context, process, data, num_rounds=2):
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()
    for _ in range(num_rounds):
      output = process.next(state, data)
      state = output.state
  return output


def test_remote_workers_train_as_one_process_does(start_workers):
  rng = np.random.default_rng(0)
  data = []
  for _ in range(5):
    examples = collections.OrderedDict(
      x=rng.normal(size=[8, 3]).astype(np.float32), y=rng.normal(size=[8, 1]).astype(np.float32)
    )
    data.append(tf.data.Dataset.from_tensor_slices(examples).batch(4))
  process = tff.learning.algorithms.build_weighted_fed_avg(
    _model_fn, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)
  )
  workers = start_workers(2)
  context = _context(workers)
  remote = _train(context, process, data)
  expected = _train(runtime.create_in_process_context(), process, data)
  assert type(remote) is type(expected) and type(remote.state) is type(expected.state)
  for x, y in zip(
    remote.state.global_model_weights.trainable,
    expected.state.global_model_weights.trainable,
    strict=True,
  ):
    np.testing.assert_allclose(x, y, rtol=1e-5)

  # One worker dies in mid-round: the run ends with the same weights.
  killer = threading.Timer(0.3, workers[0].stop)
  killer.start()
  faulty = _train(context, process, data, num_rounds=12)
  killer.join()
  expected = _train(runtime.create_in_process_context(), process, data, num_rounds=12)
  assert context.describe()['lost_workers'] == (f'localhost:{workers[0].port}',)
  for x, y in zip(
    faulty.state.global_model_weights.trainable,
    expected.state.global_model_weights.trainable,
    strict=True,
  ):
    np.testing.assert_allclose(x, y, rtol=1e-5)


def test_a_worker_that_dies_in_the_middle_of_a_computation_is_replaced(start_workers):
  @tff.tensorflow.computation(np.int32)
  def slow(x):
    end = tf.while_loop(lambda i: i < 400_000, lambda i: (i + 1,), (0,))[0]
    return x + 0 * end

  @tff.federated_computation(_INTS)
  def run(x):
    return tff.federated_sum(tff.federated_map(slow, x))

  workers = start_workers(2)
  context = _context(workers)
  assert context.invoke(_add, [1, 2, 3]) == 6
  started = time.monotonic()
  killed_after = []

  def kill():
    workers[1].stop()
    killed_after.append(time.monotonic() - started)

  killer = threading.Timer(0.5, kill)
  killer.start()
  assert context.invoke(run, [1, 2, 3, 4]) == 10
  finished_after = time.monotonic() - started
  killer.join()
  assert killed_after[0] < finished_after
  assert context.describe()['lost_workers'] == (f'localhost:{workers[1].port}',)

  workers[0].stop()
  with pytest.raises(runtime.WorkerLostError, match=f'No worker is left.*{workers[0].port}'):
    context.invoke(_add, [1, 2])


def test_values_of_clients_come_back_in_client_order(start_workers):
  @tff.tensorflow.computation(np.int32)
  def count(x):
    return tf.while_loop(lambda i: i < x, lambda i: (i + 1,), (0,))[0]

  @tff.federated_computation(_INTS)
  def run(x):
    counted = tff.federated_map(count, x)
    return tff.federated_sum(counted), counted

  # The first worker has much more to do.
  counts = [200_000, 200_001, 1, 2, 3]
  total, found = _context(start_workers(2)).invoke(run, counts)
  assert (total, found) == (sum(counts), counts)


def test_a_silent_address_is_named_within_seconds():
  with socket.socket() as unused:
    unused.bind(('localhost', 0))
    port = unused.getsockname()[1]
  started = time.monotonic()
  with pytest.raises(
    runtime.WorkerLostError, match=f'localhost:{port}.*fednar_tff.runtime.worker'
  ) as error:
    runtime.set_remote_context([f'localhost:{port}'])
  assert '\n' not in str(error.value)
  assert time.monotonic() - started < 15


@pytest.mark.parametrize('workers', [[], ['localhost'], [':80'], ['host:http'], ['host:99999']])
def test_bad_addresses_are_refused(workers):
  with pytest.raises(ValueError, match='`workers` must be '):
    runtime.set_remote_context(workers)


def test_the_help_text_warns(capsys):
  with pytest.raises(SystemExit):
    worker.main(['--help'])
  text = capsys.readouterr().out
  assert 'no authentication' in text and 'ssh' in text


def test_a_worker_on_a_port_that_cannot_be_does_not_announce_success(capsys):
  with pytest.raises(SystemExit) as ended:
    worker.main(['--port=99999'])
  assert ended.value.code == 2
  assert '`port` must be from 1 to 65535, found 99999' in _one_line_of(capsys)
  with socket.socket() as busy:
    busy.bind(('', 0))
    busy.listen()
    port = busy.getsockname()[1]
    assert worker.main([f'--port={port}']) == 1
  assert f'Cannot listen on port {port}: Address already in use' in _one_line_of(capsys)


def test_two_workers_do_not_share_a_port(start_workers, capsys):
  (first,) = start_workers(1)
  assert first.wait_until_ready(60)
  assert worker.main([f'--port={first.port}']) == 1
  assert f'port {first.port}: Address already in use' in _one_line_of(capsys)


def _one_line_of(capsys):
  captured = capsys.readouterr()
  assert captured.out == '' and len(captured.err.splitlines()) == 1
  return captured.err


def test_the_worker_program_serves_and_ends_with_its_worker(start_workers):
  with socket.socket() as unused:
    unused.bind(('localhost', 0))
    port = unused.getsockname()[1]
  program = subprocess.Popen(
    [sys.executable, '-m', 'fednar_tff.runtime.worker', f'--port={port}'],
    stdout=subprocess.PIPE,
    text=True,
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
  )
  try:
    assert f'port {port}' in program.stdout.readline()
    assert runtime.create_remote_context([f'localhost:{port}']).invoke(_add, [1, 2]) == 3
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=20) == 0
    with socket.socket() as probe:
      assert probe.connect_ex(('localhost', port)) != 0
  finally:
    program.kill()
    program.wait()
    program.stdout.close()
