# SPDX-License-Identifier: Apache-2.0
"""The networks against NumPy written on its own: loops and einsum, no shared code."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.tasks import layers, models


def _spec(shape, dtype=tf.float32):
  return collections.OrderedDict(
    x=tf.TensorSpec([None, *shape], dtype), y=tf.TensorSpec([None], tf.int32)
  )


def _text_spec(positions, every=False):
  x = collections.OrderedDict(
    tokens=tf.TensorSpec([None, positions], tf.uint8), seed=tf.TensorSpec([2], tf.int32)
  )
  y = tf.TensorSpec([None, positions], tf.uint8) if every else tf.TensorSpec([None], tf.int32)
  return collections.OrderedDict(x=x, y=y)


def _random_model(network, spec, seed=0, precision='float32'):
  """A model all of whose weights are random, also those that start at 0 or 1, and the weights."""
  model = models.build_model_fns(network, spec, precision=precision)[0]()
  generator = np.random.RandomState(seed)
  weights = []
  for variable in model.trainable_variables:
    value = variable.numpy() + generator.normal(scale=0.1, size=variable.shape)
    variable.assign(value)
    weights.append(value.astype(np.float32).astype(np.float64))
  return model, weights


def _num_parameters(model_fn):
  with tf.Graph().as_default():
    return sum(v.shape.num_elements() for v in model_fn().trainable_variables)


def _np_conv(x, kernel, stride=1, pad=0):
  size = kernel.shape[0]
  x = np.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)])
  height = (x.shape[1] - size) // stride + 1
  out = 0.0
  for i in range(size):
    for j in range(size):
      end = (height - 1) * stride + 1
      patch = x[:, i : i + end : stride, j : j + end : stride]
      out = out + np.einsum('nhwc,cd->nhwd', patch, kernel[i, j])
  return out


def _np_group_norm(x, scale, offset, groups=2):
  out = np.empty_like(x)
  per_group = x.shape[-1] // groups
  for n in range(x.shape[0]):
    for g in range(groups):
      channels = slice(g * per_group, (g + 1) * per_group)
      part = x[n, :, :, channels]
      out[n, :, :, channels] = (part - part.mean()) / np.sqrt(part.var() + 1e-5)
  return out * scale + offset


def _np_layer_norm(x, scale, offset):
  centered = x - x.mean(axis=-1, keepdims=True)
  return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-5) * scale + offset


def _np_relu(x):
  return np.where(x > 0, x, 0)


def _np_pool(x):
  return np.maximum.reduce([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)])


def _np_cnn(weights, x, pad):
  k0, b0, k1, b1, k2, b2, k3, b3 = weights
  x = _np_pool(_np_relu(_np_conv(x, k0, pad=pad) + b0))
  x = _np_pool(_np_relu(_np_conv(x, k1, pad=pad) + b1))
  return _np_relu(x.reshape(len(x), -1) @ k2 + b2) @ k3 + b3


def _np_resnet18(weights, x, window, stem_stride=1):
  weights = iter(weights)

  def conv_norm(x, stride, pad):
    y = _np_conv(x, next(weights), stride, pad)
    return _np_group_norm(y, next(weights), next(weights))

  x = _np_relu(conv_norm(x, stem_stride, 1))
  for stride in (1, 1, 2, 1, 2, 1, 2, 1):
    y = conv_norm(_np_relu(conv_norm(x, stride, 1)), 1, 1)
    x = _np_relu(y + (conv_norm(x, 2, 0) if stride == 2 else x))
  assert x.shape[1:] == ((4, 4, 512) if stem_stride == 1 else (2, 2, 64))
  return x[:, :window, :window].mean(axis=(1, 2)) @ next(weights) + next(weights)


def _np_transformer(weights, tokens, layers, heads, causal=False, span=None):
  """Every position of every layer is computed here, and the logits after each are returned."""
  weights = iter(weights)
  table = next(weights)
  width = table.shape[1]
  x = table[tokens] * np.sqrt(width) + (next(weights) if span is None else 0.0)
  for _ in range(layers):
    kernel, bias = next(weights), next(weights)
    by_distance = None if span is None else next(weights)
    query, key, value = np.split(x @ kernel + bias, 3, axis=-1)
    context = np.empty_like(x)
    for n in range(len(x)):
      for h in range(heads):
        part = slice(h * width // heads, (h + 1) * width // heads)
        for p in range(x.shape[1]):
          if span is not None:
            seen = slice(max(0, p + 1 - span), p + 1)
          else:
            seen = slice(p + 1) if causal else slice(None)
          scores = key[n, seen, part] @ query[n, p, part] / np.sqrt(width // heads)
          if span is not None:
            # The last one is the position itself, at distance 0.
            scores = scores + by_distance[h, : len(scores)][::-1]
          shares = np.exp(scores - scores.max())
          context[n, p, part] = shares @ value[n, seen, part] / shares.sum()
    x = _np_layer_norm(x + context @ next(weights) + next(weights), next(weights), next(weights))
    y = _np_relu(x @ next(weights) + next(weights)) @ next(weights) + next(weights)
    x = _np_layer_norm(x + y, next(weights), next(weights))
  return x @ next(weights) + next(weights)


def test_parameter_counts_are_the_papers():
  resnet18 = models.build_model_fns(models.build_resnet18(10), _spec([32, 32, 3]))[0]
  assert _num_parameters(resnet18) == 11_173_962
  transformer = models.build_model_fns(models.build_transformer(80), _text_spec(80))[0]
  assert _num_parameters(transformer) == 1_220_432


def test_mlp_equals_numpy():
  model, (k0, b0, k1, b1) = _random_model(models.build_mlp(3, hidden=(5,)), _spec([2, 2, 1]))
  x = np.random.RandomState(1).normal(size=[4, 2, 2, 1])
  expected = _np_relu(x.reshape(4, 4) @ k0 + b0) @ k1 + b1
  np.testing.assert_allclose(model.predict_on_batch(x.astype(np.float32)), expected, atol=1e-5)


@pytest.mark.parametrize('build', [models.build_cnn, models.build_small_cnn])
@pytest.mark.parametrize('side, channels, pad', [(32, 3, 0), (8, 1, 2)])
def test_cnn_equals_numpy(build, side, channels, pad):
  model, weights = _random_model(build(10), _spec([side, side, channels]))
  x = np.random.RandomState(1).normal(size=[2, side, side, channels])
  actual = model.predict_on_batch(x.astype(np.float32))
  np.testing.assert_allclose(actual, _np_cnn(weights, x, pad), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize('pooling, window', [('global', 4), ('top_left', 3)])
def test_resnet18_equals_numpy(pooling, window):
  model, weights = _random_model(models.build_resnet18(10, pooling), _spec([32, 32, 3]))
  x = np.random.RandomState(1).normal(size=[2, 32, 32, 3])
  expected = _np_resnet18(weights, x, window)
  actual = model.predict_on_batch(x.astype(np.float32)).numpy()
  np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_small_resnet18_equals_numpy():
  model, weights = _random_model(models.build_small_resnet18(10), _spec([32, 32, 3]))
  assert sum(w.size for w in weights) == 176_402
  x = np.random.RandomState(1).normal(size=[2, 32, 32, 3])
  expected = _np_resnet18(weights, x, 2, stem_stride=2)
  actual = model.predict_on_batch(x.astype(np.float32)).numpy()
  np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_gradients_of_small_resnet18_grow_as_its_kernels_shrink():
  model = models.build_model_fns(models.build_small_resnet18(10), _spec([32, 32, 3]))[0]()
  generator = np.random.RandomState(1)
  batch = collections.OrderedDict(
    x=generator.normal(size=[4, 32, 32, 3]).astype(np.float32), y=np.int32([0, 3, 3, 9])
  )
  kernels = [v for v in model.trainable_variables if v.shape.rank == 4]
  assert len(kernels) == 20  # 17 of ResNet-18's convolutions, and its 3 shortcuts.

  def loss_and_gradients():
    with tf.GradientTape() as tape:
      loss = model.forward_pass(batch, training=True).loss
    return loss, tape.gradient(loss, kernels)

  loss, gradients = loss_and_gradients()
  for kernel in kernels:
    kernel.assign(0.5 * kernel)
  small_loss, large_gradients = loss_and_gradients()
  np.testing.assert_allclose(small_loss, loss, rtol=1e-3)  # But for the epsilon of the norms.
  for before, after in zip(gradients, large_gradients):
    np.testing.assert_allclose(tf.norm(after) / tf.norm(before), 2.0, rtol=0.01)


@pytest.mark.parametrize('shift', [0.0, 30.0])
def test_group_norm_equals_numpy(shift):
  generator = np.random.RandomState(2)
  x = generator.normal(loc=shift, size=[3, 5, 5, 6])
  scale, offset = generator.normal(size=[2, 6])
  weights = iter([tf.constant(scale, tf.float32), tf.constant(offset, tf.float32)])
  actual = models.group_norm(lambda *a, **k: next(weights), tf.constant(x, tf.float32), 'norm')
  np.testing.assert_allclose(actual, _np_group_norm(x, scale, offset), atol=1e-5 * (1 + shift**2))


@pytest.mark.parametrize('prediction', ['last', 'every'])
@pytest.mark.parametrize('layers', [1, 2])
def test_transformer_equals_numpy(layers, prediction):
  network = models.build_transformer(
    11, layers=layers, heads=2, width=8, hidden=12, dropout_rate=0.0, prediction=prediction
  )
  every = prediction == 'every'
  model, weights = _random_model(network, _text_spec(7, every))
  tokens = np.random.RandomState(1).randint(0, 11, [3, 7])
  x = {'tokens': tokens.astype(np.uint8), 'seed': np.zeros(2, np.int32)}
  expected = _np_transformer(weights, tokens, layers, 2, causal=every)
  actual = model.predict_on_batch(x, training=False)
  np.testing.assert_allclose(actual, expected[:, -1], atol=1e-4)
  actual = model.predict_on_batch(x, training=True)
  np.testing.assert_allclose(actual, expected if every else expected[:, -1], atol=1e-4)


@pytest.mark.parametrize('prediction', ['last', 'every'])
@pytest.mark.parametrize('layers', [1, 2, 3])
def test_transformer_with_a_span_equals_numpy(layers, prediction):
  network = models.build_transformer(
    11, layers=layers, heads=2, width=8, hidden=12, dropout_rate=0.0, prediction=prediction, span=3
  )
  every = prediction == 'every'
  model, weights = _random_model(network, _text_spec(9, every))
  tokens = np.random.RandomState(1).randint(0, 11, [3, 9])
  x = {'tokens': tokens.astype(np.uint8), 'seed': np.zeros(2, np.int32)}
  expected = _np_transformer(weights, tokens, layers, 2, span=3)
  actual = model.predict_on_batch(x, training=False)
  np.testing.assert_allclose(actual, expected[:, -1], atol=1e-4)
  actual = model.predict_on_batch(x, training=True)
  np.testing.assert_allclose(actual, expected if every else expected[:, -1], atol=1e-4)


def test_small_transformer_equals_numpy():
  network = models.build_small_transformer(80, dropout_rate=0.0, prediction='every')
  model, weights = _random_model(network, _text_spec(80, every=True))
  assert sum(w.size for w in weights) == 60_336
  tokens = np.random.RandomState(1).randint(0, 80, [2, 80])
  x = {'tokens': tokens.astype(np.uint8), 'seed': np.zeros(2, np.int32)}
  expected = _np_transformer(weights, tokens, 1, 4, span=8)
  np.testing.assert_allclose(model.predict_on_batch(x, training=True), expected, atol=1e-4)
  np.testing.assert_allclose(model.predict_on_batch(x, training=False), expected[:, -1], atol=1e-4)


# What rounding to so few bits may do to logits, as a share of the largest: bfloat16 has 8 bits, and
# float16 has 11.
HALF_PRECISION_TOLERANCE = {'bfloat16': 0.05, 'float16': 0.01}


@pytest.mark.parametrize('precision', HALF_PRECISION_TOLERANCE)
@pytest.mark.parametrize('model', ['cnn', 'transformer'])
def test_networks_in_half_precision_equal_numpy(model, precision):
  tolerance = HALF_PRECISION_TOLERANCE[precision]
  generator = np.random.RandomState(1)
  if model == 'cnn':
    built, weights = _random_model(models.build_cnn(10), _spec([32, 32, 3]), precision=precision)
    x = generator.normal(size=[4, 32, 32, 3])
    actual, expected = built.predict_on_batch(x.astype(np.float32)), _np_cnn(weights, x, 0)
  else:
    network = models.build_transformer(
      11, layers=2, heads=2, width=32, hidden=48, dropout_rate=0.0, prediction='every'
    )
    built, weights = _random_model(network, _text_spec(7, every=True), precision=precision)
    tokens = generator.randint(0, 11, [8, 7])
    x = {'tokens': tokens.astype(np.uint8), 'seed': np.zeros(2, np.int32)}
    actual = built.predict_on_batch(x, training=True)
    expected = _np_transformer(weights, tokens, 2, 2, causal=True)
  assert actual.dtype == tf.float32
  error = np.abs(actual - expected).max() / np.abs(expected).max()
  assert 1e-5 < error < tolerance, error  # Not exact either: then it would be float32.


# Deviations by leaf, from the released scheme of PyTorch's layers at width 128 and hidden 512:
# N(0, 1) has 1; Xavier on 128 x 384, uniform in +- sqrt(6 / 512) = 0.1083, has 0.0625; a linear
# layer of n inputs, uniform in +- 1 / sqrt(n), has 1 / sqrt(3 n).
RELEASED_DEVIATIONS = {
  'characters': 1.0,
  'positions': 1.0,
  'attention/kernel': 0.0625,
  'attention/bias': 0.0,
  'attention/out/kernel': 0.05103,
  'attention/out/bias': 0.0,
  'norm0/scale': 0.0,
  'norm0/offset': 0.0,
  'hidden/kernel': 0.05103,
  'hidden/bias': 0.05103,
  'out/kernel': 0.02552,
  'out/bias': 0.02552,
  'norm1/scale': 0.0,
  'norm1/offset': 0.0,
  'logits/kernel': 0.05103,
  'logits/bias': 0.05103,
}


def _initial_leaves(seed=0, **options):
  """The initial weights of the paper's transformer by name."""
  model = models.build_model_fns(models.build_transformer(80, **options), _text_spec(80), seed)[0]()
  return {v.name.removesuffix(':0'): v.numpy() for v in model.trainable_variables}


