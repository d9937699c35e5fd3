# SPDX-License-Identifier: Apache-2.0
"""`compose_stateful`: an algorithm of two functions, and what it says about wrong ones."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers

UNIFORM = tff.learning.ClientWeighting.UNIFORM


def compose(problem, client_fn, server_fn, **arguments):
  client_side = algorithms.build_client_side(
    problem.functional_model(), client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6)
  )
  trainable = client_side.weights_type.trainable
  return algorithms.compose_stateful(
    client_side,
    algorithms.create_aggregator(None, trainable, UNIFORM),
    algorithms.build_finalizer(None, client_side.weights_type, trainable),
    client_fn=lambda *args: client_fn(client_side, *args),
    server_fn=server_fn,
    **arguments,
  )


def test_states_and_messages_go_where_they_should(problem):
  """Each client counts its rounds; the server counts the rounds of all, and halves its step."""

  def client_fn(client_side, hparams, weights, shared, client_state, dataset):
    result = client_side.train_fn(hparams, weights, dataset)
    return result, client_state + 1, shared + 1

  def server_fn(shared, mean_update, message_sum):
    del shared
    return message_sum, tf.nest.map_structure(lambda d: d / 2, mean_update)

  process = compose(
    problem,
    client_fn,
    server_fn,
    shared_type=tff.TensorType(np.int32),
    client_state_type=tff.TensorType(np.int32, [2]),
  )
  plain = algorithms.build_fed_avg(
    problem.functional_model(),
    client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(0.5),
  )
  assert algorithms.has_client_states(process) and not algorithms.has_client_states(plain)
  state, plain_state = process.initialize(), plain.initialize()
  states = [process.initial_client_state()] * 3
  expected = 0
  for _ in range(2):
    data = problem.datasets([0, 1, 2])
    state, states, metrics = process.next(state, states, data)
    plain_state, plain_metrics = plain.next(plain_state, data)
    expected = 3 * (expected + 1)
  assert state.control == expected
  np.testing.assert_array_equal(states, np.full([3, 2], 2))
  for a, b in zip(
    process.get_model_weights(state).trainable, plain.get_model_weights(plain_state).trainable
  ):
    np.testing.assert_allclose(a, b, rtol=1e-6)
  assert metrics['client_work'] == plain_metrics['client_work']


def test_functions_that_return_another_type_are_named(problem):
  def client_fn(client_side, hparams, weights, shared, client_state, dataset):
    return client_side.train_fn(hparams, weights, dataset), client_state, shared

  with pytest.raises(
    TypeError, match='`server_fn` must return a shared value of type int32, found'
  ):
    compose(
      problem,
      client_fn,
      lambda shared, mean, messages: (tf.cast(shared, tf.float32), mean),
      shared_type=tff.TensorType(np.int32),
    )
  with pytest.raises(
    TypeError, match='`client_fn` must return a client state of type int32, found'
  ):
    compose(
      problem,
      lambda *args: (*client_fn(*args)[:1], tf.zeros([3]), ()),
      lambda shared, mean, messages: (shared, mean),
      shared_type=tff.TensorType(np.int32),
    )


def test_fed_dyn_needs_no_learning_rate(problem):
  class Fixed(tff.learning.optimizers.Optimizer):
    """Steps of 0.1 times the gradient, without any hparam."""

    def initialize(self, specs):
      del specs
      return ()

    def next(self, state, weights, gradients):
      return state, tf.nest.map_structure(lambda w, g: w - 0.1 * g, weights, gradients)

  process = algorithms.build_fed_dyn(
    problem.functional_model(),
    num_clients=2,
    regularization_strength=0.5,
    client_optimizer_fn=Fixed(),
  )
  states = [process.initial_client_state()]
  state, _, _ = process.next(process.initialize(), states, problem.datasets([0]))
  assert np.any(state.control[0])
