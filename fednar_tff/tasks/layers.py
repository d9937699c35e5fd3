"""The layers that networks are made of, each a function of its weights; see `model_fns.py`."""

import itertools

import numpy as np
import tensorflow as tf

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


def group_norm(param, x, name, *, groups=2, epsilon=1e-5):
  """GroupNorm over height, width and the channels of a group, then scale and offset by channel."""
  channels = x.shape[-1]
  scale = param(f'{name}/scale', [channels], center=1.0)
  offset = param(f'{name}/offset', [channels])
  return _normalise_groups(x, scale, offset, groups, epsilon)


def _normalise_groups(x, scale, offset, groups, epsilon):
  """Returns `scale (x - m) / sqrt(v + epsilon) + offset`, `m` and `v` mean and variance of a group of an image.

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


@tf.custom_gradient
def mean_of_map(x):
  height, width, channels = x.shape[1:]

  def gradient(upstream):
    by_channel = tf.reshape(upstream / (height * width), [-1, 1, 1, channels])
    return by_channel * np.ones([height, width, 1], np.float32)

  return tf.reduce_mean(x, axis=[1, 2]), gradient


def nothing_dropped(x):
  return x


def build_dropout(rate, seed):
  """Returns a function that zeroes a share `rate` of what it is given and scales up the rest.

  All its calls draw float32 numbers from one stream of `seed`, the first call from its first part,
  the second from its second and so on: the same ones on every device. To take a stream of its own
  for each call would be 9 operations more.
  """
  if not rate:
    return nothing_dropped
  key, _ = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
  parts = itertools.count()

  def drop(x):
    drawn = tf.raw_ops.StatelessRandomUniformV2(
      shape=tf.shape(x), key=key, counter=np.array([0, next(parts)], np.uint64), alg=PHILOX
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
