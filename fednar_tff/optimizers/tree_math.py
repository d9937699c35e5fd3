# SPDX-License-Identifier: Apache-2.0
"""Mathematics on lists of tensors: the leaves of weights, gradients and updates."""

from collections.abc import Sequence

import tensorflow as tf


def compute_dtype(leaf: tf.Tensor) -> tf.DType:
  """Returns the type in which a leaf is computed: its own, but never narrower than float32."""
  return tf.float32 if leaf.dtype in (tf.float16, tf.bfloat16) else leaf.dtype


def scalar_dtype(leaves: Sequence[tf.Tensor]) -> tf.DType:
  """Returns the type of a scalar made of all leaves: float64 if any leaf is, else float32."""
  return tf.float64 if any(x.dtype == tf.float64 for x in leaves) else tf.float32


def global_norm(leaves: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns the Euclidean norm over all leaves together.

  The norm is of `scalar_dtype`. It is exact up to rounding wherever the norm itself is
  representable: where the squares overflow, it is computed again on scaled leaves. Squares that
  underflow (norms below about 1e-19 in float32) count as zero. A leaf that is not finite makes the
  norm not finite.

  Args:
    leaves: Floating-point tensors of any shapes; an empty list has norm zero.
  """
  dtype = scalar_dtype(leaves)
  leaves = [tf.cast(x, compute_dtype(x)) for x in leaves]
  if not leaves:
    return tf.zeros([], dtype)

  def root_of_sum_of_squares(tensors):
    return tf.sqrt(2.0 * tf.add_n([tf.cast(tf.nn.l2_loss(x), dtype) for x in tensors]))

  def norm_of_scaled_leaves():
    largest = tf.reduce_max(
      tf.stack(
        [tf.cast(tf.reduce_max(tf.abs(x)), dtype) for x in leaves if x.shape.num_elements() != 0]
      )
    )
    return largest * root_of_sum_of_squares([x / tf.cast(largest, x.dtype) for x in leaves])

  norm = root_of_sum_of_squares(leaves)
  # The second computation runs only when the first overflowed: the usual step pays for one pass.
  return tf.cond(tf.math.is_finite(norm), lambda: norm, norm_of_scaled_leaves)
