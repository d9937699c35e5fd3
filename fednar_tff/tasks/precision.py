# SPDX-License-Identifier: Apache-2.0
"""The types in which a model can multiply, and whether this machine is fast in them."""

import functools
import time
from collections.abc import Callable

import tensorflow as tf

from fednar_tff import processor

PRECISIONS = {'float32': tf.float32, 'bfloat16': tf.bfloat16, 'float16': tf.float16}
# What a processor calls its instructions for a type.
_INSTRUCTIONS = {
  tf.bfloat16: ('avx512_bf16', 'amx_bf16'),
  tf.float16: ('avx512_fp16', 'amx_fp16'),
}
_SIDE = 512
_REPETITIONS = 5


def check(precision: str) -> None:
  """Raises a `ValueError` if a precision is unknown."""
  if precision not in PRECISIONS:
    raise ValueError(f'`precision` must be one of {list(PRECISIONS)}, found {precision!r}.')


@functools.cache
def is_rounded_float32(dtype: tf.DType) -> bool:
  """Returns whether products in a type are computed in float32 and then rounded to it.

  They are where neither a GPU nor the processor has instructions for the type.

  Args:
    dtype: The type.
  """
  if dtype not in _INSTRUCTIONS or tf.config.list_physical_devices('GPU'):
    return False
  extensions = processor.describe()['extensions'] or ()
  return not any(name in extensions for name in _INSTRUCTIONS[dtype])


def multiply(product: Callable[..., tf.Tensor], *factors: tf.Tensor) -> tf.Tensor:
  """Returns a product, or a convolution, of factors of one type, in that type.

  Instructions for a type of 16 bits add up in float32 and round the sum once. Without them that is
  computed here, in float32, where the factors are exact. TensorFlow's own way is several times
  slower.

  Args:
    product: A function of the factors that multiplies.
    *factors: What it takes.
  """
  dtype = factors[0].dtype
  if not is_rounded_float32(dtype):
    return product(*factors)
  return tf.cast(product(*(tf.cast(factor, tf.float32) for factor in factors)), dtype)


@functools.cache
def relative_time(precision: str) -> float:
  """Measures, once in a process, the time of a product of matrices as a multiple of float32's.

  Args:
    precision: One of `PRECISIONS`.

  Raises:
    ValueError: If it is unknown.
  """
  check(precision)
  squares = {name: _square(PRECISIONS[name]) for name in ('float32', precision)}
  seconds = dict.fromkeys(squares, float('inf'))
  for _ in range(_REPETITIONS):  # In turns, as the speed of a machine changes.
    for name, run in squares.items():
      start = time.perf_counter()
      run()
      seconds[name] = min(seconds[name], time.perf_counter() - start)
  return seconds[precision] / seconds['float32']


def _square(dtype):
  x = tf.cast(tf.random.stateless_normal([_SIDE, _SIDE], [1, 2]), dtype)
  square = tf.function(lambda x: tf.reduce_max(multiply(tf.linalg.matmul, x, x)), autograph=False)
  square(x)  # The first call traces.
  return lambda: square(x).numpy()


def describe_speed(precision: str) -> str:
  """Says in a line how fast this machine is in a precision, and what follows."""
  ratio = relative_time(precision)
  advice = 'it is worth choosing' if ratio < 0.8 else 'float32 is not slower'
  if is_slow(precision):
    advice = 'this machine has no fast arithmetic for it, choose float32'
  return f'{precision}: a product of matrices takes {ratio:.2f} x the time of float32: {advice}'


def is_slow(precision: str) -> bool:
  """Returns whether this machine multiplies slower in a precision than in float32."""
  return precision != 'float32' and relative_time(precision) > 1.1
