# SPDX-License-Identifier: Apache-2.0
"""The cluster runtime, on a Ray of this machine: results, bytes, lost workers, nothing left behind.

`test_agreement.py` compares it with TFF's own runtime; `test_cluster_driver.py` has how its driver
begins and ends, `test_cluster_slow.py` what takes long.
"""

import importlib.util
import os
import signal
import threading

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, runtime, simulation, tasks
from fednar_tff.runtime.cluster import context as cluster_context
from fednar_tff.runtime.cluster import team
from tests.runtime import cluster_support as support

# Not `importorskip`: Ray is to be imported by the runtime.
pytestmark = pytest.mark.skipif(
  importlib.util.find_spec('ray') is None, reason='needs the extra [cluster]'
)

# With the arguments of their own.
_ALGORITHMS = {
  'fed_avg': {},
  'fed_prox': {'proximal_strength': 0.1},
  'scaffold': {'num_clients': 6},
  'fed_exp': {},
  'fed_adam': {},
  'fed_avgm': {},
}


@tff.federated_computation(support.FLOATS)
def _roots(x):
  return tff.federated_map(support.slow_square_root, x)


@pytest.fixture(scope='module')
def cluster():
  return runtime.create_cluster_context(num_workers=2, object_store_memory=2 * 10**8)


@pytest.fixture(scope='module')
def task():
  return tasks.create_task('synthetic', num_clients=6)


@pytest.mark.parametrize(
  ('num_clients', 'num_pieces'), [(20, 8), (1, 8), (3, 8), (500, 16), (7, 1)]
)
def test_pieces_are_all_clients_in_order_and_small_at_the_end(num_clients, num_pieces):
  pieces = cluster_context.cut(num_clients, num_pieces)
  assert [i for piece in pieces for i in piece] == list(range(num_clients))
  assert 1 <= len(pieces) <= num_pieces and len(pieces[-1]) <= len(pieces[0])


@pytest.mark.parametrize(
  'algorithm',
  [
    pytest.param(name, marks=() if name == 'scaffold' else pytest.mark.slow) for name in _ALGORITHMS
  ],
)
def test_algorithms_train_as_in_process_and_resume_to_the_same_bits(
  cluster, task, algorithm, tmp_path
):
  process = algorithms.get_builder(algorithm)(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    loop_implementation=algorithms.PACKED,
    **_ALGORITHMS[algorithm],
  )

  def start(path, total_rounds=4):
    return simulation.run(
      task,
      process,
      output_dir=path,
      total_rounds=total_rounds,
      clients_per_round=4,
      batch_size=10,
      local_steps=2,
      rounds_per_evaluation=2,
      rounds_per_checkpoint=2,
      seed=4,
    )

  with tff.framework.get_context_stack().install(cluster):
    whole = start(tmp_path / 'whole')
    whole.finish()
    start(tmp_path / 'parts', total_rounds=2).finish()
    parts = start(tmp_path / 'parts')
    assert parts.round_num == 2
    parts.finish()
  with tff.framework.get_context_stack().install(runtime.create_in_process_context()):
    expected = start(tmp_path / 'in_process')
    expected.finish()
  metrics = [(tmp_path / name / 'metrics.csv').read_bytes() for name in ('whole', 'parts')]
  assert metrics[0] == metrics[1]
  for x, y, z in zip(_values(whole), _values(parts), _values(expected), strict=True):
    np.testing.assert_array_equal(x, y)
    np.testing.assert_allclose(x, z, rtol=1e-5, atol=1e-5)


def _values(run):
  values = [np.asarray(w) for w in tf.nest.flatten(list(run.model_weights.trainable))]
  if run.client_states is not None:
    ids = run.client_states.client_ids()
    assert ids
    values += [np.asarray(x) for x in tf.nest.flatten(run.client_states.get(ids))]
  return values


def test_the_result_does_not_depend_on_who_is_faster(cluster):
  expected = cluster.invoke(support.sum_of_roots, support.NUMBERS)
  slow = psutil.Process(support.worker_pids(cluster)[0])
  slow.suspend()
  threading.Timer(1.0, slow.resume).start()
  assert cluster.invoke(support.sum_of_roots, support.NUMBERS) == expected
  np.testing.assert_allclose(expected, np.sum(np.sqrt(support.NUMBERS)), rtol=1e-6)
  assert cluster.describe()['lost_workers'] == 0


def test_values_of_clients_come_back_in_client_order(cluster):
  slow = psutil.Process(support.worker_pids(cluster)[0])
  slow.suspend()
  threading.Timer(1.0, slow.resume).start()
  np.testing.assert_allclose(
    cluster.invoke(_roots, support.NUMBERS), np.sqrt(support.NUMBERS), rtol=1e-6
  )


def test_a_client_that_fails_is_named(cluster):
  @tff.tensorflow.computation(np.float32)
  def check(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, 20.0)]):
      return tf.identity(x)

  @tff.federated_computation(support.FLOATS)
  def run(x):
    return tff.federated_sum(tff.federated_map(check, x))

  with pytest.raises(runtime.ClientError, match='^Client 19 failed') as error:
    cluster.invoke(run, support.NUMBERS[:20])
  assert error.value.client_index == 19 and '\n' not in str(error.value)
  assert cluster.invoke(run, support.NUMBERS[:3]) == 6  # The workers go on.


