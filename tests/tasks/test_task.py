# SPDX-License-Identifier: Apache-2.0
import collections
import gc
import inspect
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import tasks
from tests import warm_command

_ROUND = dict(batch_size=7, local_epochs=2, seed=3)


def _input_spec(task):
  with tf.Graph().as_default():
    return task.model_fn().input_spec


def _create(name):
  return tasks.create_task(name, model='cnn') if name == 'cifar10' else tasks.create_task(name)


def _assert_equal(actual, expected):
  tf.nest.assert_same_structure(actual, expected)
  for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('name', ['digits', 'synthetic', 'cifar10'])
def test_is_a_baseline_task_that_fits_its_model(name, fake_cifar10):
  task = _create(name)
  assert isinstance(task, tff.simulation.baselines.BaselineTask)
  spec = _input_spec(task)
  assert task.datasets.element_type_structure == spec
  assert task.functional_model_fn().input_spec == spec
  assert task.datasets.get_centralized_test_data().element_spec == spec
  assert task.client_batches(task.partition.client_ids[0], 0, **_ROUND).element_spec == spec
  assert tuple(task.datasets.train_data.client_ids) == task.partition.client_ids
  (stock,) = task.datasets.sample_train_clients(1, random_seed=0)
  assert stock.element_spec == spec


@pytest.mark.parametrize('own_rows_only', [False, True])
@pytest.mark.parametrize('name', ['digits', 'cifar10'])
def test_packed_and_ordinary_batches_are_equal(name, own_rows_only, unpack, fake_cifar10):
  task = _create(name)
  spec = _input_spec(task)
  for client_id in task.partition.client_ids[:3]:
    ordinary = list(task.client_batches(client_id, 4, **_ROUND).as_numpy_iterator())
    packed = task.packed_client(client_id, 4, own_rows_only=own_rows_only, **_ROUND)
    unpacked = unpack(packed, spec)
    assert len(unpacked) == len(ordinary)
    for a, b in zip(unpacked, ordinary):
      _assert_equal(a, b)


@pytest.mark.parametrize('own_rows_only', [False, True])
def test_packed_clients_say_how_much_they_hold_if_asked(own_rows_only):
  task = tasks.create_task('digits', partition='dirichlet_unequal')
  sizes = [len(rows) for rows in task.partition.rows]
  assert len(set(sizes)) > 10
  arguments = dict(batch_size=2, local_steps=1, seed=0, own_rows_only=own_rows_only)
  for client_id, size in zip(task.partition.client_ids, sizes):
    plain, sized = (
      task.packed_client(client_id, 0, **arguments, with_size=with_size)
      for with_size in (False, True)
    )
    (element,) = sized.as_numpy_iterator()
    assert element.pop('num_examples') == size
    _assert_equal(element, next(plain.as_numpy_iterator()))


def test_an_epoch_is_the_clients_own_examples_once_each(fake_cifar10):
  task = _create('cifar10')
  for client_id, rows in zip(task.partition.client_ids[:5], task.partition.rows):
    batches = list(task.client_batches(client_id, 0, batch_size=2, local_epochs=1, seed=0))
    images = np.concatenate([b['x']['image'] for b in batches])
    expected = fake_cifar10['train']['image'].numpy()[rows]
    assert sorted(i.tobytes() for i in images) == sorted(i.tobytes() for i in expected)


def test_step_seeds_differ_between_steps_rounds_and_clients(fake_cifar10):
  task = _create('cifar10')
  seen = [
    tuple(batch['x']['seed'].numpy())
    for client_id in task.partition.client_ids[:2]
    for round_num in range(2)
    for batch in task.client_batches(client_id, round_num, batch_size=1, local_steps=3, seed=0)
  ]
  assert len(set(seen)) == 12


def test_clients_share_one_copy_of_the_data(fake_cifar10):
  task = _create('cifar10')
  buffers = []
  for client_id in task.partition.client_ids[:2]:
    (element,) = task.packed_client(client_id, 0, **_ROUND)
    buffers.append(np.asarray(memoryview(element['data']['x']['image'])))
  assert np.shares_memory(*buffers)


