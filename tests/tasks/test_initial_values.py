# SPDX-License-Identifier: Apache-2.0
"""Normal numbers: their distribution, the formula, and the bits."""

import hashlib
import math
import statistics

import numpy as np

from fednar_tff.tasks import initial_values


def test_bits_are_those_of_any_other_machine():
  """Computed once and written down: another processor, NumPy or mathematical library may not change
  them."""
  numbers = initial_values.standard_normal(7, (80, 128))
  assert [float(v).hex() for v in numbers[0, :3]] == [
    '0x1.33430e0000000p-1',
    '-0x1.a6e29c0000000p+0',
    '-0x1.57edc40000000p+1',
  ]
  digest = '88a1ba4216b8c9d1472482d8e205b979daf974293f20ef914fbff3d73cde6c99'
  assert hashlib.sha256(numbers.astype('<f4').tobytes()).hexdigest() == digest


def test_equals_the_polar_method_with_the_librarys_logarithm():
  size = 500
  raw = [int(r) for r in np.random.Philox(key=3).random_raw(2 * size)]
  uniform = [(r >> 11) / 2**52 - 1 for r in raw]
  first, second = [], []
  for u, v in zip(uniform[:size], uniform[size:]):
    s = u * u + v * v
    if s < 1:
      factor = math.sqrt(-2 * math.log(s) / s)
      first.append(u * factor)
      second.append(v * factor)
  expected = (first + second)[:size]
  np.testing.assert_allclose(initial_values.standard_normal(3, (size,)), expected, rtol=1e-6)


def test_distribution_is_normal():
  numbers = np.sort(initial_values.standard_normal(1, (20000,)).astype(np.float64))
  normal = statistics.NormalDist()
  shares = (np.arange(20000) + 0.5) / 20000
  distance = max(abs(normal.cdf(x) - p) for x, p in zip(numbers, shares))
  assert distance < 1.63 / math.sqrt(20000)  # Kolmogorov and Smirnov at 1 %.
  assert abs(numbers.std() - 1) < 0.02 and abs(numbers.mean()) < 0.02
  assert 3.5 < np.abs(numbers).max() < 5.5


def test_keys_and_small_shapes():
  assert initial_values.standard_normal(1, ()).shape == ()
  assert initial_values.standard_normal(1, (0, 3)).shape == (0, 3)
  a, b = (initial_values.standard_normal(key, (2, 3)) for key in (1, 2))
  assert np.all(a != b)
