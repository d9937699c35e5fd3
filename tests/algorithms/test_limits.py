# SPDX-License-Identifier: Apache-2.0
"""Where an algorithm has to be FedAvg, or NAR the baseline, it is so to the bit."""

import math

import numpy as np
import pytest

from fednar_tff import algorithms, optimizers

ROUNDS = ([0, 1], [1, 2], [2, 3, 0])


def build(problem, name, optimizer=None, **arguments):
  return algorithms.get_builder(name)(
    problem.functional_model(),
    client_optimizer_fn=optimizer or optimizers.build_nar(0.4, 0.3, 0.6),
    learning_rate_fn=algorithms.exponential_decay(0.4, 0.9),
    loop_implementation=algorithms.PACKED,
    **arguments,
  )


def weights_after(process, problem, state=None, rounds=ROUNDS):
  state = process.initialize() if state is None else state
  for clients in rounds:
    state, _ = process.next(state, problem.datasets(clients, algorithms.PACKED))
  return process.get_model_weights(state).trainable


def assert_identical(actual, expected):
  for a, b in zip(actual, expected):
    np.testing.assert_array_equal(a, b)


@pytest.fixture(scope='module')
def fed_avg_weights(problem):
  weights = weights_after(build(problem, 'fed_avg'), problem)
  assert not np.array_equal(weights[0], problem.initial[0])
  return weights


@pytest.mark.parametrize(
  ('name', 'arguments'),
  [
    ('fed_prox', {'proximal_strength': 0.0}),
    ('fed_avgm', {'server_momentum': 0.0}),
    # So large an epsilon leaves the server's step at 1.
    ('fed_exp', {'epsilon': 1e6}),
  ],
)
def test_is_fed_avg(problem, fed_avg_weights, name, arguments):
  assert_identical(weights_after(build(problem, name, **arguments), problem), fed_avg_weights)


def test_scaffold_without_its_correction_is_fed_avg(problem, fed_avg_weights):
  process = build(problem, 'scaffold', num_clients=4)
  zeros = process.initial_client_state()
  state = process.initialize()
  for clients in ROUNDS:
    data = problem.datasets(clients, algorithms.PACKED)
    state, client_states, _ = process.next(state, [zeros] * len(clients), data)
    assert any(np.any(leaf) for s in client_states for leaf in s)
    state = state._replace(control=zeros)
  assert_identical(process.get_model_weights(state).trainable, fed_avg_weights)


def test_nar_that_clips_nothing_is_the_baseline(problem):
  nar, baseline = (
    weights_after(build(problem, 'fed_avg', optimizer), problem)
    for optimizer in (
      optimizers.build_nar(0.4, 0.3, math.inf),
      optimizers.build_clipped_sgd(0.4, 0.3, math.inf),
    )
  )
  assert_identical(nar, baseline)


def test_nar_that_clips_is_not_the_baseline(problem, fed_avg_weights):
  clip = optimizers.build_clipped_sgd(0.4, 0.3, 0.6)
  weights = weights_after(build(problem, 'fed_avg', clip), problem)
  assert not np.allclose(weights[0], fed_avg_weights[0], atol=1e-3)
