# SPDX-License-Identifier: Apache-2.0
"""What a model's precision changes, and what it does not; the numbers are held against NumPy in
test_models.py."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from fednar_tff import processor, tasks
from fednar_tff.tasks import keras_models, models
from fednar_tff.tasks import precision as precision_lib

PRECISIONS = {'float32': tf.float32, 'bfloat16': tf.bfloat16, 'float16': tf.float16}
HALF = ['bfloat16', 'float16']
NETWORKS = {
  'mlp': lambda: models.build_mlp(10),
  'cnn': lambda: models.build_cnn(10),
  'resnet18': lambda: models.build_resnet18(10),
}
SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, 32, 32, 3]), y=tf.TensorSpec([None], tf.int32)
)
PRODUCTS = ('Conv2D', 'Conv2DBackpropInput', 'Conv2DBackpropFilter', 'MatMul')
# What has to be float32: what normalises, and the loss.
FLOAT32_OPS = ('Rsqrt', 'SparseSoftmaxCrossEntropyWithLogits', 'Mean', 'Sum')


def types_of_operations(network, precision, spec=SPEC):
  """Returns the types in which a step computes, by kind of operation, and those of its gradient."""
  model = models.build_model_fns(network, spec, precision=precision)[0]()

  @tf.function(autograph=False)
  def step(batch):
    with tf.GradientTape() as tape:
      loss = model.forward_pass(batch, training=True).loss
    return tape.gradient(loss, model.trainable_variables)

  graph = step.get_concrete_function(spec).graph
  found = collections.defaultdict(set)
  for node in [*graph.as_graph_def().node] + [
    node for function in graph.as_graph_def().library.function for node in function.node_def
  ]:
    if node.attr['T'].type:  # A single one.
      found[node.op].add(tf.as_dtype(node.attr['T'].type))
  return found, {g.dtype for g in step.get_concrete_function(spec).structured_outputs}


@pytest.fixture
def has_instructions(monkeypatch):
  """As on a processor, or GPU, that computes in all types."""
  monkeypatch.setattr(precision_lib, 'is_rounded_float32', lambda dtype: False)


@pytest.mark.usefixtures('has_instructions')
@pytest.mark.parametrize('precision', PRECISIONS)
@pytest.mark.parametrize('name', NETWORKS)
def test_only_products_are_in_the_precision(name, precision):
  found, gradients = types_of_operations(NETWORKS[name](), precision)
  of_products = set.union(*(found[op] for op in PRODUCTS))
  assert of_products == {PRECISIONS[precision]}
  for op in FLOAT32_OPS:
    assert found[op] <= {tf.float32}, op
  assert found['SparseSoftmaxCrossEntropyWithLogits'] == {tf.float32}
  assert gradients == {tf.float32}


@pytest.mark.usefixtures('has_instructions')
@pytest.mark.parametrize('precision', HALF)
def test_a_transformers_softmax_and_norms_are_float32(precision):
  x = collections.OrderedDict(
    tokens=tf.TensorSpec([None, 7], tf.uint8), seed=tf.TensorSpec([2], tf.int32)
  )
  spec = collections.OrderedDict(x=x, y=tf.TensorSpec([None], tf.int32))
  network = models.build_transformer(11, layers=2, heads=2, width=8, hidden=12)
  found, gradients = types_of_operations(network, precision, spec)
  for op in ('Softmax', *FLOAT32_OPS):
    assert found[op] == {tf.float32}, op
  assert found['BatchMatMul'] | found['BatchMatMulV2'] == {PRECISIONS[precision]}
  # In float32 are the lookup of characters and the sums over rows in the norms' gradients.
  assert found['MatMul'] == {PRECISIONS[precision], tf.float32}
  assert gradients == {tf.float32}


@pytest.mark.parametrize(
  ('extensions', 'gpus', 'expected'),
  [
    (['avx2', 'avx512f'], [], {'bfloat16', 'float16'}),
    (['avx512_bf16'], [], {'float16'}),
    (['amx_bf16', 'avx512_fp16'], [], set()),
    (['avx2'], ['GPU:0'], set()),
    (None, [], {'bfloat16', 'float16'}),
  ],
)
def test_products_are_rounded_where_no_instructions_are(monkeypatch, extensions, gpus, expected):
  monkeypatch.setattr(processor, 'describe', lambda: {'extensions': extensions})
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: gpus)
  decide = precision_lib.is_rounded_float32.__wrapped__  # Not what this machine has found before.
  assert {name for name, dtype in PRECISIONS.items() if decide(dtype)} == expected


@pytest.mark.parametrize(('precision', 'half_unit'), [('bfloat16', 2.0**-8), ('float16', 2.0**-11)])
def test_without_instructions_sums_are_float32_and_rounded_once(monkeypatch, precision, half_unit):
  monkeypatch.setattr(precision_lib, 'is_rounded_float32', lambda dtype: True)
  generator, dtype = np.random.RandomState(0), PRECISIONS[precision]
  x, y, upstream = (
    tf.cast(generator.normal(size=shape), dtype) for shape in ([7, 300], [300, 5], [7, 5])
  )
  with tf.GradientTape() as tape:
    tape.watch((x, y))
    z = precision_lib.multiply(tf.linalg.matmul, x, y)
  found = z, *tape.gradient(z, (x, y), upstream)
  x, y, upstream = (v.numpy().astype(np.float64) for v in (x, y, upstream))
  for value, a, b in zip(found, (x, upstream, x.T), (y, y.T, upstream)):
    assert value.dtype == dtype
    error = np.abs(value.numpy().astype(np.float64) - a @ b)
    # Sums in the type itself would be wrong by several units.
    assert (error <= 1.01 * half_unit * np.abs(a @ b) + 1e-5).all()
    assert error.max() > 0.1 * half_unit


@pytest.mark.parametrize('precision', HALF)
def test_weights_and_data_are_the_same_bits(precision):
  usual, other = (tasks.create_task('digits', precision=p) for p in (None, precision))
  assert (usual.precision, other.precision) == ('float32', precision)
  assert other.arguments['precision'] == precision
  assert usual.partition.hash == other.partition.hash
  for x, y in zip(usual.model_fn().trainable_variables, other.model_fn().trainable_variables):
    assert x.dtype == y.dtype == tf.float32
    np.testing.assert_array_equal(x, y)
  batches = [
    next(iter(t.client_batches(t.partition.client_ids[0], 3, batch_size=5, local_steps=1, seed=1)))
    for t in (usual, other)
  ]
  for x, y in zip(*map(tf.nest.flatten, batches)):
    np.testing.assert_array_equal(x, y)


def test_dropout_drops_the_same_values_in_every_precision():
  spec = collections.OrderedDict(
    x=collections.OrderedDict(features=tf.TensorSpec([None, 8]), seed=tf.TensorSpec([2], tf.int32)),
    y=tf.TensorSpec([None], tf.int32),
  )
  x = collections.OrderedDict(features=np.ones([4, 8], np.float32), seed=np.array([1, 2], np.int32))
  network = models.build_mlp(3, hidden=(64,), dropout_rate=0.5)
  of_precision = [models.build_model_fns(network, spec, precision=p)[0]() for p in PRECISIONS]
  outputs = [model.predict_on_batch(x, training=True) for model in of_precision]
  for output in outputs[1:]:  # Another mask would change logits by more than a tenth.
    np.testing.assert_allclose(output, outputs[0], atol=0.02)
  assert np.ptp(outputs[0].numpy()[:, 0]) > 0.05


def _gradient_of_a_small_loss(precision, factor):
  """Returns the gradient of a layer's kernel; `factor` makes it small or large."""
  spec = collections.OrderedDict(x=tf.TensorSpec([None, 4]), y=tf.TensorSpec([None], tf.int32))

  def network(param, x, training):
    return models.dense(param, models.dense(param, x, 6, 'first') * factor, 3, 'logits')

  x = np.random.RandomState(0).normal(size=[5, 4]).astype(np.float32)
  batch = collections.OrderedDict(x=tf.constant(x), y=tf.constant([0, 1, 2, 0, 1]))
  model = models.build_model_fns(network, spec, precision=precision)[0]()
  with tf.GradientTape() as tape:
    loss = model.forward_pass(batch, training=True).loss
  return tape.gradient(loss, model.trainable_variables[0]).numpy()


