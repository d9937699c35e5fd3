# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: the server's control variate is the mean of the clients'; it undoes their drift."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers


def test_server_control_is_the_mean_of_all_clients_after_every_round(problem):
  process = algorithms.build_scaffold(
    problem.functional_model(),
    num_clients=6,  # Two of them never take part.
    client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6),
    learning_rate_fn=algorithms.exponential_decay(0.4, 0.8),
    client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES,
  )
  state = process.initialize()
  client_states = [process.initial_client_state() for _ in range(6)]
  for clients in ([0], [0, 3], [1, 2], [3, 2, 1, 0]):
    state, new, _ = process.next(
      state, [client_states[i] for i in clients], problem.datasets(clients)
    )
    for i, client_state in zip(clients, new):
      client_states[i] = client_state
    for leaf, *leaves in zip(state.control, *client_states):
      np.testing.assert_allclose(leaf, np.mean(leaves, axis=0), atol=1e-6)
      assert np.any(leaf)


def quadratic():
  """The loss `a / 2 (w - b)^2`, where `a` and `b` are the data."""

  @tf.function
  def predict(weights, x, training):
    del training
    return x * (weights[0][0] ** 2) / 2.0, x * weights[0][0]

  def loss(output, label, sample_weight=None):
    # a w^2 / 2 - a w b, which has the same gradient.
    square, product = output
    return tf.reduce_mean(square - product * label)

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([], np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=collections.OrderedDict(x=tf.TensorSpec([None]), y=tf.TensorSpec([None])),
  )


def quadratic_client(a, b, steps):
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      x=np.full([steps, 1], a, np.float32), y=np.full([steps, 1], b, np.float32)
    )
  )


# The oracle in NumPy has the numbers of a round; this is what they are for.
@pytest.mark.slow
def test_converges_to_the_joint_minimum_where_fed_avg_does_not(run_rounds):
  data = [quadratic_client(1.0, 4.0, steps=3), quadratic_client(3.0, -2.0, steps=7)]
  joint_minimum = (1.0 * 4.0 + 3.0 * -2.0) / (1.0 + 3.0)
  sgd = tff.learning.optimizers.build_sgdm(0.1)
  scaffold, fed_avg = (
    run_rounds(process, [[0, 1]] * 60, lambda clients: data)[0].global_model_weights.trainable[0]
    for process in (
      algorithms.build_scaffold(quadratic(), num_clients=2, client_optimizer_fn=sgd),
      algorithms.build_fed_avg(quadratic(), client_optimizer_fn=sgd),
    )
  )
  np.testing.assert_allclose(scaffold, joint_minimum, atol=1e-3)
  assert abs(fed_avg - joint_minimum) > 0.1


def test_client_without_data_keeps_its_state(problem):
  process = algorithms.build_scaffold(
    problem.functional_model(),
    num_clients=2,
    client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6),
  )
  state, states, _ = process.next(
    process.initialize(), [process.initial_client_state()] * 2, problem.datasets([0, 1])
  )
  before = states[0]
  _, after, _ = process.next(state, [before], [problem.batches(0).take(0)])
  for a, b in zip(after[0], before):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('num_clients', [0, -1, 2.5])
def test_rejects_a_number_of_clients_out_of_range(problem, num_clients):
  with pytest.raises(ValueError, match='`num_clients` must be a positive integer, found'):
    algorithms.build_scaffold(
      problem.functional_model(),
      num_clients=num_clients,
      client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6),
    )
