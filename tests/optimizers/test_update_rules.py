# SPDX-License-Identifier: Apache-2.0
"""The optimizers' steps against the NumPy oracle, below and above the clipping threshold."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import optimizers
from tests.optimizers import numpy_reference

# All hparams are sums of few powers of two: float32 holds them exactly, so float64 runs can be
# compared to 1e-12.
LR, WD, SMALL, LARGE = 0.125, 0.25, 0.75, 64.0

RULES = {
  'nar': (
    lambda bound: optimizers.build_nar(LR, WD, bound),
    lambda bound: numpy_reference.nar(LR, WD, bound),
  ),
  'clipped_sgd': (
    lambda bound: optimizers.build_clipped_sgd(LR, WD, bound),
    lambda bound: numpy_reference.clipped_sgd(LR, WD, bound),
  ),
  'bounded_decay': (
    lambda bound: optimizers.build_bounded_decay_sgd(LR, WD, bound, max_weight_norm=bound / 2),
    lambda bound: numpy_reference.bounded_decay(LR, WD, bound, bound / 2),
  ),
  'adaptive_sgd': (
    lambda bound: optimizers.build_adaptive_sgd(
      lambda g, x, l, wd: optimizers.Rates(
        l / (1 + abs(g[0][1])), l * wd * abs(x[0][0]), abs(g[0][1]), abs(g[0][1]) > bound
      ),
      LR,
      WD,
    ),
    lambda bound: numpy_reference.Steps(
      lambda g, x: (LR / (1 + abs(g[0][1])), LR * WD * abs(x[0][0]), abs(g[0][1])), bound
    ),
  ),
  'co_clip_sgd': (
    lambda bound: optimizers.co_clip(tff.learning.optimizers.build_sgdm(LR), WD, bound),
    lambda bound: numpy_reference.nar(LR, WD, bound),
  ),
  'co_clip_momentum': (
    lambda bound: optimizers.co_clip(tff.learning.optimizers.build_sgdm(LR, 0.5), WD, bound),
    lambda bound: numpy_reference.CoClippedMomentum(LR, 0.5, WD, bound),
  ),
}
CASES = [(name, bound) for name in RULES for bound in (SMALL, LARGE)]
IDS = [f'{name}-{"above" if bound == SMALL else "below"}' for name, bound in CASES]


def initial_weights(dtype=np.float32):
  return collections.OrderedDict(
    a=np.array([1.5, -2.0, 0.25], dtype), b=np.array([[-0.5, 3.0], [1.0, -1.25]], dtype)
  )


def gradients(weights, step):
  """The gradient of a quadratic whose minimum moves with the step; stable at the learning rate
  used."""
  shift = np.float64(step + 1)
  return collections.OrderedDict(
    a=0.5 * (weights['a'] - 0.5 * shift), b=1.5 * (weights['b'] + 0.25 * shift)
  )


def run_oracle(oracle, num_steps):
  weights = initial_weights(np.float64)
  for step in range(num_steps):
    leaves = oracle.step(list(weights.values()), list(gradients(weights, step).values()))
    weights = collections.OrderedDict(zip(weights, leaves))
  return weights


def run_eagerly(optimizer, num_steps, dtype):
  weights = tf.nest.map_structure(tf.constant, initial_weights(dtype))
  state = optimizer.initialize(tf.nest.map_structure(tf.TensorSpec.from_tensor, weights))
  for step in range(num_steps):
    g = tf.nest.map_structure(lambda x: tf.cast(x, dtype), gradients(weights, step))
    state, weights = optimizer.next(state, weights, g)
  return state, weights


@pytest.mark.parametrize(
  'dtype, tolerance', [(np.float32, 1e-6), (np.float64, 1e-12)], ids=['float32', 'float64']
)
@pytest.mark.parametrize('name, bound', CASES, ids=IDS)
def test_steps_equal_the_oracle(name, bound, dtype, tolerance):
  build, build_oracle = RULES[name]
  oracle = build_oracle(bound)
  expected = run_oracle(oracle, num_steps=5)
  state, weights = run_eagerly(build(bound), 5, dtype)
  for key in expected:
    np.testing.assert_allclose(weights[key], expected[key], rtol=tolerance, atol=tolerance)
  statistics = optimizers.get_clipping_statistics(state)
  assert statistics.num_steps == 5
  assert statistics.num_clipped_steps == oracle.clipped
  np.testing.assert_allclose(statistics.sum_clipped_norms, oracle.clipped_norms, rtol=1e-6)
  # The case really lies on its side of the threshold.
  assert (oracle.clipped > 0) == (bound == SMALL)


def test_co_clip_hands_the_co_clipped_gradient_to_adam():
  for bound in (SMALL, LARGE):
    expected = run_oracle(numpy_reference.CoClippedAdam(LR, WD, bound), 5)
    optimizer = optimizers.co_clip(tff.learning.optimizers.build_adam(LR), WD, bound)
    _, weights = run_eagerly(optimizer, 5, np.float32)
    for key in expected:
      np.testing.assert_allclose(weights[key], expected[key], rtol=1e-6, atol=1e-5)


def steps_of(optimizer, num_steps):
  """Builds a TF function of the initial weights that takes some steps."""

  def run(weights):
    state = optimizer.initialize(
      tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), weights)
    )
    for step in range(num_steps):
      g = collections.OrderedDict(
        a=0.5 * (weights['a'] - 0.5 * (step + 1)), b=1.5 * (weights['b'] + 0.25 * (step + 1))
      )
      state, weights = optimizer.next(state, weights, g)
    return collections.OrderedDict(weights=weights, state=state)

  return run


@pytest.mark.parametrize('name, bound', CASES, ids=IDS)
def test_eager_graph_and_federated_runs_agree(name, bound, native_runtime):
  del native_runtime  # The parity is with TFF's own runtime.
  weights_type = tff.types.tensorflow_to_type(
    collections.OrderedDict(a=tf.TensorSpec([3]), b=tf.TensorSpec([2, 2]))
  )
  run = steps_of(RULES[name][0](bound), 4)
  graph_run = tff.tensorflow.computation(run, weights_type)

  @tff.federated_computation(tff.FederatedType(weights_type, tff.CLIENTS))
  def federated_run(weights):
    return tff.federated_map(graph_run, weights)

  expected = run(tf.nest.map_structure(tf.constant, initial_weights()))
  in_graph = graph_run(initial_weights())
  on_clients = federated_run([initial_weights()])[0]
  for other in (in_graph, on_clients):
    tf.nest.map_structure(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), expected, other
    )
