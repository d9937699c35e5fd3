# SPDX-License-Identifier: Apache-2.0
"""AutoGraph converts what needs it, and nothing else."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms
from fednar_tff.algorithms import tracing


@pytest.fixture
def converted(monkeypatch):
  """Returns the list of what is traced by AutoGraph from here on."""
  names, original = [], tf.function

  def note(python_function=None, autograph=True, **arguments):
    if python_function is None or not autograph:
      return original(python_function, autograph=autograph, **arguments)

    def traced(*args, **kwargs):
      names.append(python_function.__name__)
      return original(python_function, **arguments)(*args, **kwargs)

    return traced

  monkeypatch.setattr(tracing.tf, 'function', note)
  return names


def square(x):
  return x * x


def absolute(x):
  if x < 0.0:
    return -x
  return x


def count(x):
  total = 0.0
  for y in x:
    total += y
  return total


def wrong(x):
  return x + 'a word'


def test_only_what_needs_it_is_converted(converted):
  assert float(tracing.function(square)(tf.constant(-3.0))) == 9.0
  assert converted == []
  assert float(tracing.function(absolute)(tf.constant(-3.0))) == 3.0
  assert float(tracing.function(count)(tf.constant([1.0, 2.0]))) == 3.0
  assert converted == ['absolute', 'count']


def test_arguments_may_be_named():
  assert float(tracing.function(lambda x, y: x - y)(y=tf.constant(1.0), x=tf.constant(3.0))) == 2.0


def test_an_error_is_that_of_the_function():
  with pytest.raises((TypeError, ValueError), match='a word|string'):
    tracing.function(wrong)(tf.constant(1.0))


class _HalvesLargeSteps(tff.learning.optimizers.Optimizer):
  """An optimizer as a user may write it, with Python's `if`."""

  def initialize(self, specs):
    del specs
    return {}

  def next(self, state, weights, gradients):
    norm = tf.linalg.global_norm(gradients)
    scale = 1.0
    if norm > 0.2:
      scale = 0.5
    return state, tuple(w - scale * g for w, g in zip(weights, gradients))


class _SkipsLargeBatches(tff.learning.models.VariableModel):
  """A model alike, whose `forward_pass` is no `tf.function`."""

  def __init__(self, model):
    self._model = model

  trainable_variables = property(lambda self: self._model.trainable_variables)
  non_trainable_variables = property(lambda self: self._model.non_trainable_variables)
  local_variables = property(lambda self: self._model.local_variables)
  input_spec = property(lambda self: self._model.input_spec)

  def forward_pass(self, batch_input, training=True):
    output = self._model.forward_pass(batch_input, training)
    loss = output.loss
    if output.num_examples > 3:
      loss = 0.0 * loss
    return output._replace(loss=loss)

  def predict_on_batch(self, batch_input, training=True):
    return self._model.predict_on_batch(batch_input, training)

  def report_local_unfinalized_metrics(self):
    return self._model.report_local_unfinalized_metrics()

  def metric_finalizers(self):
    return self._model.metric_finalizers()

  def reset_metrics(self):
    self._model.reset_metrics()


def one_round(problem, model, optimizer, clients):
  process = algorithms.build_fed_avg(model, client_optimizer_fn=optimizer)
  state = process.next(process.initialize(), problem.datasets(clients)).state
  return process.get_model_weights(state).trainable


def test_an_optimizer_with_control_flow_of_python(problem):
  found = one_round(problem, problem.functional_model(), _HalvesLargeSteps(), [2])
  # Client 2 takes a single step.
  plain = one_round(
    problem, problem.functional_model(), tff.learning.optimizers.build_sgdm(1.0), [2]
  )
  gradient = [x - y for x, y in zip(problem.initial, plain)]
  norm = np.sqrt(sum(np.sum(g * g) for g in gradient))
  assert norm > 0.2
  for w, x, g in zip(found, problem.initial, gradient):
    np.testing.assert_allclose(w, x - 0.5 * g, rtol=1e-5, atol=1e-6)


def test_a_model_with_control_flow_of_python(problem):
  optimizer = tff.learning.optimizers.build_sgdm(0.5)

  def model():
    return _SkipsLargeBatches(problem.variable_model())

  # Client 0 has batches of 4 examples only, client 2 one of 3.
  for w, x in zip(one_round(problem, model, optimizer, [0]), problem.initial):
    np.testing.assert_array_equal(w, x)
  for w, x in zip(
    one_round(problem, model, optimizer, [2]),
    one_round(problem, problem.variable_model, optimizer, [2]),
  ):
    np.testing.assert_allclose(w, x, rtol=1e-6)
