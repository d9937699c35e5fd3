# SPDX-License-Identifier: Apache-2.0
"""The types in which a model can multiply, and whether this machine is fast in them."""

import functools
import time

import tensorflow as tf

PRECISIONS = {'float32': tf.float32, 'bfloat16': tf.bfloat16, 'float16': tf.float16}
_SIDE = 512
_REPETITIONS = 5


def check(precision: str) -> None:
  """Raises a `ValueError` if a precision is unknown."""
  if precision not in PRECISIONS:
    raise ValueError(f'`precision` must be one of {list(PRECISIONS)}, found {precision!r}.')


@functools.cache
def relative_time(precision: str) -> float:
  """Measures, once in a process, the time of a product of matrices as a multiple of float32's.

  Args:
    precision: One of `PRECISIONS`.

  Raises:
    ValueError: If it is unknown.
  """
  check(precision)
  multiply = {name: _product(PRECISIONS[name]) for name in ('float32', precision)}
  seconds = dict.fromkeys(multiply, float('inf'))
  for _ in range(_REPETITIONS):  # In turns, as the speed of a machine changes.
    for name, run in multiply.items():
      start = time.perf_counter()
      run()
      seconds[name] = min(seconds[name], time.perf_counter() - start)
  return seconds[precision] / seconds['float32']


def _product(dtype):
  x = tf.cast(tf.random.stateless_normal([_SIDE, _SIDE], [1, 2]), dtype)
  multiply = tf.function(lambda x: tf.reduce_max(tf.linalg.matmul(x, x)), autograph=False)
  multiply(x)  # The first call traces.
  return lambda: multiply(x).numpy()


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
