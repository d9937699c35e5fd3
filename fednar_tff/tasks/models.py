"""The models, each written once as a function of its weights.

A network is a function `network(param, x, training)` that returns logits and asks for its weights
in order: `param(name, shape, bound=0.0, center=0.0)` is the next one, initially uniform in
`center +- bound`. With `deviation` in place of `bound` it is normal with that deviation, and with
`like`, the name of an earlier parameter, it starts from the random numbers of that one.
`build_model_fns` turns a network into TFF's two kinds of model. Networks are traced without
AutoGraph, several times faster: a branch on a tensor must be a `tf.cond`.
"""

import collections
import hashlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.tasks import initial_values

_PHILOX = 1  # tf.random.Algorithm.PHILOX, as the raw operation wants it.


class _Parameter(NamedTuple):
  name: str
  shape: tuple[int, ...]
  bound: float
  center: float
  deviation: float
  key: int

  def initial_value(self):
    if self.deviation:
      normal = initial_values.standard_normal(self.key, self.shape)
      return tf.constant(normal * np.float32(self.deviation) + np.float32(self.center))
    if not self.bound:
      return tf.fill(self.shape, self.center)
    # By a named algorithm: the same bits on every device. The raw operation is one node of the
    # graph where `tf.random.stateless_uniform` is thirty.
    uniform = tf.raw_ops.StatelessRandomUniformV2(
      shape=self.shape,
      key=np.array([self.key], np.uint64),
      counter=np.zeros([2], np.uint64),
      alg=_PHILOX,
    )
    return (uniform - 0.5) * (2 * self.bound) + self.center


class _Inlined:
  """What TFF takes for a `tf.function`, but which becomes a part of the function that calls it, and is not converted by AutoGraph.

  TFF's model calls it in a function of its own; a second one around it would only be in the way of XLA.
  """

  def __init__(self, fn: Callable[..., Any]):
    self._fn = tf.autograph.experimental.do_not_convert(fn)
    self.get_concrete_function = tf.function(fn, autograph=False).get_concrete_function

  def __call__(self, *args, **kwargs):
    return self._fn(*args, **kwargs)


def build_model_fns(
  network: Callable[..., tf.Tensor], input_spec: Any, seed: int = 0
) -> tuple[
  Callable[[], tff.learning.models.VariableModel],
  Callable[[], tff.learning.models.FunctionalModel],
]:
  """Builds TFF models of a classifier.

  Args:
    network: A function `network(param, x, training)` returning logits; see the module's docstring.
    input_spec: `OrderedDict(x=..., y=...)` of `tf.TensorSpec`, `y` the integer labels: one for
      each example, or one for each of its positions.
    seed: The seed of the initial weights: the same seed gives the same weights anywhere.

  Returns:
    Two no-argument functions, returning a `VariableModel` and a `FunctionalModel` that have the
    same initial weights, loss (mean cross-entropy) and metrics (`loss`, `accuracy`,
    `num_examples`). Of an example with labels at several positions, loss and accuracy are means
    over the positions if the network returns logits at all of them, `[batch, positions, classes]`,
    and those of the last position if it returns `[batch, classes]`.
  """
  parameters = _trace_parameters(network, input_spec['x'], seed)

  def predict(weights, x, training):
    remaining = iter(weights)
    return network(lambda *args, **kwargs: next(remaining), x, training)

  def model_fn():
    return _ClassifierModel(parameters, predict, input_spec)

  def functional_model_fn():
    with tf.init_scope():
      initial_weights = tuple(p.initial_value().numpy() for p in parameters)
    return tff.learning.models.FunctionalModel(
      initial_weights=(initial_weights, ()),
      predict_on_batch_fn=_Inlined(
        lambda model_weights, x, training: predict(model_weights[0], x, training)
      ),
      loss_fn=lambda output, label, sample_weight=None: _mean_loss(label, output),
      metrics_fns=(
        tf.function(_initial_metrics),
        _Inlined(_updated_metrics),
        tf.function(_finalized_metrics),
      ),
      input_spec=input_spec,
    )

  return model_fn, functional_model_fn