def test_transformer_starts_with_the_deviations_of_the_released_code():
  # A bias of 80 numbers has a deviation of its own luck: those of eight seeds are taken together.
  pooled = collections.defaultdict(list)
  for seed in range(8):
    leaves = _initial_leaves(seed)
    assert len(leaves) == 2 + 6 * 12 + 2
    for name, leaf in leaves.items():
      pooled[name].append(leaf)
  for name, of_seeds in pooled.items():
    kind = name.split('/', 1)[1] if name.startswith('layer') else name
    numbers = np.stack(of_seeds).astype(np.float64)
    center = 1.0 if kind.endswith('scale') else 0.0
    deviation = np.sqrt(np.mean((numbers - center) ** 2))
    np.testing.assert_allclose(deviation, RELEASED_DEVIATIONS[kind], rtol=0.05, err_msg=name)
    if kind in ('characters', 'positions'):
      assert np.abs(numbers).max() > 3.5  # Normal: a uniform of deviation 1 ends at 1.73.


def test_layers_start_identical_only_if_asked():
  for identical in (False, True):
    leaves = _initial_leaves(identical_layers=identical)
    for name, leaf in leaves.items():
      if name.startswith('layer3') and leaf.std() > 0:
        of_first = leaves[name.replace('layer3', 'layer0')]
        assert np.array_equal(leaf, of_first) == identical, name
  # The first layer is the same with and without, and so is what is no layer.
  single = _initial_leaves()
  for name in ('characters', 'layer0/attention/kernel', 'logits/kernel'):
    np.testing.assert_array_equal(leaves[name], single[name])


