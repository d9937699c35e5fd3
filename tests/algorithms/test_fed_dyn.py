# SPDX-License-Identifier: Apache-2.0
"""FedDyn against NumPy, and its promise: the joint minimum, whatever the clients' own are."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers
from fednar_tff.algorithms import fed_dyn
from tests.algorithms import numpy_reference

LEARNING_RATES = (0.4, 0.32, 0.256, 0.2048)
PARTICIPANTS = ([0, 2], [1], [3, 1, 0], [2, 3])
NUM_CLIENTS = 5  # One of them never takes part.
STRENGTH = 0.7
BUILDERS = {'nar': optimizers.build_nar, 'clip': optimizers.build_clipped_sgd}


class Oracle:
  """Algorithm 1 of the paper, with its gradients as they are there: `theta` is the model."""

  def __init__(self, problem):
    self.clients = [numpy_reference.Client(batches) for batches in problem.clients]
    self.theta = [np.array(v, np.float64) for v in problem.initial]
    self.h = [np.zeros_like(v) for v in self.theta]
    self.gradients = [[np.zeros_like(v) for v in self.theta] for _ in range(NUM_CLIENTS)]
    self.num_clipped = 0

  def round(self, participants, rule, lr, wd, bound):
    thetas = []
    for k in participants:

      def correction(y, own=self.gradients[k], theta=self.theta):
        return [STRENGTH * (a - b) - g for a, b, g in zip(y, theta, own)]

      update = self.clients[k].train(rule, self.theta, lr, wd, bound, correction)
      theta_k = [a - u for a, u in zip(self.theta, update)]
      self.gradients[k] = [
        g - STRENGTH * (a - b) for g, a, b in zip(self.gradients[k], theta_k, self.theta)
      ]
      thetas.append(theta_k)
      self.num_clipped += len(self.clients[k].clipped_norms)
    moved = [sum(a - b for a in leaf) for *leaf, b in zip(*thetas, self.theta)]
    self.h = [h - STRENGTH * m / NUM_CLIENTS for h, m in zip(self.h, moved)]
    self.theta = [np.mean(leaf, axis=0) - h / STRENGTH for *leaf, h in zip(*thetas, self.h)]


@pytest.mark.parametrize(
  'loop', [tff.learning.LoopImplementation.DATASET_ITERATOR, algorithms.PACKED]
)
@pytest.mark.parametrize('rule', BUILDERS)
def test_equals_numpy_over_rounds_with_partial_participation(problem, run_rounds, rule, loop):
  weight_decay, bound = 0.3, 0.6
  process = fed_dyn.build_fed_dyn(
    problem.functional_model(),
    num_clients=NUM_CLIENTS,
    regularization_strength=STRENGTH,
    client_optimizer_fn=BUILDERS[rule](9.0, weight_decay, bound),
    learning_rate_fn=algorithms.exponential_decay(LEARNING_RATES[0], 0.8),
    loop_implementation=loop,
  )
  state, client_states, history = run_rounds(
    process, PARTICIPANTS, lambda clients: problem.datasets(clients, loop)
  )

  oracle = Oracle(problem)
  for clients, lr in zip(PARTICIPANTS, LEARNING_RATES):
    oracle.round(clients, rule, lr, weight_decay, bound)
  for actual, expected in (
    (process.get_model_weights(state).trainable, oracle.theta),
    (state.control, oracle.h),
    *((client_states[k], oracle.gradients[k]) for k in range(4)),
  ):
    for a, e in zip(actual, expected, strict=True):
      np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)
  # Both sides of the bound, or this would prove half of it.
  metrics = [m['client_work']['train'] for m in history]
  assert sum(m['clipped_steps'] for m in metrics) == oracle.num_clipped
  assert 0 < oracle.num_clipped < sum(m['total_steps'] for m in metrics)


def test_mean_gradient_is_the_mean_over_all_clients(problem, run_rounds):
  process = fed_dyn.build_fed_dyn(
    problem.variable_model,
    num_clients=NUM_CLIENTS,
    regularization_strength=STRENGTH,
    client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6),
  )
  state, client_states, _ = run_rounds(process, PARTICIPANTS, problem.datasets)
  for i, leaf in enumerate(state.control):
    total = sum(client_state[i] for client_state in client_states.values())
    np.testing.assert_allclose(leaf, total / NUM_CLIENTS, atol=1e-6)
    assert np.any(leaf)


def quadratic():
  """The loss `x / 2 (w - y)^2` up to a constant, where `x` and `y` are the data."""

  @tf.function
  def predict(weights, x, training):
    del training
    w = weights[0][0]
    return x * w**2 / 2.0, x * w

  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(output[0] - output[1] * label)

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([], np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=loss,
    input_spec=collections.OrderedDict(x=tf.TensorSpec([None]), y=tf.TensorSpec([None])),
  )


# The oracle in NumPy has the numbers of a round; this is what they are for.
@pytest.mark.slow
def test_converges_to_the_joint_minimum_where_fed_avg_does_not(run_rounds):
  curvatures, minima, steps = (1.0, 3.0), (4.0, -2.0), (3, 7)
  data = [
    tf.data.Dataset.from_tensors(
      collections.OrderedDict(x=np.array([a], np.float32), y=np.array([b], np.float32))
    ).repeat(k)
    for a, b, k in zip(curvatures, minima, steps)
  ]
  joint_minimum = np.dot(curvatures, minima) / np.sum(curvatures)
  sgd = tff.learning.optimizers.build_sgdm(0.1)
  fed_dyn_weight, fed_avg_weight = (
    run_rounds(process, [[0, 1]] * 80, lambda clients: data)[0].global_model_weights.trainable[0]
    for process in (
      fed_dyn.build_fed_dyn(
        quadratic(), num_clients=2, regularization_strength=2.0, client_optimizer_fn=sgd
      ),
      algorithms.build_fed_avg(quadratic(), client_optimizer_fn=sgd),
    )
  )
  np.testing.assert_allclose(fed_dyn_weight, joint_minimum, atol=1e-3)
  assert abs(fed_avg_weight - joint_minimum) > 0.1


@pytest.mark.parametrize('strength', [0.0, -1.0, float('inf'), float('nan')])
def test_rejects_a_strength_out_of_range(problem, strength):
  with pytest.raises(ValueError, match='`regularization_strength` must be a positive number'):
    fed_dyn.build_fed_dyn(
      problem.functional_model(),
      num_clients=2,
      regularization_strength=strength,
      client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6),
    )


def test_rejects_a_weighting(problem):
  with pytest.raises(TypeError, match='client_weighting'):
    fed_dyn.build_fed_dyn(
      problem.functional_model(),
      num_clients=2,
      regularization_strength=1.0,
      client_optimizer_fn=optimizers.build_nar(0.4, 0.3, 0.6),
      client_weighting=tff.learning.ClientWeighting.NUM_EXAMPLES,
    )
