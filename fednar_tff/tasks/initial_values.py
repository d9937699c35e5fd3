# SPDX-License-Identifier: Apache-2.0
"""Normal numbers whose bits are the same on every machine."""

import math

import numpy as np

_LN_2 = 0.6931471805599453
_LOG_TERMS = 12  # Of a series in squares of at most 0.0295: the rest is below a rounding error.


def standard_normal(key: int, shape: tuple[int, ...]) -> np.ndarray:
  """Returns numbers ~ N(0, 1), float32, as a function of the key and the shape alone.

  Marsaglia's polar method on the raw Philox stream of the key: a point `(u, v)`, uniform in the
  unit disc, with `s = u^2 + v^2`, gives the two numbers `(u, v) * sqrt(-2 log(s) / s)`.
  All of it is float64 and uses + - * / and the square root only, which IEEE 754 rounds in one way,
  one array operation at a time, so that no compiler joins a product and a sum. The logarithm of a
  mathematical library may differ in its last bit between machines; so `_log` is written out.

  Args:
    key: The key of the stream, an integer from 0 to below 2^128.
    shape: The shape of the result.
  """
  size = math.prod(shape)
  stream = np.random.Philox(key=key)
  numbers = np.zeros([0])
  while numbers.size < size:
    # The upper 53 bits of each number, as a multiple of 2^-52 in [-1, 1): exact.
    u, v = (stream.random_raw([2, size]) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
    s = u * u + v * v
    inside = (s > 0.0) & (s < 1.0)
    u, v, s = u[inside], v[inside], s[inside]
    factor = np.sqrt(-2.0 * _log(s) / s)
    numbers = np.concatenate([numbers, u * factor, v * factor])
  return numbers[:size].reshape(shape).astype(np.float32)


def _log(x: np.ndarray) -> np.ndarray:
  """The logarithm, by `log(2^e m) = e log(2) + 2 artanh((m - 1) / (m + 1))`."""
  m, e = np.frexp(x)  # m in [0.5, 1); exact.
  small = m < 0.7071067811865476
  m, e = np.where(small, 2.0 * m, m), np.where(small, e - 1, e)
  t = (m - 1.0) / (m + 1.0)
  square = t * t
  series = np.zeros_like(t)
  for k in reversed(range(_LOG_TERMS)):
    series = series * square + 1.0 / (2 * k + 1)
  return e * _LN_2 + 2.0 * t * series