def test_earlier_initial_weights_are_a_switch():
  leaves = _initial_leaves(initialization='uniform')
  for name, bound in {
    'characters': 0.1,
    'positions': 1.0,
    'layer2/attention/kernel': 128**-0.5,
    'layer2/attention/out/bias': 128**-0.5,
  }.items():
    assert 0.95 * bound < np.abs(leaves[name]).max() <= bound


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ({'initialization': 'zero'}, "must be one of .'released', 'uniform'., found 'zero'"),
    ({'prediction': 'first'}, "must be one of .'last', 'every'., found 'first'"),
  ],
)
def test_unknown_names_are_told(argument, message):
  with pytest.raises(ValueError, match=message):
    models.build_transformer(80, **argument)


def test_a_causal_model_sees_nothing_of_the_future():
  network = models.build_transformer(
    11, layers=2, heads=2, width=8, hidden=12, dropout_rate=0.0, prediction='every'
  )
  model, _ = _random_model(network, _text_spec(7, every=True))
  tokens = np.random.RandomState(1).randint(0, 11, [2, 7]).astype(np.uint8)
  changed = tokens.copy()
  changed[:, 4] = (tokens[:, 4] + 1) % 11
  seed = np.zeros(2, np.int32)
  before, after = (
    model.predict_on_batch({'tokens': t, 'seed': seed}, training=True).numpy()
    for t in (tokens, changed)
  )
  np.testing.assert_array_equal(before[:, :4], after[:, :4])
  assert np.abs(before[:, 4:] - after[:, 4:]).max(axis=(0, 2)).min() > 1e-3