def _trace_parameters(network, x_spec, seed):
  """Finds a network's parameters by running it once on symbolic inputs."""
  parameters = []

  def param(name, shape, bound=0.0, center=0.0, deviation=0.0, like=None):
    position = [p.name for p in parameters].index(like) if like else len(parameters)
    digest = hashlib.sha256(f'weights/{int(seed)}/{position}'.encode()).digest()
    key = int.from_bytes(digest[:8], 'little')
    parameters.append(_Parameter(name, tuple(shape), bound, center, deviation, key))
    return tf.zeros(shape)

  tf.function(lambda x: network(param, x, False), autograph=False).get_concrete_function(x_spec)
  return tuple(parameters)


def _targets(labels, logits):
  """Returns the labels that logits are to be compared with: all, or those of the last position."""
  last_only = len(labels.shape) == len(logits.shape)
  # Of 64 bits: those of 32 are compared on the host even where all else is on a GPU.
  return tf.cast(labels[:, -1] if last_only else labels, tf.int64)


def _mean_loss(labels, logits):
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=_targets(labels, logits), logits=logits)
  )


def _num_correct(labels, logits):
  """Returns the number of examples that are right, one of several positions counting its share."""
  targets = _targets(labels, logits)
  guesses = tf.argmax(logits, axis=-1, output_type=targets.dtype)
  is_correct = tf.cast(tf.equal(guesses, targets), tf.float32)
  if is_correct.shape.rank > 1:
    is_correct = tf.reduce_mean(is_correct, axis=1)
  return tf.reduce_sum(is_correct)


_mean_of_totals = tf.function(lambda totals: tf.math.divide_no_nan(totals[0], totals[1]))
# Made once: a new `tf.function` for each evaluation would be traced each time.
_METRIC_FINALIZERS = collections.OrderedDict(
  loss=_mean_of_totals,
  accuracy=_mean_of_totals,
  num_examples=tf.function(lambda totals: totals[0]),
)


def _initial_metrics():
  # Tuples: tf.data, whose reduce carries this state, makes a tensor of a list.
  return collections.OrderedDict(
    loss=(tf.zeros([]), tf.zeros([])),
    accuracy=(tf.zeros([]), tf.zeros([])),
    num_examples=(tf.zeros([], tf.int32),),
  )


def _updated_metrics(state, labels, batch_output, sample_weight=None):
  del sample_weight  # Every example counts the same.
  count = tf.cast(batch_output.num_examples, tf.float32)
  (loss_sum, loss_count), (correct, correct_count) = state['loss'], state['accuracy']
  return collections.OrderedDict(
    loss=(loss_sum + batch_output.loss * count, loss_count + count),
    accuracy=(correct + _num_correct(labels, batch_output.predictions), correct_count + count),
    num_examples=(state['num_examples'][0] + batch_output.num_examples,),
  )


def _finalized_metrics(state):
  return collections.OrderedDict(
    (name, finalizer(state[name])) for name, finalizer in _METRIC_FINALIZERS.items()
  )


class _ClassifierModel(tff.learning.models.VariableModel):
  """A `VariableModel` of a network, with three scalars as its only metric variables."""

  def __init__(self, parameters, predict, input_spec):
    self._predict = predict
    self._input_spec = input_spec
    self._weights = tuple(tf.Variable(p.initial_value, name=p.name) for p in parameters)
    self._loss_sum = tf.Variable(0.0, trainable=False, name='loss_sum')
    self._num_correct = tf.Variable(0.0, trainable=False, name='num_correct')
    # Of 64 bits: a GPU cannot add to a variable of 32.
    self._num_examples = tf.Variable(0, trainable=False, dtype=tf.int64, name='num_examples')

  @property
  def trainable_variables(self):
    return self._weights

  @property
  def non_trainable_variables(self):
    return ()

  @property
  def local_variables(self):
    return (self._loss_sum, self._num_correct, self._num_examples)

  @property
  def input_spec(self):
    return self._input_spec

  @tf.function(autograph=False)
  def predict_on_batch(self, x, training=True):
    return self._predict(self._weights, x, training)

  @tf.function(autograph=False)
  def forward_pass(self, batch_input, training=True):
    x, labels = batch_input['x'], batch_input['y']
    logits = self._predict(self._weights, x, training)
    loss = _mean_loss(labels, logits)
    num_examples = tf.shape(labels)[0]
    self._loss_sum.assign_add(loss * tf.cast(num_examples, tf.float32))
    self._num_correct.assign_add(_num_correct(labels, logits))
    self._num_examples.assign_add(tf.cast(num_examples, tf.int64))
    return tff.learning.models.BatchOutput(loss=loss, predictions=logits, num_examples=num_examples)

  @tf.function
  def report_local_unfinalized_metrics(self):
    count = tf.cast(self._num_examples, tf.float32)
    return collections.OrderedDict(
      loss=[self._loss_sum.read_value(), count],
      accuracy=[self._num_correct.read_value(), count],
      num_examples=[tf.cast(self._num_examples, tf.int32)],
    )

  def metric_finalizers(self):
    return collections.OrderedDict(_METRIC_FINALIZERS)

  @tf.function
  def reset_metrics(self):
    for variable in self.local_variables:
      variable.assign(tf.zeros_like(variable))


