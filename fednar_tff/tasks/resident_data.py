# SPDX-License-Identifier: Apache-2.0
"""The data of all clients, in the memory of the host, once."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.tasks import partition as partition_lib


def resident(structure: Any) -> Any:
  """Returns arrays as tensors in the memory of the host."""
  # In host memory even where there is a GPU: datasets live there, and a batch is what travels.
  with tf.device('CPU:0'):
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


class ResidentClientData(tff.simulation.datasets.ClientData):
  """The clients of a partition over arrays that are in memory once."""

  def __init__(self, arrays: Any, partition: partition_lib.Partition):
    self._arrays = arrays
    self._partition = partition
    self._client_ids = list(partition.client_ids)

  @property
  def client_ids(self):
    return self._client_ids

  @property
  def element_type_structure(self):
    return tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), self._arrays
    )

  def create_tf_dataset_for_client(self, client_id):
    if client_id not in self._client_ids:
      raise ValueError(
        f'`client_id` must be one of {len(self._client_ids)} clients, found {client_id!r}.'
      )
    return self._dataset_of_rows(self._partition.rows[self._client_ids.index(client_id)])

  def create_tf_dataset_from_all_clients(self, seed=None):
    order = self._client_ids.copy()
    np.random.RandomState(seed=seed).shuffle(order)
    rows = [self._partition.rows[self._client_ids.index(client_id)] for client_id in order]
    return self._dataset_of_rows(np.concatenate(rows))

  @property
  def serializable_dataset_fn(self):
    return self._dataset_of_symbolic_id

  def _dataset_of_rows(self, rows):
    with tf.device('CPU:0'):
      return tf.data.Dataset.from_tensor_slices(
        tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), self._arrays)
      )

  def _dataset_of_symbolic_id(self, client_id):
    # The arrays become constants of the graph: the only way to serialise data held in memory.
    rows = np.concatenate(self._partition.rows)
    ends = np.cumsum([len(r) for r in self._partition.rows])
    position = tf.argmax(tf.cast(tf.equal(client_id, self._client_ids), tf.int32))
    starts = np.concatenate([[0], ends[:-1]])
    own = tf.constant(rows)[tf.gather(starts, position) : tf.gather(ends, position)]
    return tf.data.Dataset.from_tensor_slices(
      tf.nest.map_structure(lambda leaf: tf.gather(leaf.numpy(), own), self._arrays)
    )
