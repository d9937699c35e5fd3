# SPDX-License-Identifier: Apache-2.0
"""The cluster runtime for many rounds and many clients."""

import importlib.util
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


def _train(context, num_rounds, num_clients=8, before_round=lambda round_num: None):
  """Trains on the digits images; returns the weights, and the memory of this process after each
  round."""
  task = tasks.create_task('digits', num_clients=num_clients)
  process = algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.05, 0.01),
    loop_implementation=algorithms.PACKED,
  )
  memory, seconds = [], []
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()
    for round_num in range(num_rounds):
      before_round(round_num)
      started = time.monotonic()
      data = [
        task.packed_client(i, round_num, batch_size=10, local_steps=20, seed=0)
        for i in task.partition.client_ids
      ]
      state = process.next(state, data).state
      seconds.append(time.monotonic() - started)
      memory.append(psutil.Process().memory_info().rss)
    weights = tf.nest.flatten(list(process.get_model_weights(state).trainable))
  return [np.asarray(w) for w in weights], memory, seconds


def test_200_rounds_with_a_worker_killed_every_20_lose_nothing(cluster):
  expected, _, _ = _train(cluster, 200)
  lost = cluster.describe()['lost_workers']

  def kill(round_num):
    if round_num % 20 == 10:
      support.wait_for_workers(cluster, 2)
      victim = psutil.Process(support.worker_pids(cluster)[round_num // 20 % 2])
      victim.suspend()  # So that it has a piece when it dies.
      threading.Timer(0.1, victim.kill).start()

  weights, memory, _ = _train(cluster, 200, before_round=kill)
  assert cluster.describe()['lost_workers'] == lost + 10
  for x, y in zip(weights, expected, strict=True):
    np.testing.assert_array_equal(x, y)
  assert memory[-1] < 1.05 * memory[40] + 20e6


def test_time_is_linear_and_memory_flat_in_the_number_of_clients(cluster):
  found = {}
  for num_clients in (20, 100, 500):
    _, memory, seconds = _train(cluster, 4, num_clients)
    found[num_clients] = (min(seconds[1:]), memory[-1] - memory[0])
  print({n: (f'{s:.2f} s', f'{m / 1e6:.0f} MB') for n, (s, m) in found.items()})
  assert found[500][0] < 1.5 * 5 * found[100][0]
  assert all(growth < 30e6 for _, growth in found.values())