def test_client_data_serves_stock_pipelines():
  task = tasks.create_task('digits', num_clients=5)
  train_data = task.datasets.train_data
  client_id = task.partition.client_ids[2]
  direct = list(train_data.create_tf_dataset_for_client(client_id).as_numpy_iterator())
  assert len(direct) == len(task.partition.rows[2])
  traced = tf.function(
    lambda i: train_data.serializable_dataset_fn(i).batch(1000).get_single_element()
  )
  batch = traced(tf.constant(client_id))
  np.testing.assert_array_equal(batch['x'], np.stack([e['x'] for e in direct]))
  everyone = train_data.create_tf_dataset_from_all_clients(seed=0)
  assert sum(1 for _ in everyone) == 1437
  with pytest.raises(ValueError, match="'nobody'"):
    train_data.create_tf_dataset_for_client('nobody')


def test_stock_preprocessing_follows_the_client_spec():
  spec = tff.simulation.baselines.ClientSpec(num_epochs=3, batch_size=10, max_elements=25)
  task = tasks.create_task('synthetic', train_client_spec=spec)
  (client,) = task.datasets.sample_train_clients(1, random_seed=0)
  assert [len(batch['y']) for batch in client] == [10, 10, 5]


def test_test_data_is_whole_and_ordered(fake_cifar10):
  task = _create('cifar10')
  batches = list(task.datasets.get_centralized_test_data())
  images = np.concatenate([b['x']['image'] for b in batches])
  np.testing.assert_array_equal(images, fake_cifar10['test']['image'])
  assert all(b['x']['seed'].numpy().tolist() == [0, 0] for b in batches)


def test_each_seed_has_one_effect():
  def facts(**seeds):
    task = tasks.create_task('digits', **seeds)
    return task.partition.hash, task.model_fn().trainable_variables[0].numpy().tobytes()

  base = facts(seed=1)
  assert facts(seed=1) == base
  assert all(a != b for a, b in zip(facts(seed=2), base))
  assert facts(seed=2, partition_seed=1, model_seed=1) == base
  partition, weights = facts(seed=1, partition_seed=2)
  assert partition != base[0] and weights == base[1]
  partition, weights = facts(seed=1, model_seed=2)
  assert partition == base[0] and weights != base[1]


def _fingerprint():
  """The hashes of a partition, of some batches and of initial weights; also run by itself."""
  import hashlib

  import tensorflow as tf

  from fednar_tff import tasks

  task = tasks.create_task('digits', model='cnn', seed=3)
  batches = hashlib.sha256()
  for client_id in task.partition.client_ids[:4]:
    for batch in task.client_batches(client_id, 5, batch_size=8, local_steps=5, seed=2):
      for leaf in tf.nest.flatten(batch):
        batches.update(leaf.numpy().tobytes())
  weights = b''.join(v.numpy().tobytes() for v in task.model_fn().trainable_variables)
  return [task.partition.hash, batches.hexdigest(), hashlib.sha256(weights).hexdigest()]


def test_another_process_on_one_thread_gives_the_same_bits():
  program = [
    'import tensorflow',
    'tensorflow.config.threading.set_intra_op_parallelism_threads(1)',
    'tensorflow.config.threading.set_inter_op_parallelism_threads(1)',
    inspect.getsource(_fingerprint),
    'print(" ".join(_fingerprint()))',
  ]
  run = warm_command.run(['-c', '\n'.join(program)], os.getcwd(), os.environ)
  assert run.stdout.split()[-3:] == _fingerprint(), run.stderr


