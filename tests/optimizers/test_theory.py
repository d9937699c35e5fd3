# SPDX-License-Identifier: Apache-2.0
"""The paper's statements, as properties: Condition 1, Lemma 1 (with its erratum), and the bound
behind Theorem 1."""

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from fednar_tff import optimizers

VECTORS = st_numpy.arrays(np.float64, 5, elements=st.floats(-1e4, 1e4))
LEARNING_RATES = st.sampled_from([2.0**-k for k in range(0, 10)])
WEIGHT_DECAYS = st.sampled_from([0.0] + [2.0**-k for k in range(0, 14)])
BOUNDS = st.sampled_from([2.0**k for k in range(-6, 10)])


def nar_step(x, g, learning_rate, weight_decay, bound):
  """Takes one step in float64 on two leaves."""
  optimizer = optimizers.build_nar(learning_rate, weight_decay, bound)

  def leaves(v):
    return [tf.constant(v[:2]), tf.constant(v[2:])]

  _, (a, b) = optimizer.next(optimizer.initialize(None), leaves(x), leaves(g))
  return np.concatenate([a, b])


def nar_rates(x, g, learning_rate, weight_decay, bound):
  size = np.linalg.norm(g + weight_decay * x)
  scale = bound / size if size > bound else 1.0
  return learning_rate * scale, learning_rate * weight_decay * scale


@hypothesis.given(VECTORS, VECTORS, LEARNING_RATES, WEIGHT_DECAYS, BOUNDS)
def test_condition_1_bounds_step_and_decay(x, g, learning_rate, weight_decay, bound):
  taken = x - nar_step(x, g, learning_rate, weight_decay, bound)
  rounding = 1e-12 * (np.linalg.norm(x) + learning_rate * bound)
  assert np.linalg.norm(taken) <= learning_rate * bound + rounding
  # The decay in the step is what remains of it when the gradient's part is taken out.
  lam, mu = nar_rates(x, g, learning_rate, weight_decay, bound)
  np.testing.assert_allclose(taken - lam * g, mu * x, atol=1e-9 * (1 + np.linalg.norm(taken)))
  assert mu <= learning_rate * weight_decay


@hypothesis.given(VECTORS, LEARNING_RATES, WEIGHT_DECAYS, BOUNDS)
def test_condition_1_bounds_the_decay_of_weights_without_gradient(
  x, learning_rate, weight_decay, bound
):
  taken = x - nar_step(x, np.zeros(5), learning_rate, weight_decay, bound)
  u = learning_rate * weight_decay
  assert (
    np.linalg.norm(taken) <= min(u * np.linalg.norm(x), learning_rate * bound) * (1 + 1e-9) + 1e-9
  )


def run_round(x, targets, num_steps, learning_rate, weight_decay, bound, server_rate):
  """Runs FedAvg-NAR on quadratics by the package's optimizer; returns the new model and all local
  (lam, mu, g)."""
  finals, histories = [], []
  for target in targets:
    local, history = x, []
    for _ in range(num_steps):
      g = local - target
      history.append((*nar_rates(local, g, learning_rate, weight_decay, bound), g))
      local = nar_step(local, g, learning_rate, weight_decay, bound)
    finals.append(local)
    histories.append(history)
  return x - server_rate * np.mean([x - final for final in finals], axis=0), histories


def lemma_1(x, histories, server_rate, product_starts_after):
  """The lemma's right-hand side, with the product over r from `j + product_starts_after`."""
  kept, h = [], []
  for history in histories:
    mus = np.array([mu for _, mu, _ in history])
    kept.append(np.prod(1 - mus))
    h.append(
      sum(
        lam * np.prod(1 - mus[j + product_starts_after :]) * g
        for j, (lam, _, g) in enumerate(history)
      )
    )
  mu_g = server_rate - server_rate * np.mean(kept)
  return (1 - mu_g) * x - server_rate * np.mean(h, axis=0)


@hypothesis.given(
  st.lists(st_numpy.arrays(np.float64, 5, elements=st.floats(-10, 10)), min_size=1, max_size=4),
  st.integers(1, 5),
  st.sampled_from([0.25, 1.0, 1.5]),
  BOUNDS,
)
def test_lemma_1_holds_with_the_product_from_j_plus_1(targets, num_steps, server_rate, bound):
  x = np.array([1.0, -2.0, 0.5, 3.0, -1.5])
  new_x, histories = run_round(x, targets, num_steps, 0.125, 0.5, bound, server_rate)
  np.testing.assert_allclose(new_x, lemma_1(x, histories, server_rate, 1), rtol=1e-10, atol=1e-10)


def test_lemma_1_as_printed_is_off_by_one():
  x = np.array([1.0, -2.0, 0.5, 3.0, -1.5])
  targets = [np.array([3.0, 1.0, -2.0, 0.0, 5.0]), np.array([-1.0, 2.0, 2.0, -4.0, 1.0])]
  for bound in (0.5, 100.0):
    new_x, histories = run_round(x, targets, 3, 0.125, 0.5, bound, 1.0)
    np.testing.assert_allclose(new_x, lemma_1(x, histories, 1.0, 1), rtol=1e-12)
    assert np.max(np.abs(new_x - lemma_1(x, histories, 1.0, 0))) > 1e-4


@hypothesis.given(st.integers(0, 2**32 - 1), BOUNDS, WEIGHT_DECAYS)
@hypothesis.settings(max_examples=10)
def test_model_norm_grows_at_most_linearly_in_the_rounds(seed, bound, weight_decay):
  """Behind Theorem 1: each of `tau` local steps is at most `l A` long, so `||x^t|| <= ||x^0|| + t
  server_rate tau l A`."""
  random = np.random.default_rng(seed)
  num_clients, num_steps, learning_rate, server_rate = 3, 2, 0.25, 1.5
  x = start = random.normal(size=5)
  for t in range(1, 9):
    finals = []
    for _ in range(num_clients):
      local = x
      for _ in range(num_steps):  # Any gradients at all, also ones that push outwards.
        local = nar_step(
          local,
          -local * random.uniform(0, 100) + random.normal(size=5),
          learning_rate,
          weight_decay,
          bound,
        )
      finals.append(local)
    x = x - server_rate * np.mean([x - final for final in finals], axis=0)
    limit = np.linalg.norm(start) + t * server_rate * num_steps * learning_rate * bound
    assert np.linalg.norm(x) <= limit * (1 + 1e-9)


def test_the_baseline_breaks_the_linear_bound_that_nar_keeps():
  """So the property above says something: with a large decay the baseline's steps are not
  bounded."""
  x = np.array([1e4, -1e4, 1e4, -1e4, 1e4])
  baseline = optimizers.build_clipped_sgd(1.0, 0.5, 1.0)
  _, (stepped,) = baseline.next(
    baseline.initialize(None), [tf.constant(x)], [tf.zeros([5], tf.float64)]
  )
  assert np.linalg.norm(x - stepped) > 1e3
  assert np.linalg.norm(x - nar_step(x, np.zeros(5), 1.0, 0.5, 1.0)) <= 1 + 1e-6
