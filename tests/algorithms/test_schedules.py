# SPDX-License-Identifier: Apache-2.0
"""Schedules: the numbers of single rounds, worked out by hand, and what a process makes of them."""

import math

import numpy as np
import pytest
import tensorflow as tf

from fednar_tff import algorithms, optimizers


def values(schedule, rounds):
  return [float(schedule(tf.constant(t))) for t in rounds]


def test_exponential_decay():
  decay = algorithms.exponential_decay(0.01)
  np.testing.assert_allclose(
    [decay(tf.constant(t)) for t in (0, 1, 1000)], [0.01, 0.00998, 0.01 * 0.998**1000], rtol=1e-4
  )
  released = algorithms.exponential_decay(0.01, 0.5, first_round_decays=True)
  np.testing.assert_allclose([released(tf.constant(t)) for t in (0, 1)], [0.005, 0.0025], rtol=1e-6)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((-1.0,), '`initial_value` must be a nonnegative number, found -1.0'),
    ((0.1, 0.0), '`decay_rate` must be a positive number, found 0.0'),
  ],
)
def test_exponential_decay_rejects_numbers_out_of_range(arguments, message):
  with pytest.raises(ValueError, match=message):
    algorithms.exponential_decay(*arguments)


def test_constant():
  assert values(algorithms.constant(0.25), (0, 1, 1000)) == [0.25, 0.25, 0.25]


def test_cosine_decay():
  root = math.sqrt(0.5)
  found = values(algorithms.cosine_decay(0.8, 4), (0, 1, 2, 3, 4, 5, 400))
  np.testing.assert_allclose(
    found, [0.8, 0.4 * (1 + root), 0.4, 0.4 * (1 - root), 0, 0, 0], atol=1e-7
  )
  found = values(algorithms.cosine_decay(0.8, 4, final_fraction=0.25), (0, 2, 4, 5))
  np.testing.assert_allclose(found, [0.8, 0.5, 0.2, 0.2], rtol=1e-6)


def test_step_decay():
  found = values(algorithms.step_decay(0.8, 3, 0.5), (0, 2, 3, 5, 6, 9))
  np.testing.assert_allclose(found, [0.8, 0.8, 0.4, 0.4, 0.2, 0.1], rtol=1e-6)
  np.testing.assert_allclose(
    values(algorithms.step_decay(0.8, 3), (3, 6)), [0.08, 0.008], rtol=1e-6
  )


def test_linear_warm_up():
  warmed = algorithms.linear_warm_up(algorithms.constant(0.8), 3)
  np.testing.assert_allclose(values(warmed, range(6)), [0.2, 0.4, 0.6, 0.8, 0.8, 0.8], rtol=1e-6)
  # The schedule beneath counts the rounds of the warm-up, too.
  warmed = algorithms.linear_warm_up(algorithms.step_decay(0.8, 2, 0.5), 1)
  np.testing.assert_allclose(values(warmed, range(4)), [0.4, 0.8, 0.4, 0.4], rtol=1e-6)
  step = algorithms.step_decay(0.8, 2, 0.5)
  assert values(algorithms.linear_warm_up(step, 0), range(5)) == values(step, range(5))


@pytest.mark.parametrize(
  ('build', 'message'),
  [
    (lambda: algorithms.constant(-1.0), '`value` must be a nonnegative number, found -1.0'),
    (
      lambda: algorithms.cosine_decay(math.nan, 3),
      '`initial_value` must be a nonnegative number, found nan',
    ),
    (lambda: algorithms.cosine_decay(0.1, 0), '`decay_rounds` must be a positive integer, found 0'),
    (
      lambda: algorithms.cosine_decay(0.1, 3, 1.5),
      r'`final_fraction` must be a number in \[0, 1\], found 1.5',
    ),
    (
      lambda: algorithms.step_decay(0.1, 2.5),
      '`decay_rounds` must be a positive integer, found 2.5',
    ),
    (
      lambda: algorithms.step_decay(0.1, 2, 0.0),
      '`decay_rate` must be a positive number, found 0.0',
    ),
    (
      lambda: algorithms.linear_warm_up(algorithms.constant(1.0), -1),
      '`warm_up_rounds` must be a nonnegative integer, found -1',
    ),
  ],
)
def test_numbers_out_of_range_are_named(build, message):
  with pytest.raises(ValueError, match=message):
    build()


def test_a_process_follows_its_schedules(problem, run_rounds):
  process = algorithms.build_fed_avg(
    problem.functional_model(),
    client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6),
    learning_rate_fn=algorithms.linear_warm_up(algorithms.cosine_decay(0.4, 4), 1),
    weight_decay_fn=algorithms.step_decay(0.3, 2, 0.5),
  )
  _, _, history = run_rounds(process, [[0, 1]] * 3, problem.datasets)
  rates = [[m['client_work'][k] for k in ('learning_rate', 'weight_decay')] for m in history]
  expected = [[0.2, 0.3], [0.2 * (1 + math.sqrt(0.5)), 0.3], [0.2, 0.15]]
  np.testing.assert_allclose(rates, expected, rtol=1e-6)
