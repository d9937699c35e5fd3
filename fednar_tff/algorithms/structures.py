"""Small computations on structures of tensors."""

from typing import Any

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
