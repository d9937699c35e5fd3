# SPDX-License-Identifier: Apache-2.0
"""The asynchronous in-process context: the same results, in order, while the program's loop goes
on."""

import asyncio
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import runtime

_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32)
def _square(x):
  return x * x


@tff.federated_computation(_CLIENTS)
def _sum_of_squares(values):
  return tff.federated_sum(tff.federated_map(_square, values))


@tff.tensorflow.computation(np.int64)
def _count(limit):
  return tf.while_loop(lambda i: i < limit, lambda i: [i + 1], [tf.constant(0, tf.int64)])[0]


@pytest.fixture
def context():
  return runtime.create_async_in_process_context()


def test_calls_are_awaited_and_give_the_result_of_the_synchronous_context(context):
  async def program():
    return await asyncio.gather(*(_sum_of_squares([1.0, 2.0, float(i)]) for i in range(5)))

  with tff.framework.get_context_stack().install(context):
    assert asyncio.run(program()) == [5.0 + i * i for i in range(5)]
  assert context.describe()['clients_by_device'] == {'/device:CPU:0': 15}


def test_a_federated_program_passes_references_on(context):
  async def program():
    total = _sum_of_squares([1.0, 2.0])
    assert isinstance(total, tff.program.NativeValueReference)
    return await tff.program.materialize_value(_square(total))

  federated = tff.program.NativeFederatedContext(context)
  with tff.framework.get_context_stack().install(federated):
    assert asyncio.run(program()) == 25.0


def test_the_loop_goes_on_while_a_computation_runs_and_a_cancelled_one_stops(context):
  async def program():
    ticks = 0
    running = asyncio.ensure_future(_count(np.int64(10**12)))  # For hours.
    waiting = asyncio.ensure_future(_square(3.0))
    for _ in range(20):
      await asyncio.sleep(0.05)
      ticks += 1
    assert not running.done() and not waiting.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
      await running
    return ticks, await asyncio.wait_for(waiting, 20)

  start = time.monotonic()
  with tff.framework.get_context_stack().install(context):
    assert asyncio.run(program()) == (20, 9.0)
  assert time.monotonic() - start < 60


def test_errors_of_clients_arrive_where_they_are_awaited(context):
  @tff.tensorflow.computation(np.float32)
  def fail(x):
    with tf.control_dependencies([tf.debugging.assert_positive(x, 'not positive')]):
      return tf.identity(x)

  @tff.federated_computation(_CLIENTS)
  def federated(values):
    return tff.federated_sum(tff.federated_map(fail, values))

  async def program():
    with pytest.raises(runtime.ClientError, match='Client 1 failed.*not positive'):
      await federated([1.0, -1.0, 2.0])
    return await federated([1.0, 2.0])

  with tff.framework.get_context_stack().install(context):
    assert asyncio.run(program()) == 3.0


def test_arguments_are_those_of_the_synchronous_context():
  with pytest.raises(ValueError, match='`num_threads` must be at least 1, found 0'):
    runtime.create_async_in_process_context(num_threads=0)
  before = threading.active_count()
  runtime.create_async_in_process_context()
  assert threading.active_count() == before  # No thread before it is needed.