def test_every_position_is_trained_and_the_last_one_tested():
  """Loss, accuracy and number of examples of both kinds of model, against NumPy."""
  network = models.build_transformer(
    5, layers=1, heads=1, width=4, hidden=4, dropout_rate=0.0, prediction='every'
  )
  model_fn, functional_model_fn = models.build_model_fns(network, _text_spec(6, every=True))
  model, functional = model_fn(), functional_model_fn()
  weights = [np.asarray(w, np.float64) for w in functional.initial_weights[0]]
  generator = np.random.RandomState(0)
  for training in (True, False):
    model.reset_metrics()
    state = functional.initialize_metrics_state()
    losses, hits = [], []
    for n in (4, 3):
      windows = generator.randint(0, 5, [n, 7]).astype(np.uint8)
      x = collections.OrderedDict(tokens=windows[:, :6], seed=np.zeros(2, np.int32))
      y = windows[:, 1:]
      output = model.forward_pass(collections.OrderedDict(x=x, y=tf.constant(y)), training=training)
      logits = functional.predict_on_batch(functional.initial_weights, x, training=training)
      np.testing.assert_array_equal(functional.loss(logits, tf.constant(y)), output.loss)
      assert output.num_examples == n
      state = functional.update_metrics_state(state, tf.constant(y), output)
      expected = _np_transformer(weights, x['tokens'], 1, 1, causal=True)
      shares = np.exp(expected) / np.exp(expected).sum(axis=-1, keepdims=True)
      for example, position in np.ndindex(n, 6):
        if training or position == 5:
          target = y[example, position]
          losses.append(-np.log(shares[example, position, target]))
          hits.append(shares[example, position].argmax() == target)
    expected = {'loss': np.mean(losses), 'accuracy': np.mean(hits), 'num_examples': 7}
    unfinalized = model.report_local_unfinalized_metrics()
    finalized = functional.finalize_metrics(state)
    for name, finalizer in model.metric_finalizers().items():
      np.testing.assert_allclose(finalizer(unfinalized[name]), expected[name], rtol=1e-5)
      np.testing.assert_allclose(finalized[name], expected[name], rtol=1e-5)


