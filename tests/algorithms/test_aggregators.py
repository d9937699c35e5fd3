# SPDX-License-Identifier: Apache-2.0
"""TFF's aggregators with NAR: each runs, and none changes a NAR update below the bound `K l A`."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers

LR, WD, BOUND = 0.1, 0.3, 0.6
CLIENTS = [0, 1, 2, 3]
MAX_STEPS = 3


def build(problem, name='fed_avg', optimizer=None, model=None, **arguments):
  return algorithms.get_builder(name)(
    model or problem.functional_model(),
    client_optimizer_fn=optimizer or optimizers.build_nar(LR, WD, BOUND),
    **arguments,
  )


def one_round(process, data):
  state, metrics = process.next(process.initialize(), data)
  return process.get_model_weights(state).trainable, metrics


@pytest.fixture(scope='module')
def mean_weights(problem):
  return one_round(build(problem), problem.datasets(CLIENTS))[0]


@pytest.mark.parametrize(
  'aggregator',
  [
    tff.learning.robust_aggregator(),
    tff.learning.robust_aggregator(weighted=False),
    tff.learning.compression_aggregator(),
    tff.aggregators.zeroing_factory(100.0, tff.aggregators.MeanFactory()),
    tff.aggregators.UnweightedMeanFactory(),
  ],
  ids=['robust', 'unweighted_robust', 'compression', 'zeroing', 'unweighted_mean'],
)
def test_aggregators_that_find_nothing_to_change_give_the_mean(problem, mean_weights, aggregator):
  weights, _ = one_round(build(problem, model_aggregator=aggregator), problem.datasets(CLIENTS))
  for a, b in zip(weights, mean_weights):
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_clipping_aggregator_shortens_updates(problem):
  norm = 0.01
  factory = tff.aggregators.clipping_factory(norm, tff.aggregators.MeanFactory())
  weights, metrics = one_round(build(problem, model_aggregator=factory), problem.datasets(CLIENTS))
  step = np.linalg.norm(problem.initial[0] - weights[0])
  assert 0.0 < step <= norm * 1.001
  assert metrics['aggregator']['clipped_count'] == len(CLIENTS)


def test_dp_aggregator_adds_noise(problem, mean_weights):
  factory = tff.learning.dp_aggregator(noise_multiplier=0.1, clients_per_round=len(CLIENTS))
  weights, _ = one_round(build(problem, model_aggregator=factory), problem.datasets(CLIENTS))
  assert all(np.all(np.isfinite(w)) for w in weights)
  assert not np.allclose(weights[0], mean_weights[0], atol=1e-6)


SECURE_SUM = tff.aggregators.SecureSumFactory(upper_bound_threshold=100.0)
SECURE_MEAN = tff.aggregators.MeanFactory(SECURE_SUM, SECURE_SUM)
SECURE_ARGUMENTS = {
  # What TFF recommends clips and zeroes, too, and takes three times as long; once is enough.
  'fed_avg': {'model_aggregator': tff.learning.secure_aggregator()},
  'fed_exp': {'model_aggregator': SECURE_MEAN, 'squared_norm_aggregator': SECURE_MEAN},
  'scaffold': {
    'num_clients': 4,
    'model_aggregator': SECURE_MEAN,
    'control_aggregator': SECURE_SUM,
  },
}


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if name == 'scaffold' else pytest.mark.slow)
    for name in SECURE_ARGUMENTS
  ],
)
def test_secure_aggregation_runs_and_leaves_nothing_in_the_clear(problem, mean_weights, name):
  process = build(
    problem,
    name,
    # TFF 0.87 cannot sum the metrics of a functional model securely.
    model=problem.variable_model,
    metrics_aggregator=tff.learning.metrics.secure_sum_then_finalize,
    **SECURE_ARGUMENTS[name],
  )
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  # TFF runs secure sums in its test backend only, which replaces them by plain ones.
  next_fn = tff.backends.test.replace_secure_intrinsics_with_bodies(process.next)
  data = problem.datasets(CLIENTS)
  if name == 'scaffold':
    controls = [process.initial_client_state() for _ in CLIENTS]
    output = next_fn(process.initialize(), controls, data)
  else:
    output = next_fn(process.initialize(), data)
  weights = output['state']['global_model_weights']['trainable']
  if name != 'fed_exp':  # Whose step may be longer than the mean.
    for a, b in zip(weights, mean_weights):
      np.testing.assert_allclose(a, b, atol=1e-5)
  assert output['metrics']['client_work']['train']['total_steps'] == sum(
    len(problem.clients[i]) for i in CLIENTS
  )


def test_unweighted_aggregator_cannot_weight_by_examples(problem):
  with pytest.raises(ValueError, match='`client_weighting` must be UNIFORM'):
    build(
      problem,
      model_aggregator=tff.aggregators.UnweightedMeanFactory(),
      client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES,
    )


@pytest.mark.parametrize(
  ('name', 'arguments'),
  [
    ('fed_avg', {'model_aggregator': np.mean}),
    ('fed_exp', {'squared_norm_aggregator': tff.aggregators.SumFactory()}),
    ('scaffold', {'control_aggregator': tff.aggregators.MeanFactory(), 'num_clients': 4}),
  ],
)
def test_rejects_what_is_no_aggregator(problem, name, arguments):
  with pytest.raises(TypeError, match=f'`{next(iter(arguments))}` must be a.* factory of'):
    build(problem, name, **arguments)


def test_update_bound_is_steps_times_rate_times_norm():
  assert algorithms.nar_update_bound(20, 0.01, 10.0) == 2.0
  assert algorithms.nar_update_bound(0, 0.01, 10.0) == 0.0


@pytest.mark.parametrize(
  ('name', 'arguments'),
  [
    ('num_steps', (-1, 0.1, 1.0)),
    ('learning_rate', (1, math.nan, 1.0)),
    ('max_norm', (1, 0.1, math.inf)),
    ('max_norm', (1, 0.1, 0.0)),
  ],
)
def test_update_bound_rejects_numbers_out_of_range(name, arguments):
  with pytest.raises(ValueError, match=f'`{name}` must be a'):
    algorithms.nar_update_bound(*arguments)


def dp_factory(norm):
  """DP's mechanism with its clipping, and without noise, so that a change by clipping is seen."""
  return tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier=0.0, clients_per_round=len(CLIENTS), clip=norm
  )


