# SPDX-License-Identifier: Apache-2.0
"""The loop: three forms, two kinds of models, what it counts, clients that are not finite."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers
from fednar_tff.algorithms import local_training

ITERATOR = tff.learning.LoopImplementation.DATASET_ITERATOR
REDUCE = tff.learning.LoopImplementation.DATASET_REDUCE
PACKED = algorithms.PACKED
ALL_CLIENTS = [0, 1, 2, 3]


def build(model, optimizer=None, name='fed_avg', loop=ITERATOR, **arguments):
  return algorithms.get_builder(name)(
    model,
    client_optimizer_fn=optimizer or optimizers.build_nar(0.4, 0.3, 0.6),
    loop_implementation=loop,
    **arguments,
  )


def one_round(process, data):
  state, metrics = process.next(process.initialize(), data)
  return process.get_model_weights(state).trainable, metrics


def scalar_model(loss_of_batch, initial=0.0, input_spec=None):
  """A model with one weight `w` and the loss `loss_of_batch(w, x, y)`."""

  @tf.function
  def predict(weights, x, training):
    del training
    # The loss needs the weight, and the number of predictions is that of the examples.
    return tf.zeros_like(tf.nest.flatten(x)[0]) + weights[0][0]

  spec = input_spec or collections.OrderedDict(x=tf.TensorSpec([None]), y=tf.TensorSpec([None]))
  return tff.learning.models.FunctionalModel(
    initial_weights=((np.array(initial, np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: loss_of_batch(output, label),
    input_spec=spec,
  )


def scalar_dataset(batches):
  """One batch for each row of targets."""
  targets = np.asarray(batches, np.float32)
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(x=np.zeros_like(targets), y=targets)
  )


@pytest.mark.parametrize('kind', ['functional', 'variable'])
def test_all_loops_give_the_same_numbers(problem, kind):
  model = problem.functional_model() if kind == 'functional' else problem.variable_model
  results = [
    one_round(build(model, loop=loop), problem.datasets(ALL_CLIENTS, loop))
    for loop in (ITERATOR, REDUCE, PACKED)
  ]
  for weights, metrics in results[1:]:
    for actual, expected in zip(weights, results[0][0]):
      np.testing.assert_array_equal(actual, expected)
    assert metrics == results[0][1]


@pytest.mark.parametrize(
  ('name', 'arguments'),
  [
    pytest.param('fed_avg', {}, marks=pytest.mark.slow),
    ('fed_prox', {'proximal_strength': 0.3}),
    ('scaffold', {'num_clients': 9}),
    pytest.param(
      'fed_dyn', {'num_clients': 9, 'regularization_strength': 0.2}, marks=pytest.mark.slow
    ),
  ],
)
def test_leaves_that_are_joined_for_a_gpu_take_the_same_steps(
  problem, name, arguments, monkeypatch
):
  """On a GPU, all leaves are one vector. Two rounds, so that SCAFFOLD and FedDyn have something to
  correct."""
  results, joined = [], []
  split = local_training._Joiner.split
  monkeypatch.setattr(
    local_training._Joiner,
    'split',
    lambda self, leaves: joined.append(len(leaves)) or split(self, leaves),
  )
  for has_gpu in (False, True):
    monkeypatch.setattr(local_training, '_has_gpu', lambda has_gpu=has_gpu: has_gpu)
    process = build(problem.functional_model(), name=name, loop=PACKED, **arguments)
    state, data = process.initialize(), problem.datasets(ALL_CLIENTS, PACKED)
    if algorithms.has_client_states(process):
      clients = [process.initial_client_state() for _ in data]
      for _ in range(2):
        state, clients, _ = process.next(state, clients, data)
    else:
      for _ in range(2):
        state = process.next(state, data).state
    results.append(process.get_model_weights(state).trainable)
  assert set(joined) == {2, 1}
  for one, other in zip(*results):
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_leaves_are_not_joined_for_an_optimizer_that_could_tell(problem, monkeypatch):
  monkeypatch.setattr(local_training, '_has_gpu', lambda: True)
  leaves = [tf.constant(w) for w in problem.initial]
  for optimizer, joins in (
    (optimizers.build_nar(0.1, 0.1), True),
    (optimizers.build_clipped_sgd(0.1, 0.1), True),
    (optimizers.build_adaptive_sgd(lambda g, x, l, wd: (l, wd), 0.1, 0.1), False),
    (optimizers.co_clip(tff.learning.optimizers.build_sgdm(0.1), 0.1, 1.0), False),
    (tff.learning.optimizers.build_sgdm(0.1), False),
  ):
    joiner = local_training._Joiner(leaves, optimizer)
    assert joiner.is_active == joins
    gradient, weights = joiner.join(leaves, leaves)
    assert len(gradient) == len(weights) == (1 if joins else 2)
    for found, leaf in zip(joiner.split(weights), leaves, strict=True):
      np.testing.assert_array_equal(found, leaf)
    # A leaf without a gradient keeps all of them apart.
    assert len(joiner.join([None, leaves[1]], leaves)[1]) == 2


def test_a_step_that_cannot_be_compiled_is_refused(problem):
  with pytest.raises(ValueError, match='`jit_compile` needs a `FunctionalModel`'):
    build(problem.variable_model, jit_compile=True)
  with pytest.raises(ValueError, match='`jit_compile` needs another `loop_implementation`'):
    build(problem.functional_model(), loop=REDUCE, jit_compile=True)


def test_packed_spec_tells_rows_from_steps():
  spec = algorithms.packed_spec(
    collections.OrderedDict(
      x=collections.OrderedDict(
        image=tf.TensorSpec([None, 2, 3]), seed=tf.TensorSpec([2], tf.int32)
      ),
      y=tf.TensorSpec([], tf.int64),
    )
  )
  assert spec == collections.OrderedDict(
    data=collections.OrderedDict(
      x=collections.OrderedDict(
        image=tf.TensorSpec([None, 2, 3]), seed=tf.TensorSpec([None, 2], tf.int32)
      ),
      y=tf.TensorSpec([None], tf.int64),
    ),
    index=tf.TensorSpec([None, None], tf.int32),
  )


def test_packed_clients_have_a_seed_for_each_step(problem):
  spec = collections.OrderedDict(
    x=collections.OrderedDict(features=problem.input_spec['x'], seed=tf.TensorSpec([2], tf.int32)),
    y=problem.input_spec['y'],
  )

  @tf.function
  def predict(weights, x, training):
    del training
    noise = tf.random.stateless_normal([1], x['seed'])
    return tf.matmul(x['features'], weights[0][0]) + weights[0][1] + noise

  model = tff.learning.models.FunctionalModel(
    initial_weights=(tuple(problem.initial), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean((output - label) ** 2),
    input_spec=spec,
  )
  seeds = np.array([[1, 2], [3, 4], [5, 6]], np.int32)

  def with_seed(batch, seed):
    x = collections.OrderedDict(features=batch['x'], seed=seed)
    return collections.OrderedDict(x=x, y=batch['y'])

  def packed_with_seeds(element):
    return collections.OrderedDict(data=with_seed(element['data'], seeds), index=element['index'])

  ordinary = tf.data.Dataset.zip(
    (problem.batches(1), tf.data.Dataset.from_tensor_slices(seeds))
  ).map(with_seed)
  packed = problem.packed(1).map(packed_with_seeds)
  expected, _ = one_round(build(model), [ordinary])
  actual, _ = one_round(build(model, loop=PACKED), [packed])
  for a, b in zip(actual, expected):
    np.testing.assert_array_equal(a, b)


def test_counts_clipping_as_by_hand():
  # The gradient is a batch's target, whatever the weight is. Of the norms 1, 3, 5 of one client and
  # 4, 2 of the other, 3, 5 and 4 are above the bound 2. So the first client moves by -0.5 (1 + 2 +
  # 2) and the second by -0.5 (-2 + 2).
  model = scalar_model(lambda output, label: tf.reduce_mean(output * label))
  process = build(model, optimizers.build_nar(0.5, 0.0, 2.0))
  (weight,), metrics = one_round(
    process, [scalar_dataset([[1.0], [3.0], [5.0]]), scalar_dataset([[-4.0], [2.0]])]
  )
  np.testing.assert_allclose(weight, -1.25)
  train = metrics['client_work']['train']
  assert train['total_steps'] == 5
  assert train['clipped_steps'] == 3
  np.testing.assert_allclose(train['mean_clipped_norm'], 4.0)


def test_optimizer_of_tff_trains_and_counts_no_clipping(problem):
  sgd = tff.learning.optimizers.build_sgdm(0.4)
  weights, metrics = one_round(build(problem.functional_model(), sgd), problem.datasets([1, 2]))
  same = optimizers.build_clipped_sgd(0.4, 0.0, np.inf)
  expected, _ = one_round(build(problem.functional_model(), same), problem.datasets([1, 2]))
  for a, b in zip(weights, expected):
    np.testing.assert_array_equal(a, b)
  train = metrics['client_work']['train']
  assert (train['clipped_steps'], train['total_steps'], train['mean_clipped_norm']) == (0, 4, 0.0)
  assert metrics['client_work']['learning_rate'] == np.float32(0.4)
  assert metrics['client_work']['weight_decay'] == 0.0


class _SignDescent(tff.learning.optimizers.Optimizer):
  """An optimizer without any hparam or state."""

  def initialize(self, specs):
    del specs
    return collections.OrderedDict()

  def next(self, state, weights, gradients):
    return state, tf.nest.map_structure(lambda w, g: w - tf.sign(g), weights, gradients)


def test_optimizer_without_hparams_trains():
  model = scalar_model(lambda output, label: tf.reduce_mean(output * label))
  (weight,), metrics = one_round(build(model, _SignDescent()), [scalar_dataset([[1.0], [3.0]])])
  assert weight == -2.0
  assert np.isnan(metrics['client_work']['learning_rate'])


def test_optimizer_without_hparams_cannot_be_scheduled_or_used_by_scaffold():
  model = scalar_model(lambda output, label: tf.reduce_mean(output * label))
  with pytest.raises(ValueError, match='`learning_rate_fn` needs .* found one with'):
    build(model, _SignDescent(), learning_rate_fn=lambda t: 0.1)
  with pytest.raises(
    ValueError, match='`client_optimizer_fn` must have the hparam `learning_rate`'
  ):
    build(model, _SignDescent(), name='scaffold', num_clients=1)


def test_client_without_data_takes_no_step(problem):
  process = build(problem.functional_model())
  empty = problem.batches(0).take(0)
  weights, metrics = one_round(process, [empty])
  for a, b in zip(weights, problem.initial):
    np.testing.assert_array_equal(a, b)
  assert metrics['client_work']['train']['total_steps'] == 0
  assert metrics['client_work']['train']['num_non_finite_clients'] == 0


def embedding_model(use_gather):
  """A model with a sparse or a dense gradient; its second weight has no gradient at all."""

  @tf.function
  def predict(weights, x, training):
    del training
    table, _ = weights[0]
    if use_gather:
      return tf.gather(table, x)
    return tf.linalg.matvec(tf.one_hot(x, 3), table)

  table = np.array([0.5, -1.0, 2.0], np.float32)
  return tff.learning.models.FunctionalModel(
    initial_weights=((table, np.ones([2], np.float32)), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean((output - label) ** 2),
    input_spec=(tf.TensorSpec([None], tf.int32), tf.TensorSpec([None])),
  )


@pytest.mark.parametrize('name', ['fed_prox', 'scaffold'])
def test_corrections_work_with_sparse_and_missing_gradients(run_rounds, name):
  data = tf.data.Dataset.from_tensor_slices(
    (np.array([0, 1, 1, 0], np.int32), np.array([1.0, 3.0, -1.0, 0.5], np.float32))
  ).batch(1)
  arguments = {'proximal_strength': 0.5} if name == 'fed_prox' else {'num_clients': 2}
  (table, unused), (dense_table, _) = (
    run_rounds(
      build(embedding_model(use_gather), name=name, **arguments),
      [[0], [0]],
      lambda clients: [data],
    )[0].global_model_weights.trainable
    for use_gather in (True, False)
  )
  np.testing.assert_allclose(table, dense_table, rtol=1e-6)
  np.testing.assert_array_equal(unused, np.ones([2]))


ARGUMENTS = {
  'fed_avg': {},
  'fed_prox': {'proximal_strength': 0.5},
  'scaffold': {'num_clients': 4},
  'fed_exp': {},
  'fed_adam': {},
  'fed_avgm': {},
  'fed_dyn': {'num_clients': 4, 'regularization_strength': 0.5},
}


def leaves(structure):
  return tf.nest.flatten(structure)


@pytest.mark.parametrize('name', ARGUMENTS)
def test_client_that_is_not_finite_contributes_nothing(problem, name):
  process = build(problem.functional_model(), name=name, **ARGUMENTS[name])

  def two_rounds(with_bad_client):
    state, control = process.initialize(), None
    for clients in ([0, 2], [1, 3]):
      data = problem.datasets(clients)
      if with_bad_client:
        data.insert(1, problem.bad_client())
      if algorithms.has_client_states(process):
        before = tf.nest.map_structure(lambda c: c + 0.1, process.initial_client_state())
        state, control, metrics = process.next(state, [before] * len(data), data)
        if with_bad_client:
          for a, b in zip(leaves(control.pop(1)), leaves(before), strict=True):
            np.testing.assert_array_equal(a, b)
      else:
        state, metrics = process.next(state, data)
    return state, control, metrics

  expected_state, expected_control, expected_metrics = two_rounds(False)
  state, control, metrics = two_rounds(True)
  for a, b in zip(leaves((state, control)), leaves((expected_state, expected_control))):
    np.testing.assert_array_equal(a, b)
  assert metrics['client_work']['train'].pop('num_non_finite_clients') == 1
  assert expected_metrics['client_work']['train'].pop('num_non_finite_clients') == 0
  assert metrics == expected_metrics


@pytest.mark.parametrize('loop', [ITERATOR, PACKED])
def test_variable_model_of_a_client_that_is_not_finite_contributes_nothing(problem, loop):
  process = build(problem.variable_model, loop=loop)
  data = problem.datasets([0, 2], loop)
  expected, expected_metrics = one_round(process, data)
  weights, metrics = one_round(process, [*data, problem.bad_client(packed=loop is PACKED)])
  for a, b in zip(weights, expected):
    np.testing.assert_array_equal(a, b)
  train, expected_train = (m['client_work']['train'] for m in (metrics, expected_metrics))
  assert train.pop('num_non_finite_clients') == 1
  del expected_train['num_non_finite_clients']
  assert train == expected_train


@pytest.mark.parametrize(
  ('name', 'aggregator'),
  [
    ('fed_avg', None),
    ('scaffold', None),
    ('fed_exp', None),
    ('fed_adam', None),
    ('fed_avgm', None),
    ('fed_dyn', None),
    ('fed_avgm', tff.aggregators.UnweightedMeanFactory()),
    ('fed_exp', tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 2, 1.0)),
  ],
)
def test_server_stays_if_no_client_is_finite(problem, run_rounds, name, aggregator):
  arguments = {**ARGUMENTS[name], 'model_aggregator': aggregator}
  if name == 'fed_exp':
    arguments['average_last_two'] = True
  process = build(problem.functional_model(), name=name, **arguments)
  state, _, _ = run_rounds(process, [[0, 1], [1, 2]], problem.datasets)
  bad = [problem.bad_client(), problem.bad_client()]
  new_state, _, (metrics,) = run_rounds(process, [[0, 1]], lambda clients: bad, state)
  for part in ('global_model_weights', 'finalizer', 'control'):
    if hasattr(state, part):
      for a, b in zip(leaves(getattr(new_state, part)), leaves(getattr(state, part))):
        np.testing.assert_array_equal(a, b)
  assert metrics['client_work']['train']['num_non_finite_clients'] == 2
  assert metrics['client_work']['train']['total_steps'] == 0
  # A mean over nobody is not 0.
  for name in ('mse', 'mean_clipped_norm'):
    assert np.isnan(metrics['client_work']['train'][name]), name
  assert metrics['finalizer']['server_step_size'] == 0.0
  # And the next round trains again.
  recovered, _, _ = run_rounds(process, [[0, 1]], problem.datasets, new_state)
  assert all(np.all(np.isfinite(w)) for w in leaves(recovered.global_model_weights))
  assert not np.array_equal(
    recovered.global_model_weights.trainable[0], state.global_model_weights.trainable[0]
  )
