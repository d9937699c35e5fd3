# SPDX-License-Identifier: Apache-2.0
"""The cluster runtime for many rounds and many clients."""

import importlib.util
import os
import threading
import time

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, runtime, tasks
from tests.runtime import cluster_support as support

# Not `importorskip`: Ray is to be imported by the runtime.
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(importlib.util.find_spec('ray') is None, reason='needs the extra [cluster]'),
]


@pytest.fixture(scope='module')
def cluster():
  return runtime.create_cluster_context(num_workers=2, object_store_memory=2 * 10**8)


@pytest.fixture(scope='module')
def process():
  return algorithms.build_fed_avg(
    tasks.create_task('digits', num_clients=8).functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.05, 0.01),
    loop_implementation=algorithms.PACKED,
  )


def _memory(*pids):
  return sum(psutil.Process(pid).memory_info().rss for pid in pids)


def _train(context, process, num_rounds, num_clients=8, *, before_round=None, after_round):
  """Trains on the digits images; returns the weights, and what `after_round` says of each round."""
  task = tasks.create_task('digits', num_clients=num_clients)
  found = []
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()
    for round_num in range(num_rounds):
      if before_round is not None:
        before_round(round_num)
      started = time.monotonic()
      data = [
        task.packed_client(i, round_num, batch_size=10, local_steps=20, seed=0)
        for i in task.partition.client_ids
      ]
      state = process.next(state, data).state
      found.append(after_round(time.monotonic() - started))
    weights = tf.nest.flatten(list(process.get_model_weights(state).trainable))
  return [np.asarray(w) for w in weights], found


def test_200_rounds_with_a_worker_killed_every_20_lose_nothing(cluster, process):
  workers = support.worker_pids(cluster)

  def memory_of_all(_):
    return np.array([_memory(os.getpid()), _memory(*workers), len(cluster._store.keys)])

  def kill(round_num):
    if round_num % 20 == 10:
      support.wait_for_workers(cluster, 2)
      victim = psutil.Process(support.worker_pids(cluster)[round_num // 20 % 2])
      victim.suspend()  # So that it has a piece when it dies.
      threading.Timer(0.1, victim.kill).start()

  expected, without = _train(cluster, process, 200, after_round=memory_of_all)
  assert support.worker_pids(cluster) == workers
  weights, with_kills = _train(
    cluster,
    process,
    200,
    before_round=kill,
    after_round=lambda _: np.array([_memory(os.getpid()), 0, len(cluster._store.keys)]),
  )
  assert cluster.describe()['lost_workers'] == 10
  for x, y in zip(weights, expected, strict=True):
    np.testing.assert_array_equal(x, y)
  for name, found in (('without', without), ('with', with_kills)):
    driver, all_workers, stored = found[-1] - found[40]
    print(f'{name} kills, rounds 41 to 200: driver {driver / 1e6:+.1f} MB, '
          f'workers {all_workers / 1e6:+.1f} MB, {stored:+d} stored')  # fmt: skip
    assert driver < 20e6 and all_workers < 40e6 and stored == 0


def test_time_is_linear_and_memory_flat_in_the_number_of_clients(cluster, process):
  seconds, memory = {}, {}
  for num_clients in (20, 100, 500):
    _, found = _train(
      cluster, process, 4, num_clients, after_round=lambda s: (s, _memory(os.getpid()))
    )
    seconds[num_clients] = min(s for s, _ in found[1:])
    memory[num_clients] = found[-1][1]
    print(f'{num_clients} clients: {seconds[num_clients]:.2f} s a round, '
          f'driver {memory[num_clients] / 1e6:.0f} MB')  # fmt: skip
  for fewer, more in ((20, 100), (100, 500)):
    assert seconds[more] < 1.5 * 5 * seconds[fewer]
    assert memory[more] < memory[fewer] + 30e6
