# SPDX-License-Identifier: Apache-2.0
"""Small data in the layouts of tfds and TFF, and a NumPy reading of packed clients."""

import sqlite3

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture
def unpack():
  """Returns a function from a packed dataset to its batches, by the contract, in NumPy."""

  def unpack_dataset(dataset, input_spec):
    (packed,) = dataset.as_numpy_iterator()
    leaves = tf.nest.flatten(packed['data'])
    specs = tf.nest.flatten(input_spec)
    batches = []
    for step, index in enumerate(packed['index']):
      index = index[index >= 0]
      batch = [
        leaf[index] if spec.shape[0] is None else leaf[step] for leaf, spec in zip(leaves, specs)
      ]
      batches.append(tf.nest.pack_sequence_as(input_spec, batch))
    return batches

  return unpack_dataset


@pytest.fixture
def write_database():
  """Returns a function that writes examples in the layout that TFF's native data sets have."""

  def write(path, examples):
    """`examples`: {split: {client: [feature dict, ...]}}, a feature being bytes or integers."""
    connection = sqlite3.connect(path)
    connection.execute(
      'CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)'
    )
    connection.execute(
      'CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)'
    )
    for split, clients in examples.items():
      for client, rows in clients.items():
        connection.execute(
          'INSERT INTO client_metadata VALUES (?, ?, ?)', (client, split, len(rows))
        )
        for row in rows:
          proto = tf.train.Example()
          for key, value in row.items():
            if isinstance(value, bytes):
              proto.features.feature[key].bytes_list.value.append(value)
            else:
              proto.features.feature[key].int64_list.value.extend(np.ravel(value).tolist())
          connection.execute(
            'INSERT INTO examples VALUES (?, ?, ?)', (split, client, proto.SerializeToString())
          )
    connection.commit()
    connection.close()

  return write