def add(x, y):
  """Returns `x + y` of tensors of equal shape.

  TensorFlow's `+` does not know, where the number of examples is open, that the shapes are equal, and in its gradient
  computes on the way back what was broadcast. So does its `matmul` of more than two dimensions; see `batch_matmul`.
  """
  return tf.add_n([x, y])


def batch_matmul(x, y, transpose_b=False):
  """Returns the products of matrices of two tensors whose other dimensions are equal."""
  return tf.raw_ops.BatchMatMul(x=x, y=y, adj_y=transpose_b)


def affine(x, kernel, bias):
  """Returns `x kernel + bias`, for all positions of all examples in one product of matrices."""
  flat = tf.reshape(x, [-1, x.shape[-1]]) if x.shape.rank > 2 else x
  y = tf.nn.bias_add(tf.linalg.matmul(flat, kernel), bias)
  return tf.reshape(y, [-1, *x.shape[1:-1], kernel.shape[-1]]) if x.shape.rank > 2 else y


def dense(param, x, units, name, *, zero_bias=False):
  """A fully connected layer; initial weights and biases uniform in +- 1 / sqrt(inputs)."""
  inputs = x.shape[-1]
  kernel = param(f'{name}/kernel', [inputs, units], bound=inputs**-0.5)
  bias = param(f'{name}/bias', [units], bound=0.0 if zero_bias else inputs**-0.5)
  return affine(x, kernel, bias)