def test_bad_arguments_are_named():
  task = tasks.create_task('synthetic')
  with pytest.raises(ValueError, match="10 clients .*found 'nobody'"):
    task.packed_client('nobody', 0, **_ROUND)
  with pytest.raises(ValueError, match='Exactly one'):
    task.packed_client(task.partition.client_ids[0], 0, batch_size=1, seed=0)
  with pytest.raises(ValueError, match=r'must have 2 rows.*found \[3\]'):
    tasks.build_task(
      'wrong',
      train=collections.OrderedDict(x=np.zeros([3, 1]), y=np.zeros(3)),
      test=collections.OrderedDict(x=np.zeros([3, 1]), y=np.zeros(3)),
      partition=tasks.build_iid([0, 1], 2),
      model_fn=task.model_fn,
    )


def test_stock_tff_pipeline_trains_the_task():
  task = tasks.create_task('synthetic')
  sgd = tff.learning.optimizers.build_sgdm
  process = tff.learning.algorithms.build_weighted_fed_avg(
    task.model_fn, client_optimizer_fn=sgd(0.1), server_optimizer_fn=sgd(1.0)
  )
  state = process.initialize()
  for round_num in range(8):
    clients = task.datasets.sample_train_clients(5, random_seed=round_num)
    state = process.next(state, clients).state
  weights = process.get_model_weights(state)
  evaluate = tff.learning.algorithms.build_fed_eval(task.model_fn)
  evaluation_state = evaluate.set_model_weights(evaluate.initialize(), weights)
  test_data = task.datasets.get_centralized_test_data()
  metrics = evaluate.next(evaluation_state, [test_data]).metrics
  accuracy = metrics['client_work']['eval']['current_round_metrics']['accuracy']
  (batch,) = test_data.as_numpy_iterator()
  k0, b0, k1, b1 = weights.trainable
  guesses = (np.maximum(batch['x'] @ k0 + b0, 0) @ k1 + b1).argmax(axis=1)
  np.testing.assert_allclose(accuracy, np.mean(guesses == batch['y']), rtol=1e-6)
  assert accuracy > 0.7


def test_dropout_of_the_synthetic_task_draws_from_the_seed_of_the_step():
  dropped, plain = tasks.create_task('synthetic', dropout=0.5), tasks.create_task('synthetic')
  model, plain_model = dropped.functional_model_fn(), plain.functional_model_fn()
  x = next(iter(dropped.client_batches('client_0', 0, batch_size=8, local_steps=1, seed=1)))['x']
  other = {**x, 'seed': x['seed'] + 1}

  def predict(x, training):
    return np.asarray(model.predict_on_batch(model.initial_weights, x, training=training))

  np.testing.assert_array_equal(predict(x, True), predict(x, True))
  assert np.any(predict(x, True) != predict(other, True))
  np.testing.assert_array_equal(predict(x, False), predict(other, False))
  expected = plain_model.predict_on_batch(model.initial_weights, x['features'], training=False)
  np.testing.assert_array_equal(predict(x, False), expected)


def test_ordinary_batches_are_traced_once_for_all_clients(monkeypatch):
  task = tasks.create_task('synthetic', dropout=0.5)
  maps = []
  map_dataset = tf.data.Dataset.map
  monkeypatch.setattr(
    tf.data.Dataset, 'map', lambda self, fn, **kwargs: maps.append(fn) or map_dataset(self, fn)
  )
  for client_id in task.partition.client_ids[:3]:
    for batch_size in (3, 100):
      task.client_batches(client_id, 0, batch_size=batch_size, local_steps=2, seed=0)
  assert len(maps) == 1


def test_datasets_outlive_their_task_and_travel():
  """A runtime in another process gets the graph of a dataset, with the functions in it."""
  task = tasks.create_task('synthetic', dropout=0.5)
  client_id = task.partition.client_ids[0]
  made = [task.client_batches(client_id, 1, **_ROUND), task.packed_client(client_id, 1, **_ROUND)]
  expected = [list(dataset.as_numpy_iterator()) for dataset in made]
  graphs = [
    tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(dataset)).numpy()
    for dataset in made
  ]
  assert len(graphs[0]) < 20_000  # The client's own examples, not all.
  del task
  gc.collect()
  for dataset, batches in zip(made, expected, strict=True):
    for a, b in zip(dataset.as_numpy_iterator(), batches, strict=True):
      _assert_equal(a, b)