def test_gradients_too_small_for_float16_survive_by_loss_scaling():
  factor = 2.0**-22  # The gradient is of the size of 1e-8; float16 ends at 6e-8.
  expected = _gradient_of_a_small_loss('float32', factor)
  assert 1e-9 < np.abs(expected).max() < 1e-7
  found = _gradient_of_a_small_loss('float16', factor)
  np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_a_gradient_that_overflows_float16_is_not_finite():
  assert np.isfinite(_gradient_of_a_small_loss('float16', 8.0)).all()
  large = _gradient_of_a_small_loss('float16', 2.0**14)
  assert not np.isfinite(large).all()
  assert np.isfinite(_gradient_of_a_small_loss('bfloat16', 2.0**14)).all()


# Keras knows no other way to multiply than TensorFlow's own.
@pytest.mark.usefixtures('has_instructions')
@pytest.mark.parametrize('precision', HALF)
def test_keras_forms_compute_nearly_the_same(precision):
  images = np.random.RandomState(0).randint(0, 256, [16, 32, 32, 3]).astype(np.uint8)
  for name in ('mlp', 'cnn'):
    model = models.build_model_fns(NETWORKS[name](), SPEC, precision=precision)[0]()
    weights = {v.name.removesuffix(':0'): v.numpy() for v in model.trainable_variables}
    keras_model = keras_models.of_images(name, [32, 32, 3], scale=255.0, precision=precision)(
      weights
    )
    expected = model.predict_on_batch((images / 255.0).astype(np.float32), training=False).numpy()
    found = keras_model(images).numpy()
    assert found.dtype == np.float32
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error < 0.01, (name, error)
  spec = {'tokens': tf.TensorSpec([None, 10], tf.uint8), 'seed': tf.TensorSpec([2], tf.int32)}
  network = models.build_transformer(12, layers=2, heads=4, width=16, hidden=24)
  labels = tf.TensorSpec([None], tf.int32)
  model = models.build_model_fns(network, {'x': spec, 'y': labels}, precision=precision)[0]()
  weights = {v.name.removesuffix(':0'): v.numpy() for v in model.trainable_variables}
  texts = np.random.RandomState(1).randint(0, 12, [9, 10]).astype(np.uint8)
  expected = model.predict_on_batch(
    {'tokens': texts, 'seed': np.zeros(2, np.int32)}, training=False
  )
  found = keras_models.of_codes(10, 12, causal=False, precision=precision)(weights)(texts)
  np.testing.assert_allclose(found, expected, atol=0.03 * np.abs(expected).max())


@pytest.mark.parametrize('name', ['digits', 'synthetic'])
def test_an_unknown_precision_is_told(name):
  with pytest.raises(ValueError, match=r"`precision` must be one of .*'bfloat16'.*found 'int8'"):
    tasks.create_task(name, precision='int8')