def test_transformer_learns_to_look_back():
  """A label that is the fourth token from the end: no model of the last token alone beats chance,
  log(5) = 1.6."""
  network = models.build_transformer(5, layers=2, heads=2, width=32, hidden=64, dropout_rate=0.0)
  model = models.build_model_fns(network, _text_spec(8))[0]()
  optimizer = tf.keras.optimizers.legacy.Adam(3e-3)

  @tf.function
  def step(tokens):
    x = collections.OrderedDict(tokens=tf.cast(tokens, tf.uint8), seed=tf.zeros([2], tf.int32))
    with tf.GradientTape() as tape:
      batch = collections.OrderedDict(x=x, y=tokens[:, -4])
      loss = model.forward_pass(batch, training=True).loss
    gradient = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradient, model.trainable_variables))
    return loss

  rng = np.random.default_rng(0)
  losses = [float(step(rng.integers(0, 5, [64, 8], np.int32))) for _ in range(100)]
  assert losses[0] > 1.4
  assert losses[-1] < 0.1


@pytest.mark.parametrize('input_dropout', [False, True])
def test_embedded_input_is_dropped_only_if_asked(input_dropout, monkeypatch):
  rates = []

  class Dropout(layers.Dropout):
    def mask(self, x):
      rates.append((x.shape[1:], self._rate))

  monkeypatch.setattr(layers, 'build_dropout', Dropout)
  network = models.build_transformer(
    11, layers=2, heads=2, width=8, hidden=12, input_dropout=input_dropout
  )
  model, _ = _random_model(network, _text_spec(7))
  x = {'tokens': np.zeros([3, 7], np.uint8), 'seed': np.array([1, 2], np.int32)}
  rates.clear()  # Those of the trace that finds the parameters.
  model.predict_on_batch(x, training=True)
  of_layer = [[2, 7, 7], [7, 8], [7, 12], [7, 8]]  # Attention, residual, hidden, residual.
  of_last_layer = [[2, 1, 7], [1, 8], [1, 12], [1, 8]]
  expected = [[7, 8]] * input_dropout + of_layer + of_last_layer
  assert rates == [(shape, 0.1) for shape in expected]


