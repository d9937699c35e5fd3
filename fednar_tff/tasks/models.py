# SPDX-License-Identifier: Apache-2.0
"""The networks, each written once as a function of its weights, and what they are made of.

`model_fns.py` says what a network is and makes TFF models of it; `layers.py` has the layers.
"""

from collections.abc import Callable

import tensorflow as tf

from fednar_tff.tasks.layers import add as add
from fednar_tff.tasks.layers import affine as affine
from fednar_tff.tasks.layers import batch_matmul as batch_matmul
from fednar_tff.tasks.layers import build_dropout as build_dropout
from fednar_tff.tasks.layers import conv as conv
from fednar_tff.tasks.layers import dense as dense
from fednar_tff.tasks.layers import group_norm as group_norm
from fednar_tff.tasks.layers import layer_norm as layer_norm
from fednar_tff.tasks.layers import max_pool as max_pool
from fednar_tff.tasks.layers import mean_of_map
from fednar_tff.tasks.model_fns import build_model_fns as build_model_fns
from fednar_tff.tasks.transformer import attention as attention
from fednar_tff.tasks.transformer import build_small_transformer as build_small_transformer
from fednar_tff.tasks.transformer import build_transformer as build_transformer


def build_mlp(
  num_classes: int, hidden: tuple[int, ...] = (128,), dropout_rate: float = 0.0
) -> Callable[..., tf.Tensor]:
  """Builds a multilayer perceptron on flattened inputs.

  Args:
    num_classes: The number of classes.
    hidden: The widths of the hidden layers.
    dropout_rate: The share of hidden values dropped in training. If it is positive, the network's
      input is `x = {'features': ..., 'seed': int32 [2]}`, and dropout draws from the seed.

  Returns:
    A network.
  """

  def mlp(param, x, training):
    seed = None
    if dropout_rate:
      x, seed = x['features'], x['seed']
    drop = build_dropout(dropout_rate if training else 0.0, seed)
    x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    for i, width in enumerate(hidden):
      x = drop(tf.nn.relu(dense(param, x, width, f'hidden{i}')))
    return dense(param, x, num_classes, 'logits')

  return mlp


def build_cnn(num_classes: int, filters: tuple[int, int] = (32, 64)) -> Callable[..., tf.Tensor]:
  """Builds a CNN: conv 5x5x32, pool, conv 5x5x64, pool, dense 128, dense.

  The convolutions are not padded, except on images too small for that.

  Args:
    num_classes: The number of classes.
    filters: How many filters each convolution has.

  Returns:
    A network.
  """

  def cnn(param, x, training):
    del training  # Unused.
    padding = 'VALID' if min(x.shape[1:3]) >= 16 else 'SAME'
    for i, number in enumerate(filters):
      x = conv(param, x, number, 5, f'conv{i}', padding=padding)
      x = tf.nn.relu(max_pool(x))  # The same as in the other order, for a quarter of the values.
    x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    x = tf.nn.relu(dense(param, x, 128, 'hidden'))
    return dense(param, x, num_classes, 'logits')

  return cnn


def build_small_cnn(num_classes: int) -> Callable[..., tf.Tensor]:
  """Builds the CNN with half of the filters: half of the time, for studies of many runs.

  Args:
    num_classes: The number of classes.

  Returns:
    A network.
  """
  return build_cnn(num_classes, filters=(16, 32))


_POOLINGS = {
  'global': mean_of_map,
  # The released code's 3x3 window with stride 3 fits once into a 4x4 map (docs/paper.md, D7).
  'top_left': lambda x: mean_of_map(x[:, :3, :3]),
}


def build_resnet18(num_classes: int, pooling: str = 'global') -> Callable[..., tf.Tensor]:
  """Builds ResNet-18 for 32x32 images: 3x3 stem, GroupNorm with 2 groups.

  Args:
    num_classes: The number of classes.
    pooling: 'global' averages the last 4x4 map, 'top_left' only its top left 3x3, as the released
      code does.

  Returns:
    A network.

  Raises:
    ValueError: If `pooling` is unknown.
  """
  if pooling not in _POOLINGS:
    raise ValueError(f'`pooling` must be one of {", ".join(_POOLINGS)}, found {pooling!r}.')
  return _build_resnet18(num_classes, _POOLINGS[pooling], filters=64, stem_stride=1)


def build_small_resnet18(num_classes: int) -> Callable[..., tf.Tensor]:
  """Builds ResNet-18 with an eighth of the filters and a stem of stride 2, for many runs.

  As in the full one, every convolution is followed by a GroupNorm, so what it computes does not
  change with its kernel's length.

  Args:
    num_classes: The number of classes.

  Returns:
    A network.
  """
  return _build_resnet18(num_classes, mean_of_map, filters=8, stem_stride=2)


def _build_resnet18(num_classes, pool, filters, stem_stride):
  """Builds a ResNet-18 whose first stage has so many filters, and each other twice as many."""

  def block(param, x, filters, stride, name):
    y = conv(param, x, filters, 3, f'{name}/conv0', stride=stride, use_bias=False)
    y = tf.nn.relu(group_norm(param, y, f'{name}/norm0'))
    y = conv(param, y, filters, 3, f'{name}/conv1', use_bias=False)
    y = group_norm(param, y, f'{name}/norm1')
    if x.shape[-1] != filters:
      x = conv(param, x, filters, 1, f'{name}/shortcut', stride=stride, use_bias=False)
      x = group_norm(param, x, f'{name}/shortcut_norm')
    return tf.nn.relu(add(x, y))

  def resnet18(param, x, training):
    del training  # Unused.
    x = conv(param, x, filters, 3, 'stem', stride=stem_stride, use_bias=False)
    x = tf.nn.relu(group_norm(param, x, 'stem_norm'))
    for stage in range(4):
      for i in range(2):
        stride = 2 if stage and not i else 1
        x = block(param, x, filters * 2**stage, stride, f'stage{stage}/block{i}')
    return dense(param, pool(x), num_classes, 'logits')

  return resnet18
