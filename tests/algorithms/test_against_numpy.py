"""Every algorithm, with NAR and with the baseline, against float64 NumPy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers

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


def check(
  problem,
  reference,
  name,
  rule,
  weighting=UNIFORM,
  loop=algorithms.PACKED,
  model=None,
):
  """Compares weights and metrics after each round; returns the reference's metrics."""
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
  server = reference.Server(ref_name, problem.initial, problem.clients, **ref_options)
  state = process.initialize()
  client_states = {}
  history = []
  for t, participants in enumerate(ROUNDS):
    data = problem.datasets(participants, loop)
    if builder == 'scaffold':
      states = [client_states.get(i, process.initial_client_state()) for i in participants]
      state, states, metrics = process.next(state, states, data)
      client_states.update(zip(participants, states))
    else:
      state, metrics = process.next(state, data)
    server.round(participants, rule, 0.4 * 0.9**t, 0.5 / (t + 1), BOUND, weighting is NUM_EXAMPLES)
    for actual, expected in zip(state.global_model_weights.trainable, server.weights):
      np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    for actual, expected in zip(process.get_model_weights(state).trainable, server.evaluated):
      np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    measured = {
      **metrics['client_work'],
      **metrics['client_work']['train'],
      **metrics['finalizer'],
    }
    for key, expected in server.metrics.items():
      np.testing.assert_allclose(measured[key], expected, rtol=1e-4, err_msg=key)
    assert measured['num_non_finite_clients'] == 0
    history.append(server.metrics)
    if builder == 'scaffold':
      for actual, expected in zip(state.control, server.c):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
      for i, client_state in client_states.items():
        for actual, expected in zip(client_state, server.c_i[i]):
          np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
  return history


@pytest.mark.parametrize('rule', OPTIMIZERS)
@pytest.mark.parametrize('name', CASES)
def test_agrees_with_numpy(problem, reference, name, rule):
  history = check(problem, reference, name, rule)
  # Both sides of each bound are reached, or the comparison would say little.
  assert 0 < sum(m['clipped_steps'] for m in history) < sum(m['total_steps'] for m in history)
  if name == 'fed_exp':
    assert min(m['server_step_size'] for m in history) == 1.0
    assert max(m['server_step_size'] for m in history) > 1.1


@pytest.mark.parametrize('name', ['fed_avg', 'scaffold', 'fed_exp'])
def test_weights_clients_by_examples(problem, reference, name):
  check(problem, reference, name, 'nar', weighting=NUM_EXAMPLES)


@pytest.mark.parametrize('name', ['fed_prox', 'scaffold'])
@pytest.mark.parametrize('loop', tff.learning.LoopImplementation)
def test_variable_models_and_ordinary_datasets_agree_with_numpy(problem, reference, name, loop):
  check(problem, reference, name, 'nar', loop=loop, model=problem.variable_model)
