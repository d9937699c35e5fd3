"""The transformer that predicts the next character."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from fednar_tff.tasks import layers as layers_lib


def attention(param, queries, x, name, *, heads, dropout_fn, causal, initialization):
  """Multi-head attention of `queries` to positions of `x`, both `[batch, positions, width]`.

  The queries are the last positions of `x`. If `causal`, each attends to itself and to those before
  it, otherwise to all.
  """
  width = x.shape[-1]
  kernel = param(f'{name}/kernel', [width, 3 * width], bound=initialization.projection_bound(width))
  bias = param(f'{name}/bias', [3 * width])

  kernels, biases = tf.split(kernel, 3, axis=1), tf.split(bias, 3)
  # The scores are to be divided by the root of a head's width.
  kernels[0], biases[0] = (p * (width // heads) ** -0.5 for p in (kernels[0], biases[0]))

  def project(source, part):
    projected = layers_lib.affine(source, kernels[part], biases[part])
    by_head = tf.reshape(projected, [-1, source.shape[1], heads, width // heads])
    return tf.transpose(by_head, [0, 2, 1, 3])

  query = project(queries, 0)
  scores = layers_lib.batch_matmul(query, project(x, 1), transpose_b=True)
  num_queries, num_keys = queries.shape[1], x.shape[1]
  if causal and num_queries > 1:  # The last position alone sees all.
    visible = np.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)
    scores += np.where(visible, 0.0, -np.inf).astype(np.float32)
  mixed = layers_lib.batch_matmul(dropout_fn(tf.nn.softmax(scores)), project(x, 2))
  joined = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, num_queries, width])
  return layers_lib.dense(
    param, joined, width, f'{name}/out', zero_bias=initialization.has_zero_attention_bias
  )


class _Initialization(NamedTuple):
  """How a transformer's weights start, where schemes differ."""

  characters: dict[str, float]
  positions: dict[str, float]
  projection_bound: Callable[[int], float]
  has_zero_attention_bias: bool


_INITIALIZATIONS = {
  # PyTorch's own, which the released code leaves as they are (docs/paper.md, F1). The projection to
  # queries, keys and values is Xavier's on the joint matrix of `width` x `3 width`.
  'released': _Initialization(
    characters={'deviation': 1.0},
    positions={'deviation': 1.0},
    projection_bound=lambda width: (6.0 / (4 * width)) ** 0.5,
    has_zero_attention_bias=True,
  ),
  'uniform': _Initialization(
    characters={'bound': 0.1},
    positions={'bound': 1.0},
    projection_bound=lambda width: width**-0.5,
    has_zero_attention_bias=False,
  ),
}
_PREDICTIONS = ('last', 'every')


def build_transformer(
  vocabulary_size: int,
  *,
  layers: int = 6,
  heads: int = 4,
  width: int = 128,
  hidden: int = 512,
  dropout_rate: float = 0.1,
  input_dropout: bool = False,
  initialization: str = 'released',
  identical_layers: bool = False,
  prediction: str = 'last',
) -> Callable[..., tf.Tensor]:
  """Builds a post-norm transformer encoder that predicts the next character.

  Args:
    vocabulary_size: The number of characters.
    layers: The number of layers.
    heads: The number of attention heads.
    width: The size of a character's vector.
    hidden: The size of the hidden layer applied at each position.
    dropout_rate: The share of values dropped in training, drawn from the `seed` leaf of `x`: of the
      attention weights, the hidden layer, and what each layer adds to its input twice.
    input_dropout: Whether values of the embedded input are dropped, too.
    initialization: 'released' starts as the released code does: vectors of characters and positions
      ~ N(0, 1), attention projections uniform in +- sqrt(6 / (4 width)), the bias after attention
      0. 'uniform' has characters in +- 0.1, positions in +- 1, projections and that bias in
      +- 1 / sqrt(width). All else is as in `dense` and `layer_norm`.
    identical_layers: Whether all layers start from the same numbers, as in the released code.
    prediction: 'last' reads the last position only, so the last layer computes no other; there is
      no mask, since every position is known when the next character is asked for. With 'every', a
      position attends to none after it, and in training the character after each one is predicted.

  Returns:
    A network on `x = {'tokens': integers [batch, positions], 'seed': int32 [2]}` that returns the
    logits after the last position, `[batch, vocabulary_size]`; but in training with
    `prediction='every'`, those after each position, `[batch, positions, vocabulary_size]`.

  Raises:
    ValueError: If a name is unknown.
  """
  if initialization not in _INITIALIZATIONS:
    raise ValueError(
      f'`initialization` must be one of {list(_INITIALIZATIONS)}, found {initialization!r}.'
    )
  if prediction not in _PREDICTIONS:
    raise ValueError(f'`prediction` must be one of {list(_PREDICTIONS)}, found {prediction!r}.')
  initial = _INITIALIZATIONS[initialization]

  def transformer(param, x, training):
    tokens, seed = x['tokens'], x['seed']
    every = training and prediction == 'every'
    drop = layers_lib.build_dropout(dropout_rate if training else 0.0, seed)

    def param_of_layer(i):
      if i == 0 or not identical_layers:
        return param
      return lambda name, shape, **kwargs: param(
        name, shape, like=name.replace(f'layer{i}/', 'layer0/', 1), **kwargs
      )

    # A product with one-hot rows, not a lookup: its gradient is a dense tensor on every path.
    table = param('characters', [vocabulary_size, width], **initial.characters)
    one_hot = tf.one_hot(tf.reshape(tf.cast(tokens, tf.int32), [-1]), vocabulary_size)
    positions = param('positions', [tokens.shape[1], width], **initial.positions)
    characters = tf.linalg.matmul(one_hot, table * width**0.5)
    x = tf.reshape(characters, [-1, tokens.shape[1], width]) + positions
    if input_dropout:
      x = drop(x)
    for i in range(layers):
      name, own = f'layer{i}', param_of_layer(i)
      read = x[:, -1:] if i == layers - 1 and not every else x
      mixed = attention(
        own,
        read,
        x,
        f'{name}/attention',
        heads=heads,
        dropout_fn=drop,
        causal=prediction == 'every',
        initialization=initial,
      )
      x = layers_lib.layer_norm(own, layers_lib.add(read, drop(mixed)), f'{name}/norm0')
      y = drop(tf.nn.relu(layers_lib.dense(own, x, hidden, f'{name}/hidden')))
      x = layers_lib.layer_norm(
        own,
        layers_lib.add(x, drop(layers_lib.dense(own, y, width, f'{name}/out'))),
        f'{name}/norm1',
      )
    return layers_lib.dense(param, x if every else x[:, -1], vocabulary_size, 'logits')

  return transformer
