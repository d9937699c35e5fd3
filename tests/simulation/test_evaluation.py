"""Evaluation on the whole test set."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import simulation

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