@pytest.mark.parametrize(
  ('weight_decay', 'max_norm'),
  [pytest.param(0.0, 0.6, marks=pytest.mark.slow), (0.3, 1e-3), (50.0, 0.6)],
)
def test_dp_clipping_at_the_bound_changes_no_nar_update(problem, weight_decay, max_norm):
  # The largest weight decay clips every step of NAR, in nearly the same direction: updates as long
  # as they can be.
  nar = optimizers.build_nar(LR, weight_decay, max_norm)
  bound = algorithms.nar_update_bound(MAX_STEPS, LR, max_norm)
  data = problem.datasets(CLIENTS)
  weights, _ = one_round(build(problem, optimizer=nar, model_aggregator=dp_factory(bound)), data)
  expected, _ = one_round(build(problem, optimizer=nar), data)
  for a, b, initial in zip(weights, expected, problem.initial):
    # As updates, whose size is that of the bound, and up to float32's rounding of weights of size
    # 1.
    np.testing.assert_allclose(initial - a, initial - b, rtol=1e-5, atol=2e-7)


def test_dp_clipping_at_the_bound_changes_updates_of_the_baseline(problem):
  baseline = optimizers.build_clipped_sgd(LR, 5.0, BOUND)
  bound = algorithms.nar_update_bound(MAX_STEPS, LR, BOUND)
  data = problem.datasets(CLIENTS)
  weights, _ = one_round(
    build(problem, optimizer=baseline, model_aggregator=dp_factory(bound)), data
  )
  expected, _ = one_round(build(problem, optimizer=baseline), data)
  assert not np.allclose(weights[0], expected[0], rtol=1e-2)


def test_bound_is_reached(problem):
  # Otherwise a smaller norm would do, and the tests above would say little: the same gradient in
  # all of three steps.
  spec = problem.input_spec

  @tf.function
  def predict(weights, x, training):
    del training
    return tf.matmul(x, weights[0][0])

  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([3, 1], np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_sum(output) * 100.0,
    input_spec=spec,
  )
  process = algorithms.build_fed_avg(model, client_optimizer_fn=optimizers.build_nar(LR, 0.0, 1.0))
  data = problem.batches(1).take(1).repeat(3)
  state, _ = process.next(process.initialize(), [data])
  update = np.linalg.norm(state.global_model_weights.trainable[0])
  np.testing.assert_allclose(update, algorithms.nar_update_bound(3, LR, 1.0), rtol=1e-5)