def test_dropout_draws_from_the_seed_in_training_only():
  network = models.build_transformer(11, layers=2, heads=2, width=8, hidden=12)
  model, _ = _random_model(network, _text_spec(7))
  tokens = np.random.RandomState(1).randint(0, 11, [3, 7]).astype(np.uint8)

  def predict(seed, training):
    x = {'tokens': tokens, 'seed': np.array(seed, np.int32)}
    return model.predict_on_batch(x, training=training).numpy()

  np.testing.assert_array_equal(predict([1, 2], True), predict([1, 2], True))
  assert np.abs(predict([1, 2], True) - predict([1, 3], True)).max() > 1e-3
  np.testing.assert_array_equal(predict([1, 2], False), predict([1, 3], False))


def test_dropout_keeps_the_mean_and_drops_its_share():
  drop = models.build_dropout(0.1, tf.constant([3, 4]))
  first, second = (drop(tf.ones([100000])).numpy() for _ in range(2))
  for dropped in (first, second):
    assert dropped.shape == (100000,)
    np.testing.assert_allclose(np.unique(dropped), [0.0, 1 / 0.9], rtol=1e-6)
    assert abs((dropped == 0).mean() - 0.1) < 0.005
  # The parts of the stream know nothing of each other.
  assert abs(((first == 0) & (second == 0)).mean() - 0.01) < 0.002
  again = models.build_dropout(0.1, tf.constant([3, 4]))(tf.ones([100000])).numpy()
  np.testing.assert_array_equal(again, first)


def test_every_value_is_dropped_with_the_rate_in_the_mean_over_seeds():
  """A byte is below a bound in whole 256ths: 0.1 is 25.6 of them, so the bound has to be drawn,
  too."""
  shares = [
    float((layers.Dropout(0.1, tf.constant([3, i])).mask(tf.ones([500, 22])).numpy() == 0).mean())
    for i in range(200)
  ]
  # 2,200,000 values and 200 bounds, which are 25 or 26: a deviation of 0.00024. A bound that is
  # always 25, or always 26, gives 0.0977 or 0.1016.
  assert abs(np.mean(shares) - 0.1) < 0.001
  drop = layers.Dropout(0.1, tf.constant([3, 4]))
  by_column = np.mean(drop.mask(tf.ones([20000, 7])).numpy() == 0, axis=0)
  np.testing.assert_allclose(by_column, 0.1, atol=0.012)


