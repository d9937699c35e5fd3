# SPDX-License-Identifier: Apache-2.0
"""The random seed of a step, which travels as a leaf of `x` in models that draw random numbers."""

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np

SEED_KEY = 'seed'
NO_SEED = np.zeros([2], np.int32)


def x_of(input_spec: Any) -> Any:
  """Returns the `x` of an input spec."""
  return input_spec['x'] if isinstance(input_spec, Mapping) else input_spec[0]


def has_seed(input_spec: Any) -> bool:
  """Returns whether a model draws random numbers, from a seed in its `x`."""
  x = x_of(input_spec)
  return isinstance(x, Mapping) and SEED_KEY in x


def without_seed(x: Any) -> Any:
  """Returns an `x` without its seed."""
  if not isinstance(x, Mapping):
    return x
  return collections.OrderedDict((key, leaf) for key, leaf in x.items() if key != SEED_KEY)


def with_seed(batch: Mapping[str, Any], seed: Any) -> collections.OrderedDict[str, Any]:
  """Returns a batch with a seed in its `x`."""
  x = collections.OrderedDict(batch['x'])
  x[SEED_KEY] = seed
  return collections.OrderedDict(x=x, y=batch['y'])
