# SPDX-License-Identifier: Apache-2.0
"""Evaluation on the test set, and on a sample of it."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, simulation, tasks

X = np.random.default_rng(0).normal(size=[25, 3]).astype(np.float32)
Y = np.arange(25, dtype=np.int32) % 4
SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 3]), y=tf.TensorSpec([None], tf.int32))


@pytest.mark.parametrize('as_constructors', [False, True], ids=['instances', 'constructors'])
def test_keras_models_are_evaluated_again_and_again(as_constructors):
  def model_fn():
    metric = tf.keras.metrics.SparseCategoricalAccuracy
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(3,), use_bias=False)]),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=SPEC,
      metrics=[metric if as_constructors else metric()],
    )

  dataset = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=X, y=Y)).batch(10)
  evaluate = simulation.build_evaluation(model_fn, dataset)
  assert 'sparse_categorical_accuracy' in evaluate.metric_names
  for seed in (1, 2):
    kernel = np.random.default_rng(seed).normal(size=[3, 4]).astype(np.float32)
    found = evaluate(tff.learning.models.ModelWeights([kernel], []))
    logits = X @ kernel
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(25), Y]
    np.testing.assert_allclose(
      found['sparse_categorical_accuracy'], np.mean(logits.argmax(-1) == Y), rtol=1e-6
    )
    np.testing.assert_allclose(found['loss'], losses.mean(), rtol=1e-5)


class TestSampleAndThreads:
  """Models of this package, in batches of 7 of 100 examples."""

  @pytest.fixture(scope='class')
  def data(self):
    generator = np.random.default_rng(1)
    x = collections.OrderedDict(features=generator.normal(size=[100, 8]).astype(np.float32))
    y = generator.integers(0, 4, [100]).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y)).batch(7)
    seed = np.array([1, 2], np.int32)
    return dataset.map(
      lambda b: collections.OrderedDict(x=collections.OrderedDict(b['x'], seed=seed), y=b['y'])
    )

  @pytest.fixture(scope='class')
  def model_fn(self):
    return tasks.create_task('synthetic', dropout=0.5).model_fn

  def weights(self, model_fn):
    return tff.learning.models.ModelWeights.from_model(model_fn())

  def test_the_number_of_threads_changes_no_bit(self, data, model_fn):
    weights = self.weights(model_fn)
    one, many = (
      simulation.build_evaluation(model_fn, data, num_threads=n)(weights) for n in (1, 4)
    )
    assert one == many
    assert one['num_examples'] == 100

  def test_batches_give_what_a_stream_does_to_the_bit(self, data, model_fn):
    def of_any_model():
      model = model_fn()
      model.metrics_are_sums = False
      return model

    weights = self.weights(model_fn)
    found, expected = (
      simulation.build_evaluation(f, data)(weights) for f in (model_fn, of_any_model)
    )
    assert found == expected

  def test_it_can_be_asked_again_with_other_weights(self, data, model_fn):
    weights = self.weights(model_fn)
    other = tff.learning.models.ModelWeights([-np.asarray(w) for w in weights.trainable], [])
    evaluate = simulation.build_evaluation(model_fn, data, num_threads=2)
    first, second, third = (evaluate(w) for w in (weights, other, weights))
    assert first == third != second

  def test_a_sample_is_a_part_of_the_examples_and_always_the_same(self, data, model_fn):
    weights = self.weights(model_fn)
    found = simulation.build_evaluation(model_fn, data, num_examples=30)(weights)
    assert found['num_examples'] == 30
    again = simulation.build_evaluation(model_fn, data, num_examples=30)(weights)
    assert found == again
    whole = simulation.build_evaluation(model_fn, data)(weights)
    assert found['loss'] != whole['loss']
    # More examples than there are: all.
    assert simulation.build_evaluation(model_fn, data, num_examples=100)(weights) == whole
    assert simulation.build_evaluation(model_fn, data, num_examples=101)(weights) == whole

  def test_a_sample_of_nothing_is_refused(self, data, model_fn):
    with pytest.raises(ValueError, match='`num_examples` must be a positive integer or None'):
      simulation.build_evaluation(model_fn, data, num_examples=0)


@pytest.mark.usefixtures('in_process_runtime')
class TestRunsOnASample:
  """Rounds before the last are evaluated on the sample, the last on all test examples."""

  def rounds(self, seed, precision='float32', **changes):
    task = tasks.create_task('synthetic', num_clients=4, seed=seed, precision=precision)
    process = algorithms.build_fed_avg(
      task.functional_model_fn(),
      client_optimizer_fn=optimizers.build_nar(0.0, 0.0),  # The model stays what it is.
      loop_implementation=algorithms.PACKED,
    )
    arguments = {'total_rounds': 3, 'clients_per_round': 2, 'batch_size': 5, 'local_steps': 1}
    arguments |= {'rounds_per_evaluation': 1, 'seed': seed, **changes}
    run = simulation.run(task, process, **arguments)
    return run, [progress.metrics for progress in run]

  def test_the_last_round_takes_the_whole_set(self):
    run, rounds = self.rounds(1, evaluation_examples=50)
    _, whole = self.rounds(1)
    assert [m['test_num_examples'] for m in rounds] == [50, 50, whole[0]['test_num_examples']]
    assert whole[0]['test_num_examples'] > 50
    assert rounds[2]['test_loss'] == whole[2]['test_loss'] == np.float32(run.evaluate()['loss'])
    assert rounds[0]['test_loss'] == rounds[1]['test_loss'] != rounds[2]['test_loss']
    assert run.description['evaluation_examples'] == 50

  def test_the_sample_is_the_same_for_all_runs(self, monkeypatch):
    """Whatever their seed: the model is the same in both, and so must be what is measured."""
    found = [
      self.rounds(seed, evaluation_examples=50, total_rounds=2)[1][0]['test_loss']
      for seed in (1, 2)
    ]
    task = tasks.create_task('synthetic', num_clients=4, seed=1)
    evaluate = simulation.build_evaluation(
      tasks.create_task('synthetic', num_clients=4, seed=2).model_fn,
      task.datasets.get_centralized_test_data(),
      num_examples=50,
    )
    weights = tff.learning.models.ModelWeights.from_model(
      tasks.create_task('synthetic', num_clients=4, seed=2).model_fn()
    )
    assert found[0] != found[1]  # The initial weights are those of the seed.
    assert np.float32(evaluate(weights)['loss']) == found[1]

  def test_a_run_without_a_sample_is_described_as_before(self):
    run, _ = self.rounds(1, total_rounds=1)
    assert 'evaluation_examples' not in run.description

  def test_a_sample_of_nothing_is_refused(self):
    with pytest.raises(ValueError, match='`evaluation_examples` must be a positive integer'):
      self.rounds(1, evaluation_examples=0)