@pytest.mark.parametrize('rate', [0.0, 0.3])
def test_dropout_with_relu_and_with_softmax_equal_their_parts(rate):
  generator = np.random.RandomState(0)
  x = tf.constant(generator.normal(size=[4, 6, 9]).astype(np.float32))
  upstream = tf.constant(generator.normal(size=[4, 6, 9]).astype(np.float32))

  def value_and_gradient(function):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = function(layers.Dropout(rate, tf.constant([1, 2])))
    return y, tape.gradient(y, x, upstream)

  for joint, parts in (
    (lambda d: d.keep_positive(x), lambda d: d.keep(tf.nn.relu(x))),
    (lambda d: d.softmax(x, tf.float32), lambda d: d.keep(tf.nn.softmax(x))),
  ):
    for actual, expected in zip(value_and_gradient(joint), value_and_gradient(parts)):
      np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_gradient_passes_dropout_where_values_do():
  x = tf.constant(np.random.RandomState(0).normal(size=[4, 50]).astype(np.float32))
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = models.build_dropout(0.3, tf.constant([1, 2]))(x)
  gradient = tape.gradient(y, x).numpy()
  np.testing.assert_allclose(gradient, np.where(y.numpy() == 0, 0.0, 1 / 0.7), rtol=1e-6)
  assert 0 < (gradient == 0).sum() < gradient.size


@pytest.mark.parametrize(
  ('norm', 'reference', 'shape'),
  [
    (models.group_norm, _np_group_norm, (3, 4, 2, 6)),
    (models.layer_norm, _np_layer_norm, (3, 5, 6)),
    (models.layer_norm, _np_layer_norm, (4, 6)),
  ],
  ids=['group', 'layer', 'layer of one position'],
)
@pytest.mark.parametrize('number_is_open', [False, True])
def test_norms_and_their_gradients_equal_finite_differences(norm, reference, shape, number_is_open):
  generator = np.random.RandomState(0)
  arguments = [
    generator.normal(1.0, 2.0, size=shape),
    generator.normal(size=shape[-1:]),
    generator.normal(size=shape[-1:]),
  ]
  upstream = generator.normal(size=shape)

  @tf.function(
    input_signature=[tf.TensorSpec([None, *shape[1:]] if number_is_open else shape)]
    + [tf.TensorSpec(shape[-1:])] * 2
  )
  def run(*values):
    with tf.GradientTape() as tape:
      tape.watch(values)
      given = iter(values[1:])
      y = norm(lambda *args, **kwargs: next(given), values[0], 'norm')
    return y, tape.gradient(y, values, tf.constant(upstream, tf.float32))

  y, gradients = run(*(tf.constant(a, tf.float32) for a in arguments))
  np.testing.assert_allclose(y, reference(*arguments), atol=1e-5)
  for i, gradient in enumerate(gradients):
    expected = np.empty(arguments[i].shape)
    for position in np.ndindex(*expected.shape):
      ends = []
      for change in (1e-5, -1e-5):
        changed = [a.copy() for a in arguments]
        changed[i][position] += change
        ends.append(np.sum(upstream * reference(*changed)))
      expected[position] = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize('dtype', [tf.float32, tf.bfloat16])
@pytest.mark.parametrize('side', [6, 5])
def test_max_pool_and_its_gradient_equal_numpy(side, dtype):
  rng = np.random.default_rng(0)
  # Few different values, so that windows have several largest ones: the first gets the gradient.
  x = rng.integers(-2, 3, [4, side, side, 3]).astype(np.float32)
  upstream = rng.integers(-9, 9, [4, side // 2, side // 2, 3]).astype(np.float32)
  pooled, gradient = np.empty_like(upstream), np.zeros_like(x)
  for image, row, column, channel in np.ndindex(upstream.shape):
    window = x[image, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2, channel]
    first = np.unravel_index(np.argmax(window), window.shape)
    pooled[image, row, column, channel] = window[first]
    gradient[image, 2 * row + first[0], 2 * column + first[1], channel] = upstream[
      image, row, column, channel
    ]

  @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, side, side, 3], dtype)])
  def pool_in_loop(x):
    def body(k, y, d):
      with tf.GradientTape() as tape:
        tape.watch(x)
        result = layers.max_pool(x)
      return k + 1, y + result, d + tape.gradient(result, x, tf.cast(upstream, dtype))

    start = (0, tf.zeros(upstream.shape, dtype), tf.zeros(gradient.shape, dtype))
    return tf.while_loop(lambda k, *_: k < 2, body, start)[1:]

  actual = pool_in_loop(tf.constant(x, dtype))
  for found, expected in zip(actual, (pooled, gradient)):
    np.testing.assert_array_equal(tf.cast(found, tf.float32), 2 * expected)


