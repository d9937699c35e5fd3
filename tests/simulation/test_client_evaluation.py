# SPDX-License-Identifier: Apache-2.0
"""Accuracies by client, by class and after local steps, against counts in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, simulation, tasks
from fednar_tff.tasks import batches
from tests.simulation import numpy_reference

pytestmark = pytest.mark.usefixtures('in_process_runtime')


def random_weights(task, scale=0.5):
  generator = np.random.default_rng(0)
  shapes = [v.shape for v in task.model_fn().trainable_variables]
  return tff.learning.models.ModelWeights(
    [(scale * generator.normal(size=s)).astype(np.float32) for s in shapes], []
  )


def examples_of(task, client_id):
  """A client's examples, from the data set that TFF's pipelines see."""
  dataset = task.datasets.train_data.create_tf_dataset_for_client(client_id)
  found = list(dataset.as_numpy_iterator())
  return np.stack([e['x'] for e in found]), np.array([e['y'] for e in found])


@pytest.mark.parametrize('name', ['digits', 'synthetic'])
def test_accuracy_by_client_is_a_count(name):
  task = tasks.create_task(name, num_clients=12, partition='dirichlet_unequal', alpha=0.5)
  weights = random_weights(task)
  found = simulation.build_client_evaluation(task)(weights)
  expected = []
  for client_id in task.partition.client_ids:
    x, y = examples_of(task, client_id)
    expected.append(np.mean(numpy_reference.forward(weights.trainable, x)[1].argmax(-1) == y))
  np.testing.assert_allclose(found, expected, rtol=1e-12)
  assert len(set(found)) > 3


@pytest.mark.parametrize('name', ['digits', 'synthetic'])
def test_confusion_and_accuracy_of_the_test_set_agree(name):
  task = tasks.create_task(name, num_clients=5)
  weights = random_weights(task)
  test = task.datasets.get_centralized_test_data()
  labels, guesses = simulation.build_prediction(task.model_fn)(weights, test)
  classes = int(labels.max()) + 1
  found = simulation.confusion_matrix(labels, guesses, classes)
  expected = np.zeros([classes, classes], int)
  for batch in test.as_numpy_iterator():
    for label, guess in zip(
      batch['y'], numpy_reference.forward(weights.trainable, batch['x'])[1].argmax(-1)
    ):
      expected[label, guess] += 1
  np.testing.assert_array_equal(found, expected)
  metrics = simulation.build_evaluation(task.model_fn, test)(weights)
  assert metrics['accuracy'] == pytest.approx(np.trace(found) / found.sum(), abs=1e-6)


def test_summary_by_hand():
  accuracies, sizes = [0.9, 0.2, 0.6, 0.4, 0.8, 0.5, 0.7, 1.0, 0.3, 0.1, 0.0], [1] * 10 + [3]
  alike = simulation.summarize_clients(accuracies)
  assert alike.mean == pytest.approx(np.mean(accuracies))
  assert alike.deviation == pytest.approx(np.std(accuracies))
  assert alike.worst_tenth == pytest.approx((0.0 + 0.1) / 2)  # Two of eleven clients.
  weighted = simulation.summarize_clients(accuracies, sizes)
  every_example = np.repeat(accuracies, sizes)
  assert weighted.mean == pytest.approx(every_example.mean())
  assert weighted.deviation == pytest.approx(every_example.std())
  assert weighted.worst_tenth == pytest.approx((3 * 0.0 + 0.1) / 4)
  assert simulation.summarize_clients(accuracies[:10]).worst_tenth == pytest.approx(0.1)


def test_personalization_is_local_steps_of_the_optimizer():
  task = tasks.create_task('synthetic', num_clients=8, alpha=0.3, partition='dirichlet_unequal')
  weights = random_weights(task)
  personalize = simulation.build_personalization(
    task, optimizers.build_nar(0.3, 0.05, 1.0), local_steps=7, batch_size=6, seed=3
  )
  found = personalize(weights)
  before, after, sizes, ids = [], [], [], []
  for index, client_id in enumerate(task.partition.client_ids):
    x, y = examples_of(task, client_id)  # In the order of the rows.
    if len(x) < 2:
      continue
    order = np.random.default_rng([3, index]).permutation(len(x))
    held, kept = order[: max(1, len(x) // 5)], np.sort(order[max(1, len(x) // 5) :])
    plan = batches.make_index(len(kept), client_id, 0, batch_size=6, local_steps=7, seed=3)
    own = numpy_reference.nar_steps(weights.trainable, x[kept], y[kept], plan, 0.3, 0.05, 1.0)
    before.append(
      np.mean(numpy_reference.forward(weights.trainable, x[held])[1].argmax(-1) == y[held])
    )
    after.append(np.mean(numpy_reference.forward(own, x[held])[1].argmax(-1) == y[held]))
    sizes.append(len(held))
    ids.append(client_id)
  assert found.client_ids == tuple(ids)
  np.testing.assert_array_equal(found.num_examples, sizes)
  np.testing.assert_allclose(found.before, before, rtol=1e-12)
  np.testing.assert_allclose(found.after, after, rtol=1e-12)
  assert found.after.mean() > found.before.mean() + 0.1


def test_a_run_writes_the_summary_in_its_rounds(tmp_path):
  task = tasks.create_task('synthetic', num_clients=11)
  process = algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    loop_implementation=algorithms.PACKED,
  )
  sizes = {'clients_per_round': 3, 'batch_size': 10, 'local_steps': 2}
  run = simulation.run(
    task, process, total_rounds=5, rounds_per_client_evaluation=2, output_dir=tmp_path, **sizes
  )
  rows = [progress.metrics for progress in run]
  measured = [row['client_accuracy_worst_tenth'] is not None for row in rows]
  assert measured == [False, True, False, True, True]
  leaves = [np.asarray(w) for w in run.model_weights.trainable]
  accuracies = []
  for client_id in task.partition.client_ids:
    x, y = examples_of(task, client_id)
    accuracies.append(np.mean(numpy_reference.forward(leaves, x)[1].argmax(-1) == y))
  assert rows[-1]['client_accuracy_mean'] == pytest.approx(np.mean(accuracies), abs=1e-6)
  assert rows[-1]['client_accuracy_deviation'] == pytest.approx(np.std(accuracies), abs=1e-6)
  worst = np.mean(np.sort(accuracies)[:2])
  assert rows[-1]['client_accuracy_worst_tenth'] == pytest.approx(worst, abs=1e-6)
  with pytest.raises(simulation.RunDirectoryError, match='rounds_per_client_evaluation'):
    simulation.run(task, process, total_rounds=5, output_dir=tmp_path, **sizes)
  with pytest.raises(ValueError, match='`rounds_per_client_evaluation` must be a positive integer'):
    simulation.run(task, process, total_rounds=5, rounds_per_client_evaluation=0, **sizes)


def test_only_classifiers_are_counted():
  def model_fn():
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential([tf.keras.layers.Reshape([2, 2], input_shape=(4,))]),
      loss=tf.keras.losses.MeanSquaredError(),
      input_spec={'x': tf.TensorSpec([None, 4]), 'y': tf.TensorSpec([None, 2, 2])},
    )

  dataset = tf.data.Dataset.from_tensors({'x': np.zeros([3, 4]), 'y': np.zeros([3, 2, 2])})
  dataset = dataset.map(lambda b: {k: tf.cast(v, tf.float32) for k, v in b.items()})
  with pytest.raises(ValueError, match='Only classifiers have classes'):
    simulation.build_prediction(model_fn)(tff.learning.models.ModelWeights([], []), dataset)
