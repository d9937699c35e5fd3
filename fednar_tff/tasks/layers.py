# SPDX-License-Identifier: Apache-2.0
"""The layers that networks are made of, each a function of its weights; see `model_fns.py`.

Products of matrices and convolutions are computed in `compute_dtype(param)`, the type of the
model's precision, and so is what `dense` and `conv` return. Norms compute and return float32.
"""

import functools
import itertools

import numpy as np
import tensorflow as tf

from fednar_tff.tasks import precision

PHILOX = 1  # tf.random.Algorithm.PHILOX, as the raw operations want it.


def add(x, y):
  """Returns `x + y` of tensors of equal shape.

  TensorFlow's `+` does not know, where the number of examples is open, that the shapes are equal,
  and in its gradient computes on the way back what was broadcast. So does its `matmul` of more than
  two dimensions; see `batch_matmul`.
  """
  return tf.add_n([x, y])


def batch_matmul(x, y, transpose_b=False):
  """Returns the products of matrices of two tensors whose other dimensions are equal."""
  # The second version, which is the faster one in bfloat16; its own gradient would compute shapes.
  multiply = tf.raw_ops.BatchMatMulV2

  @tf.custom_gradient
  def product(x, y):
    def gradient(upstream):
      if transpose_b:
        of_y = multiply(x=upstream, y=x, adj_x=True)
      else:
        of_y = multiply(x=x, y=upstream, adj_x=True)
      return multiply(x=upstream, y=y, adj_y=not transpose_b), of_y

    return multiply(x=x, y=y, adj_y=transpose_b), gradient

  return precision.multiply(product, x, y)


def affine(x, kernel, bias):
  """Returns `x kernel + bias`, for all positions of all examples in one product of matrices."""
  flat = tf.reshape(x, [-1, x.shape[-1]]) if x.shape.rank > 2 else x
  y = tf.nn.bias_add(precision.multiply(tf.linalg.matmul, flat, kernel), bias)
  return tf.reshape(y, [-1, *x.shape[1:-1], kernel.shape[-1]]) if x.shape.rank > 2 else y


def compute_dtype(param):
  """Returns the type in which a network multiplies: that of its model's precision."""
  return getattr(param, 'compute_dtype', tf.float32)


def dense(param, x, units, name, *, zero_bias=False, factor=1.0, bias_factor=1.0):
  """A fully connected layer; initial weights and biases uniform in +- 1 / sqrt(inputs).

  Args:
    param: Hands out the weights.
    x: `[..., inputs]`, of any type.
    units: The number of outputs.
    name: What the weights' names begin with.
    zero_bias: Whether the biases start at 0.
    factor: What the kernel is multiplied by.
    bias_factor: What the bias is multiplied by.

  Returns:
    `[..., units]`, of the type `compute_dtype(param)`.
  """
  inputs = x.shape[-1]
  kernel = param(f'{name}/kernel', [inputs, units], bound=inputs**-0.5)
  bias = param(f'{name}/bias', [units], bound=0.0 if zero_bias else inputs**-0.5)
  kernel = kernel * factor if factor != 1.0 else kernel
  bias = bias * bias_factor if bias_factor != 1.0 else bias
  return affine(*(tf.cast(v, compute_dtype(param)) for v in (x, kernel, bias)))


