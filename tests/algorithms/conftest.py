# SPDX-License-Identifier: Apache-2.0
"""A small problem that the tests share: four clients, a model of two leaves, a NumPy oracle."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms

INPUT_SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 3]), y=tf.TensorSpec([None, 1]))
# Examples of each client, in batches of 4: 2, 3, 1 and 2 steps, some of them short.
CLIENT_SIZES = (8, 11, 3, 6)
BATCH_SIZE = 4


@tf.function
def _predict(weights, x, training):
  del training
  (w, b), _ = weights
  return tf.tanh(tf.matmul(x, w) + b)


class Problem:
  """Data, models and datasets."""

  def __init__(self):
    rng = np.random.default_rng(7)
    self.initial = [
      np.array([[0.4], [-0.8], [0.6]], np.float32),
      np.array([-0.3], np.float32),
    ]
    self.x = rng.normal(size=(sum(CLIENT_SIZES), 3)).astype(np.float32)
    self.y = np.tanh(self.x @ np.array([[2.0], [1.0], [-2.0]]) + 0.5).astype(np.float32)
    ends = np.cumsum(CLIENT_SIZES)
    # Each client has targets shifted in its own way, so that their minima differ.
    for i, end in enumerate(ends):
      self.y[end - CLIENT_SIZES[i] : end] *= 0.5 * i - 0.7
    self.rows = [
      [np.arange(k, min(k + BATCH_SIZE, end)) for k in range(end - size, end, BATCH_SIZE)]
      for size, end in zip(CLIENT_SIZES, ends)
    ]
    self.clients = [[(self.x[r], self.y[r]) for r in rows] for rows in self.rows]
    self.input_spec = INPUT_SPEC

  def functional_model(self):
    return tff.learning.models.FunctionalModel(
      initial_weights=(tuple(self.initial), ()),
      predict_on_batch_fn=_predict,
      loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean((output - label) ** 2),
      metrics_fns=tff.learning.metrics.create_functional_metric_fns(
        lambda: collections.OrderedDict(mse=tf.keras.metrics.MeanSquaredError())
      ),
      input_spec=INPUT_SPEC,
    )

  def variable_model(self):
    return tff.learning.models.model_from_functional(
      self.functional_model(), [lambda: tf.keras.metrics.MeanSquaredError(name='mse')]
    )

  def batches(self, client):
    """A client's ordinary dataset."""
    rows = np.concatenate(self.rows[client])
    return tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(x=self.x[rows], y=self.y[rows])
    ).batch(BATCH_SIZE)

  def packed(self, client):
    """The same client, packed, with the examples of all clients resident."""
    index = np.full([len(self.rows[client]), BATCH_SIZE], -1, np.int32)
    for k, rows in enumerate(self.rows[client]):
      index[k, : len(rows)] = rows
    data = collections.OrderedDict(x=self.x, y=self.y)
    return tf.data.Dataset.from_tensors(collections.OrderedDict(data=data, index=index))

  def bad_client(self, packed=False):
    """A client whose gradient overflows."""
    batch = collections.OrderedDict(
      x=np.full([1, 3], np.inf, np.float32), y=np.ones([1, 1], np.float32)
    )
    if packed:
      element = collections.OrderedDict(data=batch, index=np.zeros([1, 1], np.int32))
      return tf.data.Dataset.from_tensors(element)
    return tf.data.Dataset.from_tensors(batch)

  def datasets(self, clients, loop=tff.learning.LoopImplementation.DATASET_ITERATOR):
    dataset_fn = self.packed if loop is algorithms.PACKED else self.batches
    return [dataset_fn(i) for i in clients]


@pytest.fixture(scope='session')
def problem():
  return Problem()


def _take_round(process, state, client_states, clients, data):
  """Runs one round of any process; the states of its clients, if they have any, are put into
  `client_states`."""
  if not algorithms.has_client_states(process):
    return process.next(state, data)
  states = [client_states.get(i, process.initial_client_state()) for i in clients]
  state, states, metrics = process.next(state, states, data)
  client_states.update(zip(clients, states))
  return state, metrics


@pytest.fixture(scope='session')
def run_rounds():
  """Runs any process; returns its last state, the clients' states and each round's metrics."""

  def run(process, participants, datasets_fn, state=None):
    state = process.initialize() if state is None else state
    client_states, history = {}, []
    for clients in participants:
      state, metrics = _take_round(process, state, client_states, clients, datasets_fn(clients))
      history.append(metrics)
    return state, client_states, history

  return run


@pytest.fixture(scope='session')
def run_beside_numpy():
  """Runs a process and a NumPy reference side by side, and compares all that they have after each
  round."""

  def run(process, server, participants, datasets_fn, numpy_round, tolerance):
    """`numpy_round(t, clients, data)` runs the reference; returns its metrics of all rounds."""
    state, client_states, history = process.initialize(), {}, []
    for t, clients in enumerate(participants):
      data = datasets_fn(t, clients)
      state, metrics = _take_round(process, state, client_states, clients, data)
      numpy_round(t, clients, data)
      pairs = [
        *zip(state.global_model_weights.trainable, server.weights),
        *zip(process.get_model_weights(state).trainable, server.evaluated),
      ]
      if client_states:
        pairs += zip(state.control, server.c)
        for i, client_state in client_states.items():
          pairs += zip(client_state, server.c_i[i])
      for actual, expected in pairs:
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
      work = metrics['client_work']
      measured = {**work, **work['train'], **metrics['finalizer']}
      for key, expected in server.metrics.items():
        np.testing.assert_allclose(measured[key], expected, rtol=1e-4, err_msg=key)
      assert measured['num_non_finite_clients'] == 0
      history.append(server.metrics)
    # Both sides of the bound are reached, or the comparison would say little.
    assert 0 < sum(m['clipped_steps'] for m in history) < sum(m['total_steps'] for m in history)
    return history

  return run
