# SPDX-License-Identifier: Apache-2.0
"""What a process offers besides `next`; the registry; errors that help."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers
from tests.algorithms import numpy_reference

ARGUMENTS = {
  'fed_avg': {},
  'fed_prox': {'proximal_strength': 0.5},
  'scaffold': {'num_clients': 4},
  'fed_exp': {'average_last_two': True},
  'fed_adam': {'variant': 'reference'},
  'fed_avgm': {},
  'fed_dyn': {'num_clients': 4, 'regularization_strength': 0.5},
}


def nar():
  return optimizers.build_nar(0.4, 0.3, 0.6)


def assert_identical(actual, expected):
  tf.nest.assert_same_structure(actual, expected)
  for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('name', ARGUMENTS)
def test_hparams_and_weights_can_be_read_and_set(problem, run_rounds, name):
  process = algorithms.get_builder(name)(
    problem.functional_model(),
    client_optimizer_fn=nar(),
    weight_decay_fn=lambda round_num: 0.1 * tf.cast(round_num + 1, tf.float32),
    **ARGUMENTS[name],
  )
  state, _, _ = run_rounds(process, [[0, 1], [1, 2]], problem.datasets)
  hparams = process.get_hparams(state)
  # The schedule's value is that of the last round; without a schedule the optimizer's own stays.
  np.testing.assert_allclose(hparams['client_work']['weight_decay'], 0.2, rtol=1e-6)
  np.testing.assert_allclose(hparams['client_work']['learning_rate'], 0.4, rtol=1e-6)
  assert_identical(process.set_hparams(state, hparams), state)

  hparams['client_work']['learning_rate'] = np.float32(0.0)
  frozen, _, history = run_rounds(
    process, [[0, 1]], problem.datasets, process.set_hparams(state, hparams)
  )
  assert history[0]['client_work']['learning_rate'] == 0.0
  if name in ('fed_avg', 'fed_prox', 'scaffold', 'fed_exp'):
    assert_identical(frozen.global_model_weights, state.global_model_weights)

  weights = process.get_model_weights(state)
  doubled = tff.learning.models.ModelWeights(
    tuple(2 * w for w in weights.trainable), weights.non_trainable
  )
  changed = process.set_model_weights(state, doubled)
  assert_identical(process.get_model_weights(changed), doubled)
  assert_identical(changed.client_work, state.client_work)


def test_rounds_continue_where_a_state_was_saved(problem, run_rounds):
  process = algorithms.build_fed_avgm(
    problem.functional_model(),
    client_optimizer_fn=nar(),
    learning_rate_fn=algorithms.exponential_decay(0.4, 0.5),
  )
  halfway, _, _ = run_rounds(process, [[0, 1]], problem.datasets)
  resumed, _, history = run_rounds(process, [[2, 1]], problem.datasets, halfway)
  through, _, _ = run_rounds(process, [[0, 1], [2, 1]], problem.datasets)
  assert_identical(resumed, through)
  np.testing.assert_allclose(history[0]['client_work']['learning_rate'], 0.2)


@pytest.mark.parametrize('kind', ['functional', 'variable'])
def test_metrics_aggregator_is_given_all_metrics(problem, kind):
  model = problem.functional_model() if kind == 'functional' else problem.variable_model
  process = algorithms.build_fed_avg(
    model,
    client_optimizer_fn=nar(),
    metrics_aggregator=tff.learning.metrics.finalize_then_sample,
  )
  _, metrics = process.next(process.initialize(), problem.datasets([1, 2]))
  # One value for each client in place of a sum.
  assert sorted(metrics['client_work']['train']['total_steps']) == [1, 3]
  assert len(metrics['client_work']['train']['mse']) == 2


def test_federated_and_centralised_evaluation_agree(problem, run_rounds):
  process = algorithms.build_fed_avg(problem.variable_model, client_optimizer_fn=nar())
  state, _, _ = run_rounds(process, [[0, 1], [2, 3]], problem.datasets)
  weights = process.get_model_weights(state)
  evaluation = tff.learning.algorithms.build_fed_eval(problem.variable_model)
  evaluation_state = evaluation.set_model_weights(evaluation.initialize(), weights)
  _, metrics = evaluation.next(evaluation_state, problem.datasets([0, 1, 2, 3]))
  errors = numpy_reference.squared_errors(weights.trainable, (problem.x, problem.y))
  measured = metrics['client_work']['eval']['current_round_metrics']
  np.testing.assert_allclose(measured['mse'], np.mean(errors), rtol=1e-5)


def test_registry_has_all_algorithms():
  assert algorithms.ALGORITHMS == (
    'fed_avg',
    'fed_prox',
    'scaffold',
    'fed_exp',
    'fed_adam',
    'fed_avgm',
    'fed_dyn',
    'centralized',
  )
  for name in algorithms.ALGORITHMS:
    assert algorithms.get_builder(name) is getattr(algorithms, f'build_{name}')


def test_registry_lists_the_known_names():
  known = 'fed_avg, fed_prox, scaffold, fed_exp, fed_adam, fed_avgm, fed_dyn, centralized'
  with pytest.raises(ValueError, match=f"`name` must be one of {known}, found 'fedavg'"):
    algorithms.get_builder('fedavg')


def test_metrics_aggregator_may_leave_out_the_steps(problem):
  def only_the_error(metric_finalizers):
    aggregate = tff.learning.metrics.sum_then_finalize(metric_finalizers)

    @tff.federated_computation
    def take(metrics):
      return tff.federated_map(
        tff.tensorflow.computation(lambda m: collections.OrderedDict(mse=m['mse'])),
        aggregate(metrics),
      )

    return take

  process = algorithms.build_fed_avg(
    problem.functional_model(), client_optimizer_fn=nar(), metrics_aggregator=only_the_error
  )
  output = process.next(process.initialize(), problem.datasets([0, 1]))
  assert list(output.metrics['client_work']['train']) == ['mse']


@pytest.mark.parametrize('name', ['fed_adam', 'fed_avgm'])
def test_a_server_optimizer_takes_the_place_of_the_algorithms_own(problem, name):
  results = []
  for builder in (algorithms.get_builder(name), algorithms.build_fed_avg):
    process = builder(
      problem.functional_model(),
      client_optimizer_fn=nar(),
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(0.5),
    )
    state = process.next(process.initialize(), problem.datasets([0, 1])).state
    results.append(process.get_model_weights(state))
  assert_identical(*results)


@pytest.mark.parametrize(
  ('arguments', 'error', 'message'),
  [
    ({'client_optimizer_fn': 0.1}, TypeError, '`client_optimizer_fn` must be a .*, found 0.1'),
    ({'server_optimizer_fn': 0.1}, TypeError, '`server_optimizer_fn` must be a .*, found 0.1'),
    ({'client_weighting': 'uniform'}, TypeError, "`client_weighting` must be a .* found 'uniform'"),
    ({'loop_implementation': 'packed'}, TypeError, "`loop_implementation` must .* found 'packed'"),
    ({'learning_rate_fn': 0.1}, TypeError, '`learning_rate_fn` must be a function .* found 0.1'),
    (
      {
        'client_optimizer_fn': tff.learning.optimizers.build_sgdm(0.1),
        'weight_decay_fn': lambda t: 0.1,
      },
      ValueError,
      r"`weight_decay_fn` needs a client optimizer .* found one with \['learning_rate'\]",
    ),
  ],
)
def test_errors_name_the_argument_and_the_value(problem, arguments, error, message):
  with pytest.raises(error, match=message):
    algorithms.build_fed_avg(
      problem.functional_model(), **{'client_optimizer_fn': nar(), **arguments}
    )


def test_model_fn_has_to_return_a_model():
  with pytest.raises(TypeError, match='`model_fn` must be a FunctionalModel or return a'):
    algorithms.build_fed_avg(lambda: 'no model', client_optimizer_fn=nar())


@pytest.mark.parametrize(
  ('name', 'arguments', 'message'),
  [
    ('fed_adam', {'variant': 'code'}, r"`variant` must be one of \['paper', 'reference'\]"),
    ('fed_adam', {'variant': 'reference', 'beta_2': 1.0}, r'`beta_2` must be in \[0, 1\), found'),
    ('fed_avgm', {'server_momentum': 1.0}, r'`server_momentum` must be in \[0, 1\), found 1.0'),
    ('fed_exp', {'epsilon': -1.0}, '`epsilon` must be a nonnegative number, found -1.0'),
  ],
)
def test_server_steps_reject_numbers_out_of_range(problem, name, arguments, message):
  with pytest.raises(ValueError, match=message):
    algorithms.get_builder(name)(problem.functional_model(), client_optimizer_fn=nar(), **arguments)
