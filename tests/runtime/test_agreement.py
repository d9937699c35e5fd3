# SPDX-License-Identifier: Apache-2.0
"""TFF's own algorithms and aggregators give the same results as on TFF's own runtime.

They do in process, and on a cluster of three workers.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from fednar_tff import runtime

_NUM_CLIENTS = 5
_SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, 6], tf.float32), y=tf.TensorSpec([None, 1], tf.int32)
)


def _model_fn():
  model = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer([6]),
      tf.keras.layers.Dense(4, 'relu', kernel_initializer=tf.keras.initializers.GlorotUniform(1)),
      tf.keras.layers.Dense(3, kernel_initializer=tf.keras.initializers.GlorotUniform(2)),
    ]
  )
  return tff.learning.models.from_keras_model(
    model,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=_SPEC,
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


@pytest.fixture(scope='module')
def client_data():
  rng = np.random.default_rng(0)

  def dataset(num_examples):
    x = rng.normal(size=[num_examples, 6]).astype(np.float32)
    y = rng.integers(0, 3, [num_examples, 1]).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y)).batch(4)

  return [dataset(6 + 3 * i) for i in range(_NUM_CLIENTS)]


@pytest.fixture(scope='module')
def contexts():
  native = runtime.create_native_context()
  yield (
    native,
    runtime.create_in_process_context(num_threads=1),
    runtime.create_in_process_context(num_threads=3),
    runtime.create_cluster_context(
      num_workers=3, object_store_memory=2 * 10**8, simulate_secure_sums_in_the_clear=True
    ),
  )
  native._worker.interrupt()


@pytest.fixture(params=['in_process', pytest.param('cluster', marks=pytest.mark.slow)])
def context_with_secure_sums_in_the_clear(request, contexts):
  if request.param == 'cluster':
    return contexts[-1]
  return runtime.create_in_process_context(simulate_secure_sums_in_the_clear=True)


def _run_everywhere(contexts, program):
  """Runs a program on TFF's runtime, in process and on a cluster, and compares all it returns."""
  results = []
  for context in contexts:
    with tff.framework.get_context_stack().install(context):
      results.append(program())
  native, one_thread, three_threads, three_workers = results
  _assert_close(one_thread, native)
  _assert_close(three_workers, native)
  assert contexts[-1].describe()['bytes_in_last_round']['results'] > 0
  tree.map_structure(np.testing.assert_array_equal, one_thread, three_threads)
  return one_thread


def _assert_close(result, native):
  tree.assert_same_structure(native, result)
  for path, expected in tree.flatten_with_path(native):
    found = _at(result, path)
    assert type(found) is type(expected), path
    if isinstance(expected, bytes):
      assert found == expected, path
    else:
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=str(path))


def _at(structure, path):
  for key in path:
    structure = (
      getattr(structure, key)
      if isinstance(key, str) and hasattr(structure, key)
      else structure[key]
    )
  return structure


def _train(process, client_data, initial_state=None, num_rounds=2):
  def program():
    state = process.initialize() if initial_state is None else initial_state
    metrics = []
    for _ in range(num_rounds):
      state, round_metrics = process.next(state, client_data)
      metrics.append(round_metrics)
    return state, metrics

  return program


@pytest.mark.parametrize(
  'loop',
  [
    tff.learning.LoopImplementation.DATASET_REDUCE,  # TFF's default.
    pytest.param(tff.learning.LoopImplementation.DATASET_ITERATOR, marks=pytest.mark.slow),
  ],
  ids=lambda loop: loop.name,
)
def test_weighted_fed_avg(contexts, client_data, loop):
  process = tff.learning.algorithms.build_weighted_fed_avg(
    _model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3),
    server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
    loop_implementation=loop,
  )
  _, metrics = _run_everywhere(contexts, _train(process, client_data))
  examples = sum(6 + 3 * i for i in range(_NUM_CLIENTS))
  assert metrics[0]['client_work']['train']['num_examples'] == examples


def test_fed_eval(contexts, client_data):
  process = tff.learning.algorithms.build_fed_eval(_model_fn)
  _run_everywhere(contexts, _train(process, client_data))


@pytest.mark.slow
def test_weighted_mime_lite(contexts, client_data):
  process = tff.learning.algorithms.build_weighted_mime_lite(
    _model_fn, base_optimizer=tff.learning.optimizers.build_adam(0.05)
  )
  _run_everywhere(contexts, _train(process, client_data))


