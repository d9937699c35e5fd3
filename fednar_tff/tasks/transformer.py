# SPDX-License-Identifier: Apache-2.0
"""The transformer that predicts the next character."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fednar_tff.tasks import layers as layers_lib


def attention(param, queries, x, name, *, heads, dropout, causal, initialization, span=None):
  """Multi-head attention of `queries` to positions of `x`, both `[batch, positions, width]`.

  The queries are the last positions of `x`. If `causal`, each attends to itself and to those before
  it, otherwise to all. If `span` is given, it attends to itself and to the `span - 1` before it,
  and a learned number for each head and distance is added to its scores.
  """
  width, dtype = x.shape[-1], layers_lib.compute_dtype(param)
  kernel = param(f'{name}/kernel', [width, 3 * width], bound=initialization.projection_bound(width))
  bias = param(f'{name}/bias', [3 * width])
  # The scores are to be divided by the root of a head's width, and the shares that dropout keeps
  # to be scaled up: both here, where the numbers are fewest.
  factors = np.repeat([(width // heads) ** -0.5, 1.0, dropout.scale], width).astype(np.float32)
  kernel, bias = (tf.cast(p * factors, dtype) for p in (kernel, bias))

  def project(source, parts):
    """Returns those of queries, keys and values, each `[batch, heads, positions, ...]`."""
    num_parts = parts.stop - parts.start
    of_parts = kernel, bias
    if num_parts < 3:
      columns = slice(parts.start * width, parts.stop * width)
      of_parts = kernel[:, columns], bias[columns]
    projected = layers_lib.affine(tf.cast(source, dtype), *of_parts)
    apart = tf.reshape(projected, [-1, source.shape[1], num_parts, heads, width // heads])
    return tf.unstack(tf.transpose(apart, [2, 0, 3, 1, 4]))

  if queries is x:
    query, key, value = project(x, slice(0, 3))
  else:
    (query,), (key, value) = project(queries, slice(0, 1)), project(x, slice(1, 3))
  scores = layers_lib.batch_matmul(query, key, transpose_b=True)
  num_queries, num_keys = queries.shape[1], x.shape[1]
  if span is not None:
    back = np.arange(num_keys - num_queries, num_keys)[:, np.newaxis] - np.arange(num_keys)
    one_hot = np.equal.outer(np.arange(span), back).astype(np.float32)
    distances = param(f'{name}/distances', [heads, span], deviation=1.0)
    added = tf.linalg.matmul(distances, one_hot.reshape([span, -1]))
    scores = tf.cast(scores, tf.float32) + tf.reshape(added, [heads, num_queries, num_keys])
    scores += np.where(one_hot.any(axis=0), 0.0, -np.inf).astype(np.float32)
  elif causal and num_queries > 1:  # The last position alone sees all.
    visible = np.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)
    scores = tf.cast(scores, tf.float32) + np.where(visible, 0.0, -np.inf).astype(np.float32)
  mixed = layers_lib.batch_matmul(dropout.softmax(scores, dtype), value)
  joined = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, num_queries, width])
  return layers_lib.dense(
    param,
    joined,
    width,
    f'{name}/out',
    zero_bias=initialization.has_zero_attention_bias,
    factor=dropout.scale,
    bias_factor=dropout.scale,
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


def _residual(x, y):
  return layers_lib.add(x, tf.cast(y, x.dtype))


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
  span: int | None = None,
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
    span: If given, a position attends to itself and to the `span - 1` before it alone, whatever is
      predicted. Where a character stands then shows in how far back it is: each head has a learned
      number ~ N(0, 1) for each distance, which is added to scores, and no position has a vector.

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
    # What the dropout after a product is to be scaled by stands in the product's weights.
    dropout = layers_lib.build_dropout(dropout_rate if training else 0.0, seed)

    def param_of_layer(i):
      if i == 0 or not identical_layers:
        return param

      def param_like_first(name, shape, **kwargs):
        return param(name, shape, like=name.replace(f'layer{i}/', 'layer0/', 1), **kwargs)

      vars(param_like_first).update(compute_dtype=layers_lib.compute_dtype(param))
      return param_like_first

    # A product with one-hot rows, not a lookup: its gradient is a dense tensor on every path.
    table = param('characters', [vocabulary_size, width], **initial.characters)
    one_hot = tf.one_hot(tf.reshape(tf.cast(tokens, tf.int32), [-1]), vocabulary_size)
    if span is None:
      positions = param('positions', [tokens.shape[1], width], **initial.positions)
    characters = tf.linalg.matmul(one_hot, table * width**0.5)
    x = tf.reshape(characters, [-1, tokens.shape[1], width])
    if span is None:
      x += positions
    if input_dropout:
      x = dropout(x)
    for i in range(layers):
      name, own = f'layer{i}', param_of_layer(i)
      if span is not None and not every:  # What the last position sees, through all layers.
        x = x[:, -(1 + (layers - i) * (span - 1)) :]
      read = x[:, -1:] if i == layers - 1 and not every else x
      mixed = attention(
        own,
        read,
        x,
        f'{name}/attention',
        heads=heads,
        dropout=dropout,
        causal=prediction == 'every',
        initialization=initial,
        span=span,
      )
      x = layers_lib.layer_norm(own, _residual(read, dropout.keep(mixed)), f'{name}/norm0')
      y = dropout.keep_positive(layers_lib.dense(own, x, hidden, f'{name}/hidden'))
      y = layers_lib.dense(
        own, y, width, f'{name}/out', factor=dropout.scale**2, bias_factor=dropout.scale
      )
      x = layers_lib.layer_norm(own, _residual(x, dropout.keep(y)), f'{name}/norm1')
    return layers_lib.dense(param, x if every else x[:, -1], vocabulary_size, 'logits')

  return transformer


def build_small_transformer(vocabulary_size: int, **options: Any) -> Callable[..., tf.Tensor]:
  """Builds a transformer of one layer that sees eight characters: for studies of many runs.

  With plain SGD, the large one takes long to find out that the characters just before are those
  that matter. This one sees no others.

  Args:
    vocabulary_size: The number of characters.
    **options: Other arguments of `build_transformer`.

  Returns:
    A network.
  """
  return build_transformer(
    vocabulary_size, layers=1, heads=4, width=64, hidden=256, span=8, **options
  )