def test_metrics_equal_numpy_in_both_kinds_of_model():
  network = models.build_mlp(3, hidden=(4,))
  model_fn, functional_model_fn = models.build_model_fns(network, _spec([2]))
  model, functional = model_fn(), functional_model_fn()
  generator = np.random.RandomState(0)
  state = functional.initialize_metrics_state()
  losses, hits = [], []
  for n in (5, 2):  # A short last batch: means over examples, not over batches.
    x = generator.normal(size=[n, 2]).astype(np.float32)
    y = generator.randint(0, 3, [n]).astype(np.int32)
    output = model.forward_pass(collections.OrderedDict(x=x, y=y))
    logits = functional.predict_on_batch(functional.initial_weights, x, training=True)
    np.testing.assert_array_equal(logits, output.predictions)
    np.testing.assert_array_equal(functional.loss(logits, y), output.loss)
    assert output.num_examples == n
    state = functional.update_metrics_state(state, y, output)
    logits = logits.numpy().astype(np.float64)
    losses += (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(n), y]).tolist()
    hits += (logits.argmax(axis=1) == y).tolist()
  expected = {'loss': np.mean(losses), 'accuracy': np.mean(hits), 'num_examples': 7}
  unfinalized = model.report_local_unfinalized_metrics()
  for name, finalizer in model.metric_finalizers().items():
    np.testing.assert_allclose(finalizer(unfinalized[name]), expected[name], rtol=1e-5)
  finalized = functional.finalize_metrics(state)
  assert list(finalized) == list(expected)
  for name, value in finalized.items():
    np.testing.assert_allclose(value, expected[name], rtol=1e-5)
  model.reset_metrics()
  assert [float(v) for v in model.local_variables] == [0.0, 0.0, 0.0]


def test_initial_weights_follow_from_the_seed():
  def weights(seed):
    return [
      v.numpy()
      for v in models.build_model_fns(models.build_cnn(10), _spec([8, 8, 1]), seed)[
        0
      ]().trainable_variables
    ]

  for a, b, c in zip(weights(3), weights(3), weights(4)):
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 0
  kernel = weights(3)[2]
  bound = (5 * 5 * 32) ** -0.5
  assert 0.99 * bound < np.abs(kernel).max() <= bound
  np.testing.assert_allclose(kernel.std(), bound / np.sqrt(3), rtol=0.02)


def test_both_kinds_of_model_start_from_the_same_weights():
  model_fn, functional_model_fn = models.build_model_fns(models.build_cnn(10), _spec([8, 8, 1]), 5)
  for variable, array in zip(
    model_fn().trainable_variables, functional_model_fn().initial_weights[0], strict=True
  ):
    np.testing.assert_array_equal(variable, array)


def test_stock_algorithms_take_both_kinds_of_model():
  model_fn, functional_model_fn = models.build_model_fns(models.build_mlp(3), _spec([2]))
  sgd = tff.learning.optimizers.build_sgdm(0.1)
  for model in (model_fn, functional_model_fn()):
    process = tff.learning.algorithms.build_weighted_fed_avg(
      model, client_optimizer_fn=sgd, server_optimizer_fn=sgd
    )
    tff.learning.algorithms.build_fed_eval(model)
    assert process.next.type_signature.parameter[1].placement is tff.CLIENTS


def test_unknown_pooling_lists_the_known():
  with pytest.raises(ValueError, match="must be one of global, top_left, found 'max'"):
    models.build_resnet18(10, 'max')