@pytest.mark.slow
def test_fed_sgd(contexts, client_data):
  process = tff.learning.algorithms.build_fed_sgd(
    _model_fn, server_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3, momentum=0.5)
  )
  _run_everywhere(contexts, _train(process, client_data))


@pytest.mark.slow
def test_fed_recon(contexts, client_data):
  """Clients make some of the weights anew in each round, from one part of their data."""

  def model_fn():
    initializer = tf.keras.initializers.GlorotUniform(seed=1)
    hidden = tf.keras.layers.Dense(4, activation='relu', kernel_initializer=initializer)
    output = tf.keras.layers.Dense(3, kernel_initializer='zeros')
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
      tf.keras.Sequential([tf.keras.layers.InputLayer([6]), hidden, output]),
      global_layers=[hidden],
      local_layers=[output],
      input_spec=_SPEC,
    )

  process = tff.learning.algorithms.build_fed_recon(
    model_fn,
    loss_fn=lambda: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics_fn=lambda: [tf.keras.metrics.SparseCategoricalAccuracy()],
    dataset_split_fn=tff.learning.models.ReconstructionModel.build_dataset_split_fn(recon_epochs=2),
  )
  _run_everywhere(contexts, _train(process, client_data))


def test_k_means(contexts, client_data):
  process = tff.learning.algorithms.build_fed_kmeans(
    num_clusters=2, data_shape=(6,), random_seed=(1, 2)
  )
  points = [dataset.unbatch().map(lambda e: e['x']) for dataset in client_data]
  _run_everywhere(contexts, _train(process, points))


@pytest.mark.slow
@pytest.mark.parametrize(
  'aggregator',
  [
    pytest.param(tff.learning.robust_aggregator(), id='robust'),
    pytest.param(tff.learning.robust_aggregator(zeroing=False), id='adaptive_clipping'),
    pytest.param(
      tff.aggregators.MeanFactory(
        tff.aggregators.clipping_factory(0.01, tff.aggregators.SumFactory())
      ),
      id='clipping',
    ),
    pytest.param(
      tff.learning.compression_aggregator(zeroing=False, clipping=False), id='compression'
    ),
  ],
)
def test_model_aggregators(contexts, client_data, aggregator):
  process = tff.learning.algorithms.build_weighted_fed_avg(
    _model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3),
    model_aggregator=aggregator,
  )
  _run_everywhere(contexts, _train(process, client_data))


@pytest.mark.slow
def test_differentially_private_aggregator(contexts, client_data):
  # Without noise, because noise is another one on each runtime; the clipping adapts and the sums
  # are the same.
  aggregator = tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
    noise_multiplier=0.0, clients_per_round=_NUM_CLIENTS, initial_l2_norm_clip=0.05
  )
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    _model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3),
    model_aggregator=aggregator,
  )
  _run_everywhere(contexts, _train(process, client_data))


@pytest.mark.slow
def test_secure_aggregator_in_the_clear(client_data, context_with_secure_sums_in_the_clear):
  process = tff.learning.algorithms.build_weighted_fed_avg(
    _model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3),
    model_aggregator=tff.learning.secure_aggregator(),
  )
  plain = tff.learning.algorithms.build_weighted_fed_avg(
    _model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3),
    model_aggregator=tff.learning.robust_aggregator(),
  )
  with tff.framework.get_context_stack().install(context_with_secure_sums_in_the_clear):
    secure, _ = _train(process, client_data)()
    expected, _ = _train(plain, client_data)()
  for x, y in zip(
    secure.global_model_weights.trainable, expected.global_model_weights.trainable, strict=True
  ):
    np.testing.assert_allclose(x, y, atol=1e-3)  # Secure sums round to fixed point.


@pytest.mark.slow
def test_secure_aggregator_that_is_nested_deeply(context_with_secure_sums_in_the_clear):
  """TFF's own replacement of secure sums fails on it, for want of depth in a protocol buffer."""
  ones = np.ones([7], np.float32)
  aggregator = tff.learning.ddp_secure_aggregator(
    noise_multiplier=1e-3, expected_clients_per_round=4
  )
  process = aggregator.create(tff.types.to_type((np.float32, [7])))
  with tff.framework.get_context_stack().install(context_with_secure_sums_in_the_clear):
    output = process.next(process.initialize(), [ones] * 4)
  first_bound = 0.1
  np.testing.assert_allclose(output.result, first_bound / np.sqrt(7.0) * ones, rtol=0.01)
