# SPDX-License-Identifier: Apache-2.0
"""Reduces of datasets run as loops in process, and give what TensorFlow's own reduce gives."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.runtime.in_process import reduce_loops

NUMBERS = tff.SequenceType(np.float32)


def add(dataset):
  return dataset.reduce(0.0, lambda total, x: total + x)


def count_and_order(dataset):
  """A state of several leaves, in which the order of the elements counts."""
  initial = collections.OrderedDict(count=0, polynomial=tf.constant(0.0))

  def step(state, x):
    return collections.OrderedDict(
      count=state['count'] + 1, polynomial=2.0 * state['polynomial'] + x
    )

  return dataset.reduce(initial, step)


def grow(dataset):
  """A state whose shape changes."""
  return dataset.reduce(
    tf.zeros([0]), lambda seen, x: tf.ensure_shape(tf.concat([seen, [x]], 0), [None])
  )


def scale(dataset):
  """A function that reads a tensor from around it."""
  factor = tf.random.stateless_uniform([], [1, 2])
  return dataset.reduce(0.0, lambda total, x: total + factor * x)


def sum_pairs(dataset):
  """A reduce within a reduce."""
  pairs = dataset.window(2, drop_remainder=True)
  return pairs.reduce(0.0, lambda total, pair: total * 3.0 + add(pair))


def two_reduces(dataset):
  return add(dataset), count_and_order(dataset.map(lambda x: x * x))


def write_variables(dataset):
  """Steps that write a variable and read it: each has to see what the one before has written."""
  variable = tf.Variable(1.0)

  @tf.function
  def run(dataset):
    variable.assign(1.0)

    def step(total, x):
      variable.assign(variable * 1.5 + x)
      return total + variable.read_value()

    return dataset.reduce(0.0, step), variable.read_value()

  return run(dataset)


def in_a_function(dataset):
  """In a function of the library, where results have other names than in the graph."""
  return tf.function(two_reduces)(dataset)


WORK = [
  add,
  count_and_order,
  grow,
  scale,
  sum_pairs,
  two_reduces,
  in_a_function,
  write_variables,
]


@pytest.mark.parametrize('size', [0, 1, 7])
@pytest.mark.parametrize('work', WORK, ids=lambda work: work.__name__)
def test_same_as_reduce(in_process_runtime, work, size):
  data = tf.data.Dataset.from_tensor_slices(np.linspace(-1.0, 2.0, size, dtype=np.float32))
  found = tff.tensorflow.computation(work, NUMBERS)(data)
  expected = work(data)
  for x, y in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-6)


def test_elements_of_several_parts_and_short_batches(in_process_runtime):
  examples = collections.OrderedDict(
    x=np.arange(10, dtype=np.float32).reshape([5, 2]), word=['a', 'bb', 'ccc', '', 'e']
  )
  data = tf.data.Dataset.from_tensor_slices(examples).batch(2)

  def work(dataset):
    def step(state, batch):
      total, length = state
      return total + batch['x'][0], length + tf.reduce_sum(tf.strings.length(batch['word']))

    return dataset.reduce((tf.zeros([2]), 0), step)

  element_type = tff.types.tensorflow_to_type(data.element_spec)
  total, length = tff.tensorflow.computation(work, tff.SequenceType(element_type))(data)
  np.testing.assert_array_equal(total, [0.0 + 4.0 + 8.0, 1.0 + 5.0 + 9.0])
  assert length == 7


def test_no_reduce_is_left():
  proto = tff.tensorflow.computation(two_reduces, NUMBERS).to_compiled_building_block().proto
  graph_def = tf.compat.v1.GraphDef.FromString(proto.tensorflow.graph_def.value)

  def count(kind):
    nodes = [*graph_def.node, *(n for f in graph_def.library.function for n in f.node_def)]
    return sum(node.op == kind for node in nodes)

  assert (count('ReduceDataset'), count('While')) == (2, 0)
  reduce_loops.replace_reduces(graph_def)
  assert (count('ReduceDataset'), count('While')) == (0, 2)
