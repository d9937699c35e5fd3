# SPDX-License-Identifier: Apache-2.0
"""Every algorithm, with NAR and with the baseline, against float64 NumPy."""

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers
from tests.algorithms import numpy_reference

ROUNDS = ([0, 1], [1, 2], [2, 0, 3], [3, 1])
BOUND = 0.6

ADAM = dict(beta_1=0.8, beta_2=0.95)
CASES = {
  # name: builder, its arguments, the reference's algorithm, its options
  'fed_avg': ('fed_avg', {}, 'fed_avg', {}),
  'fed_prox': ('fed_prox', {'proximal_strength': 0.7}, 'fed_prox', {'prox': 0.7}),
  'scaffold': ('scaffold', {'num_clients': 4}, 'scaffold', {}),
  'fed_exp': ('fed_exp', {'epsilon': 0.001}, 'fed_exp', {'eps': 0.001}),
  'fed_exp_last_two': (
    'fed_exp',
    {'average_last_two': True},
    'fed_exp',
    {'eps': 0.0, 'average_last_two': True},
  ),
  'fed_adam': (
    'fed_adam',
    {'server_learning_rate': 0.2, 'epsilon': 0.05, **ADAM},
    'fed_adam',
    {'eta': 0.2, 'eps': 0.05, **ADAM},
  ),
  'fed_avgm': ('fed_avgm', {'server_momentum': 0.6}, 'fed_avgm', {'momentum': 0.6}),
}
OPTIMIZERS = {'nar': optimizers.build_nar, 'clip': optimizers.build_clipped_sgd}
UNIFORM = tff.learning.ClientWeighting.UNIFORM
NUM_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES


def weight_decay_fn(round_num):
  return 0.5 / (tf.cast(round_num, tf.float32) + 1.0)


@pytest.fixture
def check(problem, run_beside_numpy):
  """Compares weights and metrics after each round; returns the reference's metrics."""

  def run(name, rule, weighting=UNIFORM, loop=algorithms.PACKED, model=None):
    builder, arguments, ref_name, ref_options = CASES[name]
    process = algorithms.get_builder(builder)(
      model or problem.functional_model(),
      client_optimizer_fn=OPTIMIZERS[rule](1.0, 0.0, BOUND),
      learning_rate_fn=algorithms.exponential_decay(0.4, 0.9),
      weight_decay_fn=weight_decay_fn,
      client_weighting=weighting,
      loop_implementation=loop,
      **arguments,
    )
    server = numpy_reference.Server(ref_name, problem.initial, problem.clients, **ref_options)

    def numpy_round(t, clients, data):
      del data
      server.round(clients, rule, 0.4 * 0.9**t, 0.5 / (t + 1), BOUND, weighting is NUM_EXAMPLES)

    return run_beside_numpy(
      process, server, ROUNDS, lambda t, c: problem.datasets(c, loop), numpy_round, tolerance=1e-5
    )

  return run


@pytest.mark.parametrize('rule', OPTIMIZERS)
@pytest.mark.parametrize('name', CASES)
def test_agrees_with_numpy(check, name, rule):
  history = check(name, rule)
  if name == 'fed_exp':
    assert min(m['server_step_size'] for m in history) == 1.0
    assert max(m['server_step_size'] for m in history) > 1.1


@pytest.mark.parametrize('name', ['fed_avg', 'scaffold', 'fed_exp'])
def test_weights_clients_by_examples(check, name):
  check(name, 'nar', weighting=NUM_EXAMPLES)


@pytest.mark.parametrize('name', ['fed_prox', 'scaffold'])
@pytest.mark.parametrize('loop', tff.learning.LoopImplementation)
def test_variable_models_and_ordinary_datasets_agree_with_numpy(check, problem, name, loop):
  check(name, 'nar', loop=loop, model=problem.variable_model)
