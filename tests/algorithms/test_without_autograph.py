# SPDX-License-Identifier: Apache-2.0
"""The loop and the server's step as plain Python, without AutoGraph: the same numbers.

A person who debugs with `tf.config.run_functions_eagerly` sees this. It is also how coverage sees
these lines: AutoGraph runs a copy of them.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers
from fednar_tff.algorithms import client_data, local_training, server_step

ITERATOR = tff.learning.LoopImplementation.DATASET_ITERATOR
REDUCE = tff.learning.LoopImplementation.DATASET_REDUCE
PACKED = algorithms.PACKED
UNIFORM = tff.learning.ClientWeighting.UNIFORM
NUM_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES


@pytest.fixture
def eagerly():
  """Returns a function that calls another one with all functions of TensorFlow run eagerly."""

  def call(function):
    tf.config.run_functions_eagerly(True)
    try:
      return function()
    finally:
      tf.config.run_functions_eagerly(False)

  yield call
  tf.config.run_functions_eagerly(False)


def pull(gradient, weights, server_weights, constants):
  """A correction that uses all that it gets."""
  return [g + 0.1 * (w - s) + c for g, w, s, c in zip(gradient, weights, server_weights, constants)]


def train(problem, kind, loop, dataset, weighting=UNIFORM, optimizer=None, model=None, **arguments):
  weights = tff.learning.models.ModelWeights(tuple(map(tf.constant, problem.initial)), ())
  model = model or (problem.functional_model() if kind == 'functional' else problem.variable_model)
  optimizer = optimizer or optimizers.build_nar(0.4, 0.3, 0.6)
  hparams = optimizer.get_hparams(
    optimizer.initialize([tf.TensorSpec(w.shape) for w in weights.trainable])
  )
  return local_training.train(
    model, optimizer, hparams, weights, dataset, client_weighting=weighting,
    loop_implementation=loop, **arguments,
  )  # fmt: skip


def assert_same(found, expected):
  tf.nest.assert_same_structure(found, expected)
  for x, y in zip(tf.nest.flatten(found), tf.nest.flatten(expected)):
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize('kind', ['functional', 'variable'])
@pytest.mark.parametrize('loop', [ITERATOR, REDUCE, PACKED], ids=['iterator', 'reduce', 'packed'])
def test_local_training(problem, eagerly, kind, loop):
  (dataset,) = problem.datasets([1], loop)
  plain = eagerly(lambda: train(problem, kind, loop, dataset))
  assert_same(plain, train(problem, kind, loop, dataset))
  assert int(plain.num_steps) == 3 and bool(plain.is_finite)


@pytest.mark.parametrize('kind', ['functional', 'variable'])
def test_a_client_that_is_not_finite(problem, eagerly, kind):
  plain = eagerly(lambda: train(problem, kind, ITERATOR, problem.bad_client()))
  assert not bool(plain.is_finite) and float(plain.update_weight) == 0.0
  assert all(not np.any(leaf) for leaf in tf.nest.flatten(plain.update))


def test_a_correction_and_a_weight_by_examples(problem, eagerly):
  arguments = {
    'weighting': NUM_EXAMPLES,
    'correction_fn': pull,
    'correction_constants': [[tf.ones_like(x) for x in problem.initial]],
    'optimizer': tff.learning.optimizers.build_sgdm(0.2),
  }
  dataset = problem.batches(1)
  plain = eagerly(lambda: train(problem, 'functional', ITERATOR, dataset, **arguments))
  assert_same(plain, train(problem, 'functional', ITERATOR, dataset, **arguments))
  assert float(plain.update_weight) == 11.0
  assert int(plain.metrics['clipped_steps']) == 0  # By an optimizer that does not count them.


def test_a_weight_by_the_size_of_a_packed_client(problem, eagerly):
  element = problem.packed(1).get_single_element()
  element[client_data.SIZE_KEY] = tf.constant(77, tf.int32)
  dataset = tf.data.Dataset.from_tensors(element)
  plain = eagerly(lambda: train(problem, 'functional', PACKED, dataset, algorithms.DATA_SIZE))
  assert float(plain.update_weight) == 77.0


@pytest.mark.parametrize('extrapolated', [False, True])
def test_the_server_descends_along_the_mean(eagerly, extrapolated):
  leaf = tff.TensorType(np.float32, [2])
  weights_type = tff.to_type(tff.learning.models.ModelWeights((leaf,), ()))

  def double(mean):
    return tf.nest.map_structure(lambda x: 2.0 * x, mean), tf.constant(2.0)

  finalizer = eagerly(
    lambda: server_step.build_finalizer(
      tff.learning.optimizers.build_sgdm(0.5),
      weights_type,
      weights_type.trainable,
      double if extrapolated else None,
    )
  )
  weights = tff.learning.models.ModelWeights((np.array([3.0, 4.0], np.float32),), ())
  mean = (np.array([1.0, -2.0], np.float32),)
  output = finalizer.next(finalizer.initialize(), weights, mean)
  factor = 1.0 if extrapolated else 0.5
  expected = np.array([3.0, 4.0]) - factor * np.array([1.0, -2.0])
  np.testing.assert_allclose(output.result.trainable[0], expected)
  assert isinstance(output.measurements, collections.OrderedDict)
  np.testing.assert_allclose(output.measurements['server_step_size'], factor)
  np.testing.assert_allclose(output.measurements['model_norm'], np.linalg.norm(expected), rtol=1e-6)


def test_the_step_that_xla_compiles(problem, eagerly):
  dataset = problem.packed(1)
  plain = eagerly(lambda: train(problem, 'functional', PACKED, dataset, jit_compile=True))
  assert_same(plain, train(problem, 'functional', PACKED, dataset))


def test_a_model_that_does_not_count_its_examples(problem, eagerly):
  def uncounting_model():
    model = problem.variable_model()
    forward_pass = model.forward_pass
    model.forward_pass = lambda batch, training: forward_pass(batch, training)._replace(
      num_examples=None
    )
    return model

  plain = eagerly(
    lambda: train(
      problem, 'variable', ITERATOR, problem.batches(1), NUM_EXAMPLES, model=uncounting_model
    )
  )
  assert float(plain.update_weight) == 11.0


@pytest.mark.parametrize(
  ('name', 'arguments'),
  [
    ('fed_adam', {}),
    ('fed_adam', {'variant': 'reference'}),
    ('fed_exp', {}),
    ('fed_dyn', {'num_clients': 4, 'regularization_strength': 0.5}),
    ('scaffold', {'num_clients': 4}),
  ],
  ids=['fed_adam', 'fed_adam-reference', 'fed_exp', 'fed_dyn', 'scaffold'],
)
def test_two_rounds(problem, eagerly, name, arguments):
  def build():
    return algorithms.get_builder(name)(
      problem.functional_model(),
      client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6),
      loop_implementation=REDUCE,
      **arguments,
    )

  def two_rounds(process):
    state, clients = process.initialize(), problem.datasets([0, 1], REDUCE)
    if not algorithms.has_client_states(process):
      return process.next(process.next(state, clients).state, clients)
    state, client_states, _ = process.next(state, [process.initial_client_state()] * 2, clients)
    return process.next(state, client_states, clients)

  plain, converted = two_rounds(eagerly(build)), two_rounds(build())
  assert_same(
    tf.nest.map_structure(np.asarray, plain), tf.nest.map_structure(np.asarray, converted)
  )