def test_a_round_sends_weights_updates_and_indices_only(cluster):
  task = tasks.create_task('digits', num_clients=20)
  process = algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01),
    loop_implementation=algorithms.PACKED,
  )
  arrays = sum(leaf.numpy().nbytes for leaf in tf.nest.flatten(task._arrays))
  sent = []
  with tff.framework.get_context_stack().install(cluster):
    state = process.initialize()
    for round_num in range(2):
      data = [
        task.packed_client(i, round_num, batch_size=20, local_steps=5, seed=0)
        for i in task.partition.client_ids
      ]
      state = process.next(state, data).state
      sent.append(cluster.describe()['bytes_in_last_round'])
  assert arrays <= sent[0]['data'] <= 2 * 1.01 * arrays  # At most once to each worker.
  assert set(sent[1]) == {'clients', 'results', 'server_values'}
  weights = sum(w.nbytes for w in tf.nest.flatten(list(process.get_model_weights(state).trainable)))
  num_pieces = len(cluster_context.cut(20, 8))
  indices = 20 * 5 * (20 + 2) * 4  # Of each of 20 clients: 5 batches of 20 rows, and 2 seeds each.
  assert sum(sent[1].values()) <= 1.1 * (2 * weights + num_pieces * weights + indices)
  assert sent[1]['clients'] < 3 * indices


def test_a_dataset_that_is_given_again_is_not_sent_again(cluster):
  @tff.tensorflow.computation(tff.SequenceType(np.float32))
  def add(dataset):
    return dataset.reduce(np.float32(0), lambda x, y: x + y)

  @tff.federated_computation(tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS))
  def run(x):
    return tff.federated_sum(tff.federated_map(add, x))

  datasets = [tf.data.Dataset.from_tensor_slices(np.ones([10_000], np.float32)) for _ in range(4)]
  before = len(cluster._store.keys)
  for _ in range(2):
    assert cluster.invoke(run, datasets) == 40_000
    assert cluster.describe()['bytes_in_last_round']['clients'] < 10_000
  assert len(cluster._store.keys) == before + 5  # With the computation.
  del datasets
  assert len(cluster._store.keys) == before + 1


def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(cluster):
  expected = cluster.invoke(support.sum_of_roots, support.NUMBERS)
  victim = psutil.Process(support.worker_pids(cluster)[0])
  victim.suspend()  # So that it surely has a piece when it dies.
  threading.Timer(0.5, victim.kill).start()
  assert cluster.invoke(support.sum_of_roots, support.NUMBERS) == expected
  assert cluster.describe()['lost_workers'] == 1
  support.wait_for_workers(cluster, 2)
  assert victim.pid not in support.worker_pids(cluster)
  assert cluster.invoke(support.sum_of_roots, support.NUMBERS) == expected


@pytest.mark.slow
def test_a_worker_that_hangs_counts_as_dead_after_a_stated_time(cluster, monkeypatch):
  expected = cluster.invoke(support.sum_of_roots, support.NUMBERS)
  monkeypatch.setattr(cluster._team, '_seconds_until_lost', 6.0)
  lost = cluster.describe()['lost_workers']
  psutil.Process(support.worker_pids(cluster)[1]).suspend()
  assert cluster.invoke(support.sum_of_roots, support.NUMBERS) == expected
  assert cluster.describe()['lost_workers'] == lost + 1
  monkeypatch.undo()
  support.wait_for_workers(cluster, 2)


@pytest.mark.slow
def test_no_worker_left_is_one_clear_error(cluster, monkeypatch):
  monkeypatch.setattr(team, '_SECONDS_TO_START', 0.2)
  for pid in support.worker_pids(cluster):
    os.kill(pid, signal.SIGKILL)
  with pytest.raises(runtime.WorkerLostError, match='No worker is left: all 2 are lost') as error:
    cluster.invoke(support.sum_of_roots, support.NUMBERS)
  assert '\n' not in str(error.value)
  monkeypatch.undo()
  support.wait_for_workers(cluster, 2)


def test_ray_listens_on_loopback_only(cluster):
  addresses = {
    connection.laddr.ip.removeprefix('::ffff:')
    for process in psutil.Process().children(recursive=True)
    if process.name() != 'worker_binary'  # TFF's, of another test.
    for connection in process.net_connections()
    if connection.status == psutil.CONN_LISTEN
  }
  assert addresses == {'127.0.0.1'}


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_workers': 0}, '`num_workers` must be at least 1, found 0'),
    ({'num_pieces': 0}, '`num_pieces` must be at least 1, found 0'),
    ({'gpus_per_worker': -1}, '`gpus_per_worker` must be at least 0, found -1'),
    ({'num_workers': 1000}, 'room for .* workers with 1 each; `num_workers` is 1000'),
    ({'gpus_per_worker': 1}, 'The cluster has 0 GPUs'),
    ({'address': '127.0.0.1:9'}, "and can be to one only; `address` is '127.0.0.1:9'"),
  ],
)
def test_what_cannot_be_is_refused_at_once(cluster, arguments, message):
  with pytest.raises(ValueError, match=message):
    runtime.set_cluster_context(**arguments)
