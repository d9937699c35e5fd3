# SPDX-License-Identifier: Apache-2.0
"""FedProx's sign, on the smallest example there is."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms

INPUT_SPEC = collections.OrderedDict(x=tf.TensorSpec([None]), y=tf.TensorSpec([None]))


def quadratic():
  """One weight, 0 at first, and the loss `(w - 1)^2`."""

  @tf.function
  def predict(weights, x, training):
    del training
    return tf.zeros_like(x) + weights[0][0]

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([], np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean((output - label) ** 2),
    input_spec=INPUT_SPEC,
  )


@pytest.fixture
def two_steps():
  ones = np.ones([2, 1], np.float32)
  return [tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=ones, y=ones))]


def weight_after_one_round(process, data):
  state, _ = process.next(process.initialize(), data)
  return process.get_model_weights(state).trainable[0]


def test_pulls_towards_the_server(two_steps):
  # 0 - 0.1 (-2) = 0.2, then 0.2 - 0.1 (2 (0.2 - 1) + 1 (0.2 - 0)) = 0.34.
  process = algorithms.build_fed_prox(
    quadratic(),
    proximal_strength=1.0,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
  )
  np.testing.assert_allclose(weight_after_one_round(process, two_steps), 0.34, rtol=1e-6)


def test_fed_prox_of_tff_pushes_away(two_steps):
  # Documents why this package has its own; should TFF correct the sign one day, this test tells.
  process = tff.learning.algorithms.build_weighted_fed_prox(
    quadratic(),
    proximal_strength=1.0,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
  )
  np.testing.assert_allclose(weight_after_one_round(process, two_steps), 0.38, rtol=1e-6)


@pytest.mark.parametrize('strength', [-0.1, float('nan'), float('inf')])
def test_rejects_a_strength_out_of_range(strength):
  with pytest.raises(ValueError, match='`proximal_strength` must be a nonnegative number, found'):
    algorithms.build_fed_prox(
      quadratic(),
      proximal_strength=strength,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
    )
