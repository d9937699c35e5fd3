# SPDX-License-Identifier: Apache-2.0
"""NAR inside TFF's own algorithms, unchanged: the numbers of a round against the NumPy oracle."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import optimizers
from tests.optimizers import numpy_reference

LR, WD, BOUND = 0.125, 0.25, 1.5
INPUT_SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 2]), y=tf.TensorSpec([None, 1]))
# Two clients with two and one batches; the first has more examples.
CLIENTS = [
  [([[1.0, 2.0], [-1.0, 0.5]], [[3.0], [-2.0]]), ([[0.5, -1.5]], [[1.0]])],
  [([[2.0, 1.0], [0.0, 1.0]], [[-1.0], [4.0]])],
]
KERNEL, BIAS = np.array([[0.5], [-0.25]]), np.array([1.0])


def datasets():
  def dataset_of(batches):
    elements = [
      tf.data.Dataset.from_tensors(
        collections.OrderedDict(x=np.array(x, np.float32), y=np.array(y, np.float32))
      )
      for x, y in batches
    ]
    dataset = elements[0]
    for element in elements[1:]:
      dataset = dataset.concatenate(element)
    return dataset

  return [dataset_of(batches) for batches in CLIENTS]


def keras_model():
  return tf.keras.Sequential(
    [
      tf.keras.layers.Dense(
        1,
        kernel_initializer=tf.constant_initializer(KERNEL),
        bias_initializer=tf.constant_initializer(BIAS),
        input_shape=(2,),
      )
    ]
  )


def variable_model_fn():
  return tff.learning.models.from_keras_model(
    keras_model(), loss=tf.keras.losses.MeanSquaredError(), input_spec=INPUT_SPEC
  )


def functional_model():
  return tff.learning.models.functional_model_from_keras(
    keras_model(), loss_fn=tf.keras.losses.MeanSquaredError(), input_spec=INPUT_SPEC
  )


def train_client(kernel, bias, batches, oracle):
  """Runs an oracle over a client's batches; the gradients of the mean squared error are written
  out."""
  for x, y in batches:
    x, y = np.array(x), np.array(y)
    error = 2 * (x @ kernel + bias - y) / len(y)
    kernel, bias = oracle.step([kernel, bias], [x.T @ error, error.sum(0)])
  return kernel, bias


def fed_avg_round(kernel, bias, weights, build_oracle):
  """Returns the weighted mean of the clients' updates (initial minus final)."""
  updates = []
  for batches in CLIENTS:
    new = train_client(kernel, bias, batches, build_oracle())
    updates.append([kernel - new[0], bias - new[1]])
  return [np.average([u[i] for u in updates], axis=0, weights=weights) for i in (0, 1)]


def run(process, num_rounds=1):
  state = process.initialize()
  for _ in range(num_rounds):
    state = process.next(state, datasets()).state
  return process.get_model_weights(state).trainable


MODELS = pytest.mark.parametrize(
  'make_model', [lambda: variable_model_fn, functional_model], ids=['variable', 'functional']
)


@MODELS
@pytest.mark.parametrize(
  'build, weights',
  [
    (tff.learning.algorithms.build_weighted_fed_avg, (3, 2)),
    (tff.learning.algorithms.build_unweighted_fed_avg, (1, 1)),
  ],
  ids=['weighted', 'unweighted'],
)
def test_fed_avg(build, weights, make_model):
  process = build(
    make_model(),
    client_optimizer_fn=optimizers.build_nar(LR, WD, BOUND),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )
  kernel, bias = KERNEL, BIAS
  for _ in range(2):
    update = fed_avg_round(kernel, bias, weights, lambda: numpy_reference.nar(LR, WD, BOUND))
    kernel, bias = kernel - update[0], bias - update[1]
  found = run(process, num_rounds=2)
  np.testing.assert_allclose(found[0], kernel, rtol=1e-5)
  np.testing.assert_allclose(found[1], bias, rtol=1e-5)


def test_fed_avg_with_optimizer_schedule():
  process = tff.learning.algorithms.build_weighted_fed_avg_with_optimizer_schedule(
    variable_model_fn,
    client_learning_rate_fn=lambda round_num: LR / tf.cast(round_num + 1, tf.float32),
    client_optimizer_fn=lambda learning_rate: optimizers.build_nar(learning_rate, WD, BOUND),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )
  kernel, bias = KERNEL, BIAS
  for learning_rate in (LR, LR / 2):
    oracle = functools.partial(numpy_reference.nar, learning_rate, WD, BOUND)
    update = fed_avg_round(kernel, bias, (3, 2), oracle)
    kernel, bias = kernel - update[0], bias - update[1]
  found = run(process, num_rounds=2)
  np.testing.assert_allclose(found[0], kernel, rtol=1e-5)
  np.testing.assert_allclose(found[1], bias, rtol=1e-5)


def test_mime_lite():
  """Without a momentum to freeze, Mime Lite is FedAvg."""
  process = tff.learning.algorithms.build_weighted_mime_lite(
    variable_model_fn, base_optimizer=optimizers.build_nar(LR, WD, BOUND)
  )
  update = fed_avg_round(KERNEL, BIAS, (3, 2), lambda: numpy_reference.nar(LR, WD, BOUND))
  found = run(process)
  np.testing.assert_allclose(found[0], KERNEL - update[0], rtol=1e-5)
  np.testing.assert_allclose(found[1], BIAS - update[1], rtol=1e-5)


@pytest.mark.parametrize('bound', [0.25, 100.0], ids=['clipped', 'unclipped'])
def test_as_server_optimizer(bound):
  process = tff.learning.algorithms.build_weighted_fed_avg(
    variable_model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(LR),
    server_optimizer_fn=optimizers.build_nar(0.5, WD, bound),
  )
  update = fed_avg_round(KERNEL, BIAS, (3, 2), lambda: numpy_reference.clipped_sgd(LR, 0.0, np.inf))
  kernel, bias = numpy_reference.nar(0.5, WD, bound).step([KERNEL, BIAS], update)
  found = run(process)
  np.testing.assert_allclose(found[0], kernel, rtol=1e-5)
  np.testing.assert_allclose(found[1], bias, rtol=1e-5)


@pytest.mark.parametrize(
  'create_task',
  [
    lambda spec: tff.simulation.baselines.emnist.create_character_recognition_task(
      spec, model_id='cnn', use_synthetic_data=True
    ),
    pytest.param(
      lambda spec: tff.simulation.baselines.shakespeare.create_character_prediction_task(
        spec, use_synthetic_data=True
      ),
      marks=pytest.mark.slow,
    ),
  ],
  ids=['emnist', 'shakespeare'],
)
def test_on_tff_baseline_tasks(create_task):
  task = create_task(
    tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=4, max_elements=8)
  )
  bound, learning_rate = 0.5, 0.25
  process = tff.learning.algorithms.build_weighted_fed_avg(
    task.model_fn,
    client_optimizer_fn=optimizers.build_nar(learning_rate, 0.01, bound),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )
  train_data = task.datasets.train_data.preprocess(task.datasets.train_preprocess_fn)
  client = train_data.create_tf_dataset_for_client(train_data.client_ids[0])
  state = process.initialize()
  before = process.get_model_weights(state).trainable
  output = process.next(state, [client])
  after = process.get_model_weights(output.state).trainable
  num_steps = len(list(client))
  moved = numpy_reference.norm([np.asarray(x) - np.asarray(y) for x, y in zip(before, after)])
  assert 0 < moved <= num_steps * learning_rate * bound * (1 + 1e-5)
  assert np.isfinite(output.metrics['client_work']['train']['loss'])
