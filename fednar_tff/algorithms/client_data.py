# SPDX-License-Identifier: Apache-2.0
"""The forms in which a client's data comes, and the loop over its batches.

A client's data is a dataset of batches, or *packed*, which is faster: a dataset with one element
that holds the arrays and, for each step, the rows of its batch (see `packed_spec`).
"""

import collections
import enum
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff


class PackedLoop(enum.Enum):
  """The loop over a packed client, beside the members of `tff.learning.LoopImplementation`."""

  PACKED = 'packed'


PACKED = PackedLoop.PACKED


class DataSizeWeighting(enum.Enum):
  """The weight of a client's data set, beside the members of `tff.learning.ClientWeighting`."""

  DATA_SIZE = 'data_size'


DATA_SIZE = DataSizeWeighting.DATA_SIZE
SIZE_KEY = 'num_examples'

LoopImplementation: TypeAlias = tff.learning.LoopImplementation | PackedLoop
ClientWeighting: TypeAlias = tff.learning.ClientWeighting | DataSizeWeighting


def packed_spec(input_spec: Any, *, with_size: bool = False) -> collections.OrderedDict[str, Any]:
  """Returns the type of a packed client's single element, `OrderedDict(data=..., index=...)`.

  `index` is an integer matrix with one row for each step. In `data`, a leaf of `input_spec` whose
  first dimension is None holds all examples, of which step `k` takes the rows `index[k]`, leaving
  out those that are -1 (a last batch may be short); any other leaf is stacked over the steps, and
  step `k` takes row `k`. With `with_size`, there is a third entry `num_examples`, an int32: how
  many examples the client holds, which `index` does not tell, as a round need not visit all. It is
  what `DATA_SIZE` weights by.

  Args:
    input_spec: The `input_spec` of a model: a structure of `tf.TensorSpec`.
    with_size: Whether the element says how many examples the client holds.
  """
  data = tf.nest.map_structure(
    lambda s: tf.TensorSpec([None, *(s.shape[1:] if _has_examples(s) else s.shape)], s.dtype),
    input_spec,
  )
  size = {SIZE_KEY: tf.TensorSpec([], tf.int32)} if with_size else {}
  return collections.OrderedDict(data=data, index=tf.TensorSpec([None, None], tf.int32), **size)


def _has_examples(spec: tf.TensorSpec) -> bool:
  return spec.shape.rank > 0 and spec.shape[0] is None


def single_element(dataset: tf.data.Dataset) -> Any:
  # A loop carries what it reads where that was made. On a GPU, this would copy all examples back in
  # every step.
  with tf.device('CPU:0'):
    return dataset.get_single_element()


def _packed_batch(packed: Mapping[str, Any], input_spec: Any, step: tf.Tensor) -> Any:
  # A gather on the GPU would first copy all examples there; so only the batch travels.
  with tf.device('CPU:0'):
    rows = packed['index'][step]
    rows = tf.boolean_mask(rows, rows >= 0)
    return tf.nest.map_structure(
      lambda spec, x: tf.gather(x, rows) if _has_examples(spec) else x[step],
      input_spec,
      packed['data'],
    )


def client_data_spec(
  input_spec: Any, loop_implementation: LoopImplementation, client_weighting: ClientWeighting
) -> Any:
  """Returns the type of an element of a client's dataset."""
  if loop_implementation is PACKED:
    return packed_spec(input_spec, with_size=client_weighting is DATA_SIZE)
  return input_spec


def takes_packed_clients(process: tff.templates.IterativeProcess) -> bool:
  """Returns whether a process was built with `loop_implementation=PACKED`.

  Args:
    process: An algorithm, whose `next` takes the clients' datasets last.
  """
  return {'data', 'index'} <= set(_names_in_client_data(process))


def _names_in_client_data(process: tff.templates.IterativeProcess) -> list[str]:
  *_, data_type = process.next.type_signature.parameter
  element = data_type.member.element
  return tff.structure.name_list(element) if isinstance(element, tff.StructType) else []


def takes_data_size(process: tff.templates.IterativeProcess) -> bool:
  """Returns whether a process takes packed clients that say how many examples they hold.

  Such is any algorithm of this package with `client_weighting=DATA_SIZE` on packed clients; see
  `packed_spec`.

  Args:
    process: An algorithm, whose `next` takes the clients' datasets last.
  """
  return {SIZE_KEY, 'index'} <= set(_names_in_client_data(process))


def run_loop(
  step_fn: Callable[[Any, Any], Any],
  state: Any,
  data: Any,
  input_spec: Any,
  loop_implementation: LoopImplementation,
) -> Any:
  """Returns the state after `state = step_fn(state, batch)` for all batches of a client.

  `data` is the dataset of batches, or the single element of a packed client.
  """
  if loop_implementation is PACKED:
    num_steps = tf.shape(data['index'])[0]
    _, state = tf.while_loop(
      lambda k, _: k < num_steps,
      lambda k, state: (k + 1, step_fn(state, _packed_batch(data, input_spec, k))),
      (0, state),
    )
    return state
  if loop_implementation is tff.learning.LoopImplementation.DATASET_ITERATOR:
    iterator = iter(data)

    def take_step(_, state):
      # The loop does not carry the batch: on a GPU it would travel there and back.
      batch = iterator.get_next_as_optional()
      has_batch = batch.has_value()
      return has_batch, tf.cond(has_batch, lambda: step_fn(state, batch.get_value()), lambda: state)

    _, state = tf.while_loop(lambda has_batch, _: has_batch, take_step, (True, state))
    return state
  return data.reduce(state, step_fn)