def conv(param, x, filters, size, name, *, stride=1, padding='SAME', use_bias=True):
  """A convolution, initialised as `dense` is; 'SAME' pads `size // 2` on each side."""
  fan_in = size * size * x.shape[-1]
  kernel = param(f'{name}/kernel', [size, size, x.shape[-1], filters], bound=fan_in**-0.5)
  if padding == 'SAME' and stride > 1:
    # TensorFlow's own 'SAME' would pad one side only here.
    pad = [size // 2, size // 2]
    x, padding = tf.pad(x, [[0, 0], pad, pad, [0, 0]]), 'VALID'
  x = tf.nn.conv2d(x, kernel, stride, padding)
  if use_bias:
    x = tf.nn.bias_add(x, param(f'{name}/bias', [filters], bound=fan_in**-0.5))
  return x


def build_mlp(
  num_classes: int, hidden: tuple[int, ...] = (128,), dropout_rate: float = 0.0
) -> Callable[..., tf.Tensor]:
  """Builds a multilayer perceptron on flattened inputs.

  Args:
    num_classes: The number of classes.
    hidden: The widths of the hidden layers.
    dropout_rate: The share of hidden values dropped in training. If it is positive, the network's input is
      `x = {'features': ..., 'seed': int32 [2]}`, and dropout draws from the seed.

  Returns:
    A network.
  """

  def mlp(param, x, training):
    drop = _nothing_dropped
    if dropout_rate:
      x, seed = x['features'], x['seed']
      drop = build_dropout(dropout_rate if training else 0.0, seed)
    x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    for i, width in enumerate(hidden):
      x = drop(tf.nn.relu(dense(param, x, width, f'hidden{i}')))
    return dense(param, x, num_classes, 'logits')

  return mlp


def build_cnn(num_classes: int) -> Callable[..., tf.Tensor]:
  """Builds a small CNN: conv 5x5x32, pool, conv 5x5x64, pool, dense 128, dense.

  The convolutions are not padded, except on images too small for that.

  Args:
    num_classes: The number of classes.

  Returns:
    A network.
  """

  def cnn(param, x, training):
    del training  # Unused.
    padding = 'VALID' if min(x.shape[1:3]) >= 16 else 'SAME'
    for i, filters in enumerate((32, 64)):
      x = tf.nn.relu(conv(param, x, filters, 5, f'conv{i}', padding=padding))
      x = tf.nn.max_pool2d(x, 2, 2, 'VALID')
    x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    x = tf.nn.relu(dense(param, x, 128, 'hidden'))
    return dense(param, x, num_classes, 'logits')

  return cnn


def group_norm(param, x, name, *, groups=2, epsilon=1e-5):
  """GroupNorm over height, width and the channels of a group, then scale and offset by channel."""
  channels = x.shape[-1]
  scale = param(f'{name}/scale', [channels], center=1.0)
  offset = param(f'{name}/offset', [channels])
  return _normalise_groups(x, scale, offset, groups, epsilon)


def _normalise_groups(x, scale, offset, groups, epsilon):
  """Returns `scale (x - m) / sqrt(v + epsilon) + offset`, `m` and `v` mean and variance of a group of an image.

  With its own gradient: TensorFlow's of these means spreads each of them over the map again, with shapes that it
  computes in every step, which takes a third of all launches of a ResNet's step on a GPU.
  """
  height, width, channels = x.shape[1:]
  in_group = [groups, channels // groups]

  def by_group(by_channel):
    return tf.reshape(by_channel, [-1, *in_group])

  def by_channel(grouped):
    return tf.reshape(grouped, [-1, 1, 1, channels])

  @tf.custom_gradient
  def normalise(x, scale, offset):
    scale = tf.reshape(scale, in_group)

    def mean_of_group(values):
      return tf.reduce_mean(by_group(tf.reduce_mean(values, axis=[1, 2])), axis=2, keepdims=True)

    # One factor and summand per image and channel, so that the map itself is read twice only: twice
    # as fast as normalising and then scaling.
    mean = mean_of_group(x)
    variance = mean_of_group(tf.square(x)) - tf.square(mean)
    inverse = tf.math.rsqrt(tf.maximum(variance, 0.0) + epsilon)
    factor = scale * inverse
    summand = tf.reshape(offset, in_group) - mean * factor

    def gradient(upstream):
      # With z = (x - m) / sqrt(v + epsilon) and u the gradient of the result, by image and channel: the sums of u and of u z.
      sum_u = by_group(tf.reduce_sum(upstream, axis=[1, 2]))
      sum_ux = by_group(tf.reduce_sum(upstream * x, axis=[1, 2]))
      sum_uz = inverse * (sum_ux - mean * sum_u)
      # The gradient of x is factor u - inverse (a + b z), a and b the means of scale u and scale u z over a group.
      share = scale / (height * width * channels // groups)
      a = tf.reduce_sum(share * sum_u, axis=2, keepdims=True)
      b = tf.reduce_sum(share * sum_uz, axis=2, keepdims=True) * inverse
      # Spread over the channels of a group here, where it is small.
      spread = inverse * np.ones(in_group, np.float32)
      of_x = (
        by_channel(factor) * upstream
        - by_channel(spread * b) * x
        + by_channel(spread * (mean * b - a))
      )
      of_scale, of_offset = (tf.reduce_sum(s, axis=0) for s in (sum_uz, sum_u))
      return of_x, tf.reshape(of_scale, [channels]), tf.reshape(of_offset, [channels])

    return x * by_channel(factor) + by_channel(summand), gradient

  return normalise(x, scale, offset)


@tf.custom_gradient
def _mean_of_map(x):
  height, width, channels = x.shape[1:]

  def gradient(upstream):
    by_channel = tf.reshape(upstream / (height * width), [-1, 1, 1, channels])
    return by_channel * np.ones([height, width, 1], np.float32)

  return tf.reduce_mean(x, axis=[1, 2]), gradient


_POOLINGS = {
  'global': _mean_of_map,
  # The released code's 3x3 window with stride 3 fits once into a 4x4 map (docs/paper.md, D7).
  'top_left': lambda x: _mean_of_map(x[:, :3, :3]),
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
    raise ValueError(f'Unknown pooling {pooling!r}, choose one of: {", ".join(_POOLINGS)}.')

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
    x = conv(param, x, 64, 3, 'stem', use_bias=False)
    x = tf.nn.relu(group_norm(param, x, 'stem_norm'))
    for stage, filters in enumerate((64, 128, 256, 512)):
      for i in range(2):
        x = block(param, x, filters, 2 if stage and not i else 1, f'stage{stage}/block{i}')
    return dense(param, _POOLINGS[pooling](x), num_classes, 'logits')

  return resnet18


def _nothing_dropped(x):
  return x


def build_dropout(rate, seed):
  """Returns a function that zeroes a share `rate` of what it is given and scales up the rest.

  All its calls draw float32 numbers from one stream of `seed`, the first call from its first part, the second from its second and so on:
  the same ones on every device. To take a stream of its own for each call would be 9 operations more.
  """
  if not rate:
    return _nothing_dropped
  key, _ = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
  parts = itertools.count()

  def drop(x):
    drawn = tf.raw_ops.StatelessRandomUniformV2(
      shape=tf.shape(x), key=key, counter=np.array([0, next(parts)], np.uint64), alg=_PHILOX
    )
    mask = tf.where(drawn >= rate, 1.0 / (1.0 - rate), 0.0)
    return tf.custom_gradient(lambda x: (x * mask, lambda upstream: upstream * mask))(x)

  return drop


def layer_norm(param, x, name, *, epsilon=1e-5):
  """LayerNorm over the last axis."""
  scale = param(f'{name}/scale', x.shape[-1:], center=1.0)
  offset = param(f'{name}/offset', x.shape[-1:])

  # With its own gradient, as `group_norm` has.
  @tf.custom_gradient
  def normalise(x, scale, offset):
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(x, mean), axis=-1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    factor = inverse * scale

    def gradient(upstream):
      z = (x - mean) * inverse
      u = upstream * scale
      a = tf.reduce_mean(u, axis=-1, keepdims=True)
      b = tf.reduce_mean(u * z, axis=-1, keepdims=True)
      examples = list(range(x.shape.rank - 1))
      of_scale = tf.reduce_sum(upstream * z, axis=examples)
      return inverse * (u - a - b * z), of_scale, tf.reduce_sum(upstream, axis=examples)

    return x * factor + (offset - mean * factor), gradient

  return normalise(x, scale, offset)


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
    projected = affine(source, kernels[part], biases[part])
    by_head = tf.reshape(projected, [-1, source.shape[1], heads, width // heads])
    return tf.transpose(by_head, [0, 2, 1, 3])

  query = project(queries, 0)
  scores = batch_matmul(query, project(x, 1), transpose_b=True)
  num_queries, num_keys = queries.shape[1], x.shape[1]
  if causal and num_queries > 1:  # The last position alone sees all.
    visible = np.tri(num_queries, num_keys, num_keys - num_queries, dtype=bool)
    scores += np.where(visible, 0.0, -np.inf).astype(np.float32)
  mixed = batch_matmul(dropout_fn(tf.nn.softmax(scores)), project(x, 2))
  joined = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, num_queries, width])
  return dense(
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
    drop = build_dropout(dropout_rate if training else 0.0, seed)

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
      x = layer_norm(own, add(read, drop(mixed)), f'{name}/norm0')
      y = drop(tf.nn.relu(dense(own, x, hidden, f'{name}/hidden')))
      x = layer_norm(own, add(x, drop(dense(own, y, width, f'{name}/out'))), f'{name}/norm1')
    return dense(param, x if every else x[:, -1], vocabulary_size, 'logits')

  return transformer
