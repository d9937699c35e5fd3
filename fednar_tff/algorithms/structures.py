# SPDX-License-Identifier: Apache-2.0
"""Small computations on structures of tensors, and a check of arguments."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def all_finite(structure: Any) -> tf.Tensor:
  """Returns whether all entries of all leaves are finite."""
  return tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in tf.nest.flatten(structure)])


def zeros(type_spec: tff.Type) -> Any:
  """Returns zeros of a type whose leaves are tensors."""
  return tf.nest.map_structure(
    lambda s: tf.zeros(s.shape, s.dtype), tff.types.type_to_tf_tensor_specs(type_spec)
  )


def check_positive_integer(name: str, value: Any) -> None:
  """Raises a `ValueError` if an argument is not a positive integer."""
  if not isinstance(value, (int, np.integer)) or value < 1:
    raise ValueError(f'`{name}` must be a positive integer, found {value!r}.')
