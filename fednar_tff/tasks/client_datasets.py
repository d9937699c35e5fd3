# SPDX-License-Identifier: Apache-2.0
"""Datasets made of arrays in memory, cheaply: a round of many small clients makes one for each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


class ElementMaker:
  """Makes datasets of one element, as `tf.data.Dataset.from_tensors` does in ten times the time.

  All elements have the same structure. Datasets whose elements have the same shapes share one
  `element_spec`, so that a runtime needs to look at it only once.
  """

  def __init__(self):
    self._specs = {}

  def __call__(self, element: Any) -> tf.data.Dataset:
    """Returns the dataset of an element: tensors, which are not copied, and NumPy arrays."""
    with tf.device('CPU:0'):
      leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(element)]
      shapes = tuple(leaf.shape for leaf in leaves)
      variant = tf.raw_ops.TensorDataset(components=leaves, output_shapes=shapes)
    if shapes not in self._specs:
      specs = [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves]
      self._specs[shapes] = tf.nest.pack_sequence_as(element, specs)
    return tf.data.experimental.from_variant(variant, self._specs[shapes])


class BatchMaker:
  """Makes datasets of batches with one traced function for all clients.

  `Dataset.map` traces its function anew for each dataset, which takes longer than training a small
  client.
  """

  def __init__(self, arrays: Any, finish: Callable[[Any, tf.Tensor], Any] | None):
    """Takes what all datasets have in common.

    Args:
      arrays: A structure of arrays whose first dimension counts examples; only their types count.
      finish: Makes of the examples of a batch and the seed of its step what the model takes; None
        if these are the examples.
    """
    self._finish = finish
    self._spec = tf.nest.map_structure(
      lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), arrays
    )
    self._batch_spec: Any = None
    self._make: Any = None

  def __call__(self, own: Any, index: np.ndarray, seeds: np.ndarray) -> tf.data.Dataset:
    """Returns the batches of a client.

    Args:
      own: The client's examples, of the structure of `arrays`.
      index: For each batch its positions among the examples; -1 fills up short batches.
      seeds: For each batch its seed, two int32.
    """
    with tf.device('CPU:0'):
      if self._make is None:
        self._make = self._trace()
      return tf.data.experimental.from_variant(
        self._make(*tf.nest.flatten(own), index, seeds), self._batch_spec
      )

  def _trace(self):
    def batches_of(*arguments):
      *leaves, index, seeds = arguments
      own = tf.nest.pack_sequence_as(self._spec, leaves)

      def batch_of(positions, step_seed):
        rows = tf.boolean_mask(positions, positions >= 0)
        batch = tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), own)
        return self._finish(batch, step_seed) if self._finish else batch

      dataset = tf.data.Dataset.from_tensor_slices((index, seeds)).map(batch_of)
      self._batch_spec = dataset.element_spec
      return tf.data.experimental.to_variant(dataset)

    signature = [
      *tf.nest.flatten(self._spec),
      tf.TensorSpec([None, None], tf.int32),
      tf.TensorSpec([None, 2], tf.int32),
    ]
    return tf.function(batches_of, input_signature=signature, autograph=False)
