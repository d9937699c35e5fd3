# SPDX-License-Identifier: Apache-2.0
"""The models once more, of stock Keras layers: for trained weights that leave as a `.keras` file.

A process that imports only TensorFlow can load such a file, since it names no class of ours. The
layers are called as the parameters in `models.py` and `transformer.py` are, with `_` in place of
`/`. Each function here returns a function from the trained weights by name to a new
`tf.keras.Model`, which returns logits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Weights = Mapping[str, np.ndarray]
KerasModelFn = Callable[[Weights], tf.keras.Model]

# How Keras calls what a layer's parameters are called in `models.py` and `transformer.py`.
_ATTRIBUTES = {'kernel': 'kernel', 'bias': 'bias', 'scale': 'gamma', 'offset': 'beta'}
_EPSILON = 1e-5
_ATTENTION = 'attention'


def of_numbers(shape: Sequence[int], precision: str = 'float32') -> KerasModelFn:
  """Returns the form of `build_mlp` for float32 of a shape; `precision` as in `of_images`."""

  def keras_model_fn(weights):
    inputs = tf.keras.Input(shape)
    return _finish(inputs, _mlp(inputs, _Weights(weights, precision)), weights)

  return keras_model_fn


def of_images(
  model: str,
  shape: Sequence[int],
  *,
  scale: Any,
  offset: Any = 0.0,
  pooling: str = 'global',
  precision: str = 'float32',
) -> KerasModelFn:
  """Returns the form of a model that takes uint8 images.

  Args:
    model: 'mlp', 'cnn', 'small_cnn', 'resnet18' or 'small_resnet18'.
    shape: Height, width and number of colours.
    scale: What the images are divided by: a number, or one for each colour.
    offset: What is subtracted from them before.
    pooling: See `build_resnet18`.
    precision: The type in which the layers multiply, see `build_model_fns`. Keras rounds their
      results to it in a few more places, attention's softmax among them.
  """
  builders = {
    'mlp': _mlp,
    'cnn': _cnn,
    'small_cnn': _cnn,  # The weights say how many filters there are.
    'resnet18': lambda x, w: _resnet18(x, w, pooling),
    'small_resnet18': lambda x, w: _resnet18(x, w, pooling, stem_stride=2),
  }
  scale, offset = np.asarray(scale, np.float64), np.asarray(offset, np.float64)

  def keras_model_fn(weights):
    inputs = tf.keras.Input(shape, dtype=tf.uint8)
    x = tf.keras.layers.Rescaling((1.0 / scale).tolist(), (-offset / scale).tolist())(inputs)
    return _finish(inputs, builders[model](x, _Weights(weights, precision)), weights)

  return keras_model_fn


def of_codes(
  positions: int,
  vocabulary_size: int,
  *,
  causal: bool,
  heads: int = 4,
  precision: str = 'float32',
) -> KerasModelFn:
  """Returns the form of `build_transformer` that takes the codes of characters.

  Args:
    positions: The length of a text.
    vocabulary_size: The number of characters.
    causal: Whether a position attends to none after it.
    heads: The number of attention heads.
    precision: As in `of_images`.
  """
  layers = tf.keras.layers

  def keras_model_fn(given):
    weights = _Weights(given, precision)
    width = weights['characters'].shape[1]
    depth = sum(name.endswith(f'/{_ATTENTION}/kernel') for name in weights)
    inputs = tf.keras.Input([positions], dtype=tf.uint8)
    vectors = layers.Embedding(vocabulary_size, width, name='characters')(inputs)
    # The numbers of the positions, whatever stands there.
    places = layers.Rescaling(0.0, np.arange(positions, dtype=np.float64).tolist())(inputs)
    places = layers.Embedding(positions, width, name='positions')(places)
    x = layers.Add()([layers.Rescaling(width**0.5)(vectors), places])
    for i in range(depth):
      name, is_last = f'layer{i}', i == depth - 1
      read = layers.Cropping1D((positions - 1, 0))(x) if is_last else x
      attend = layers.MultiHeadAttention(
        heads, width // heads, name=f'{name}_{_ATTENTION}', dtype=weights.policy
      )
      mixed = attend(read, x, use_causal_mask=causal and not is_last)
      x = _layer_norm(layers.Add()([read, mixed]), f'{name}_norm0')
      hidden = _dense(x, weights, f'{name}/hidden', 'relu')
      x = _layer_norm(layers.Add()([x, _dense(hidden, weights, f'{name}/out')]), f'{name}_norm1')
    return _finish(inputs, _dense(layers.Flatten()(x), weights, 'logits'), given)

  return keras_model_fn


class _Weights(dict):
  """The weights by name, and the policy of the layers that multiply."""

  def __init__(self, weights: Weights, precision: str):
    super().__init__(weights)
    name = precision if precision == 'float32' else f'mixed_{precision}'
    self.policy = tf.keras.mixed_precision.Policy(name)


def _finish(inputs, outputs, weights):
  """Returns the model with its weights.

  Raises:
    ValueError: If the weights are not those of the model.
  """
  if outputs.dtype != tf.float32:
    outputs = tf.keras.layers.Activation('linear', dtype='float32', name='float32_logits')(outputs)
  model = tf.keras.Model(inputs, outputs)
  num_assigned = 0
  for layer in model.layers:
    if isinstance(layer, tf.keras.layers.MultiHeadAttention):
      layer.set_weights(_attention_weights(layer, weights))
      num_assigned += len(layer.weights)
  for name, value in weights.items():
    owner, _, kind = name.rpartition('/')
    if f'{_ATTENTION}/' in name:
      continue
    layer = model.get_layer((owner or name).replace('/', '_'))
    getattr(layer, _ATTRIBUTES[kind] if owner else 'embeddings').assign(value)
    num_assigned += 1
  if num_assigned != len(model.weights):
    raise ValueError(f'The weights {", ".join(weights)} are not all that the model has.')
  return model


def _attention_weights(layer, weights):
  """Returns the weights of a layer in the order of Keras, in which each head has its own axis."""
  name = layer.name.removesuffix(f'_{_ATTENTION}') + f'/{_ATTENTION}'
  kernel, bias, out_kernel, out_bias = (
    weights[f'{name}/{part}'] for part in ('kernel', 'bias', 'out/kernel', 'out/bias')
  )
  # Queries, keys and values side by side become three.
  kernels, biases = np.split(kernel, 3, axis=1), np.split(bias, 3)
  values = [part for pair in zip(kernels, biases) for part in pair] + [out_kernel, out_bias]
  return [v.reshape(variable.shape) for v, variable in zip(values, layer.weights, strict=True)]


def _dense(x, weights, name, activation=None):
  units = weights[f'{name}/bias'].shape[0]
  return tf.keras.layers.Dense(
    units, activation, name=name.replace('/', '_'), dtype=weights.policy
  )(x)


def _layer_norm(x, name):
  return tf.keras.layers.LayerNormalization(epsilon=_EPSILON, name=name)(x)


def _mlp(x, weights):
  x = tf.keras.layers.Flatten()(x)
  for i in range(sum(name.startswith('hidden') for name in weights) // 2):
    x = _dense(x, weights, f'hidden{i}', 'relu')
  return _dense(x, weights, 'logits')


def _conv(x, weights, name, *, stride=1, padding='same', activation=None):
  size, _, _, filters = weights[f'{name}/kernel'].shape
  if stride > 1 and size > 1:  # Keras, as TensorFlow, would pad one side only.
    x, padding = tf.keras.layers.ZeroPadding2D(size // 2)(x), 'valid'
  return tf.keras.layers.Conv2D(
    filters, size, stride, padding, activation=activation,
    use_bias=f'{name}/bias' in weights, name=name.replace('/', '_'), dtype=weights.policy,
  )(x)  # fmt: skip


def _cnn(x, weights):
  padding = 'valid' if min(x.shape[1:3]) >= 16 else 'same'
  for i in range(2):
    x = _conv(x, weights, f'conv{i}', padding=padding, activation='relu')
    x = tf.keras.layers.MaxPooling2D()(x)
  x = _dense(tf.keras.layers.Flatten()(x), weights, 'hidden', 'relu')
  return _dense(x, weights, 'logits')


def _resnet18(x, weights, pooling, stem_stride=1):
  layers = tf.keras.layers

  def norm(y, name):
    return layers.GroupNormalization(2, epsilon=_EPSILON, name=name.replace('/', '_'))(y)

  x = layers.ReLU()(norm(_conv(x, weights, 'stem', stride=stem_stride), 'stem_norm'))
  for stage in range(4):
    for i in range(2):
      name, stride = f'stage{stage}/block{i}', 2 if stage and not i else 1
      y = layers.ReLU()(norm(_conv(x, weights, f'{name}/conv0', stride=stride), f'{name}/norm0'))
      y = norm(_conv(y, weights, f'{name}/conv1'), f'{name}/norm1')
      if f'{name}/shortcut/kernel' in weights:
        x = norm(_conv(x, weights, f'{name}/shortcut', stride=stride), f'{name}/shortcut_norm')
      x = layers.ReLU()(layers.Add()([x, y]))
  if pooling == 'top_left':
    x = layers.Cropping2D(((0, x.shape[1] - 3), (0, x.shape[2] - 3)))(x)
  return _dense(layers.GlobalAveragePooling2D()(x), weights, 'logits')