def conv(param, x, filters, size, name, *, stride=1, padding='SAME', use_bias=True):
  """A convolution, initialised as `dense` is; 'SAME' pads `size // 2` on each side."""
  dtype = compute_dtype(param)
  x = tf.cast(x, dtype)
  fan_in = size * size * x.shape[-1]
  kernel = param(f'{name}/kernel', [size, size, x.shape[-1], filters], bound=fan_in**-0.5)
  if padding == 'SAME' and stride > 1:
    # TensorFlow's own 'SAME' would pad one side only here.
    pad = [size // 2, size // 2]
    x, padding = tf.pad(x, [[0, 0], pad, pad, [0, 0]]), 'VALID'
  convolve = functools.partial(tf.nn.conv2d, strides=stride, padding=padding)
  x = precision.multiply(convolve, x, tf.cast(kernel, dtype))
  if use_bias:
    bias = param(f'{name}/bias', [filters], bound=fan_in**-0.5)
    x = tf.nn.bias_add(x, tf.cast(bias, dtype))
  return x


def group_norm(param, x, name, *, groups=2, epsilon=1e-5):
  """GroupNorm over height, width and the channels of a group, then scale and offset by channel."""
  channels = x.shape[-1]
  scale = param(f'{name}/scale', [channels], center=1.0)
  offset = param(f'{name}/offset', [channels])
  return _normalise_groups(tf.cast(x, tf.float32), scale, offset, groups, epsilon)


def _normalise_groups(x, scale, offset, groups, epsilon):
  """Returns `scale (x - m) / sqrt(v + epsilon) + offset`.

  `m` and `v` are mean and variance of a group of an image.

  With its own gradient: TensorFlow's of these means spreads each of them over the map again, with
  shapes that it computes in every step, which takes a third of all launches of a ResNet's step on a
  GPU.
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
      # With z = (x - m) / sqrt(v + epsilon) and u the gradient of the result, by image and channel:
      # the sums of u and of u z.
      sum_u = by_group(tf.reduce_sum(upstream, axis=[1, 2]))
      sum_ux = by_group(tf.reduce_sum(upstream * x, axis=[1, 2]))
      sum_uz = inverse * (sum_ux - mean * sum_u)
      # The gradient of x is factor u - inverse (a + b z), a and b the means of scale u and scale u
      # z over a group.
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


_POOL = {'ksize': [1, 2, 2, 1], 'strides': [1, 2, 2, 1], 'padding': 'VALID'}


def max_pool(x):
  """Returns the largest values of 2x2 windows; a row or column that is left over is left out."""
  if tf.config.list_physical_devices('GPU'):
    return tf.raw_ops.MaxPool(input=x, **_POOL)

  @tf.custom_gradient
  def pool(x):
    return tf.raw_ops.MaxPool(input=x, **_POOL), lambda upstream: _max_pool_gradient(x, upstream)

  return pool(x)


# TensorFlow leaves the gradient to oneDNN, ten times as fast as its own, only if it meets the
# pooling before it on its way through the graph. In the loop over a client's batches that way is a
# circle, and may begin between the two. So they stand together in a function that stays one.
@tf.function(autograph=False, experimental_attributes={'_noinline': True})
def _max_pool_gradient(x, upstream):
  y = tf.raw_ops.MaxPool(input=x, **_POOL)
  return tf.raw_ops.MaxPoolGrad(orig_input=x, orig_output=y, grad=upstream, **_POOL)


@tf.custom_gradient
def mean_of_map(x):
  height, width, channels = x.shape[1:]

  def gradient(upstream):
    by_channel = tf.reshape(upstream / (height * width), [-1, 1, 1, channels])
    return by_channel * np.ones([height, width, 1], np.float32)

  return tf.reduce_mean(x, axis=[1, 2]), gradient


class Dropout:
  """Zeroes a share `rate` of what it is given, drawn from a seed.

  Each value is dropped with probability `rate`, decided by a byte of its own: one number of 32 bits
  for four values, since numbers are what dropout's time goes into. A byte is below a bound with a
  probability of whole 256ths, so the bound is `256 rate` rounded up or down, by one more number of
  the seed for all calls: in the mean over seeds, that is `rate`.
  The n-th call draws from the n-th part of one stream of the seed: the same on every device.

  Attributes:
    scale: `1 / (1 - rate)`, what the values that stay are to be multiplied by.
  """

  def __init__(self, rate, seed):
    self.scale = 1.0 / (1.0 - rate)
    self._rate, self._seed = rate, seed
    self._stream = None
    self._parts = itertools.count(1)

  def _start(self):
    key, _ = tf.raw_ops.StatelessRandomGetKeyCounter(seed=self._seed)
    shift = tf.raw_ops.StatelessRandomUniformV2(
      shape=[], key=key, counter=np.zeros([2], np.uint64), alg=PHILOX
    )
    return key, tf.cast(tf.minimum(tf.floor(256 * self._rate + shift), 255.0), tf.uint8)

  def mask(self, x):
    """Returns 1 where a value of `x` stays and 0 where not; None if nothing is dropped."""
    if not self._rate:
      return None
    if self._stream is None:
      self._stream = self._start()
    key, bound = self._stream
    last = x.shape[-1]
    before, words = tf.shape(x)[:-1], (last + 3) // 4
    drawn = tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=tf.concat([before, [words]], 0),
      key=key,
      counter=np.array([0, next(self._parts)], np.uint64),
      alg=PHILOX,
      dtype=tf.uint32,
    )
    octets = tf.reshape(tf.bitcast(drawn, tf.uint8), tf.concat([before, [4 * words]], 0))
    kept = (octets[..., :last] if last % 4 else octets) >= bound
    kept.set_shape(x.shape)
    return tf.cast(kept, x.dtype)

  def keep(self, x):
    """Returns `x` with zeros where it is dropped; what stays is not scaled."""
    mask = self.mask(x)
    if mask is None:
      return x
    return tf.custom_gradient(lambda x: (x * mask, lambda upstream: upstream * mask))(x)

  def keep_positive(self, x):
    """Returns `keep(relu(x))`, whose gradient is one operation: 0 where `x` is not kept."""
    mask = self.mask(x)
    if mask is None:
      return tf.nn.relu(x)

    @tf.custom_gradient
    def kept(x):
      y = tf.nn.relu(x) * mask
      return y, lambda upstream: tf.raw_ops.ReluGrad(gradients=upstream, features=y)

    return kept(x)

  def softmax(self, scores, dtype):
    """Returns `keep(softmax(scores))`, computed in float32, as `dtype`."""
    scores = tf.cast(scores, tf.float32)
    mask = self.mask(scores)

    @tf.custom_gradient
    def kept(scores):
      shares = tf.nn.softmax(scores)
      y = shares if mask is None else shares * mask

      def gradient(upstream):
        # Of the kept share y_i = m_i s_i: s_i (m_i u_i - sum_j m_j u_j s_j), u the upstream.
        product = tf.cast(upstream, tf.float32) * y
        return product - shares * tf.reduce_sum(product, axis=-1, keepdims=True)

      return tf.cast(y, dtype), gradient

    return kept(scores)

  def __call__(self, x):
    """Returns `x` with zeros where it is dropped, and the rest scaled."""
    return self.keep(x) * self.scale if self._rate else x


def build_dropout(rate, seed):
  """Returns a function that zeroes a share `rate` of what it is given and scales up the rest.

  It is a `Dropout`.

  Args:
    rate: The share, in [0, 1).
    seed: An int32 `[2]`.
  """
  return Dropout(rate, seed)


def layer_norm(param, x, name, *, epsilon=1e-5):
  """LayerNorm over the last axis."""
  scale = param(f'{name}/scale', x.shape[-1:], center=1.0)
  offset = param(f'{name}/offset', x.shape[-1:])
  width = x.shape[-1]

  # With its own gradient, as `group_norm` has. Sums over rows and columns are products with
  # vectors, which are faster than reductions.
  @tf.custom_gradient
  def normalise(x, scale, offset):
    flat = tf.reshape(x, [-1, width])
    centered = flat - tf.reduce_mean(flat, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    z = centered * inverse

    def gradient(upstream):
      # The gradient of x is inverse (u - mean(u) - z mean(u z)), with u = scale * upstream.
      upstream = tf.reshape(upstream, [-1, width])
      share = tf.reshape(scale / width, [width, 1])
      product = upstream * z
      a = tf.linalg.matmul(upstream, share)
      b = tf.linalg.matmul(product, share)
      of_x = inverse * (upstream * scale - (z * b + a))
      of_scale, of_offset = (tf.reduce_sum(v, axis=0) for v in (product, upstream))
      return tf.reshape(of_x, [-1, *x.shape[1:]]), of_scale, of_offset

    return tf.reshape(z * scale + offset, [-1, *x.shape[1:]]), gradient

  return normalise(tf.cast(x, tf.float32), scale, offset)
