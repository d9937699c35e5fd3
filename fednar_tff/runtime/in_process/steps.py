# SPDX-License-Identifier: Apache-2.0
"""The steps that a TFF computation is made of, once it is planned.

A TFF value is a tree. Here each of its leaves (a tensor or a dataset) is a numbered slot, and a
structure is a tuple of slots. A step reads slots and writes slots.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.runtime.in_process import graph_function, values

Values = dict[int, Any]


def flatten(tree) -> list[int]:
  """Lists the slots of a tree of nested tuples."""
  if isinstance(tree, tuple):
    return [slot for branch in tree for slot in flatten(branch)]
  return [tree]


def map_tree(fn: Callable[[object], object], tree):
  """Applies a function to each slot of a tree of nested tuples."""
  if isinstance(tree, tuple):
    return tuple(map_tree(fn, branch) for branch in tree)
  return fn(tree)


@dataclasses.dataclass
class Step:
  """Reads slots, writes slots, at the server or at each client."""

  reads: list[int]
  writes: list[int]
  on_clients: bool

  def run(self, slots: Values, device: str) -> None:
    raise NotImplementedError

  def ran_on(self, slots: Values) -> str | None:
    """Returns the full name of the device that ran the step; None if its results do not tell."""
    written = (slots[slot] for slot in self.writes)
    return next((x.device for x in written if tf.is_tensor(x) and x.dtype.is_floating), None)


@dataclasses.dataclass
class Constant(Step):
  value: object

  def run(self, slots, device):
    del device
    slots[self.writes[0]] = self.value

  def ran_on(self, slots):
    return None


@dataclasses.dataclass
class Call(Step):
  """Calls a TensorFlow graph."""

  function: graph_function.GraphFunction

  def run(self, slots, device):
    with tf.device(device):  # Arrays become tensors in the memory of the device that reads them.
      arguments = [values.to_tensor(slots[slot]) for slot in self.reads]
    slots.update(zip(self.writes, self.function(arguments, device), strict=True))


@dataclasses.dataclass
class Function:
  """The steps of a function that is called many times, as an accumulator is."""

  parameters: list[int]
  steps: list[Step]
  results: list[int]

  @property
  def captures(self) -> list[int]:
    """The slots that the function reads from outside."""
    inside = {*self.parameters, *(slot for step in self.steps for slot in step.writes)}
    return [slot for step in self.steps for slot in step.reads if slot not in inside] + [
      slot for slot in self.results if slot not in inside
    ]

  def __call__(self, arguments: Iterable[object], slots: Values, device: str) -> list[object]:
    slots.update(zip(self.parameters, arguments, strict=True))
    for step in self.steps:
      step.run(slots, device)
    return [slots[slot] for slot in self.results]


@dataclasses.dataclass
class Aggregation(Step):
  """Folds the values of all clients, in client order, into values at the server."""

  client_values: list[int]
  zero: list[int]
  accumulate: Function
  # Of two sums over some of the clients; only in plans for several processes.
  merge: Function | None

  def start(self, slots: Values) -> None:
    slots.update(zip(self.writes, [slots[slot] for slot in self.zero], strict=True))

  def add(self, client: Values, slots: Values, device: str) -> None:
    arguments = [slots[slot] for slot in self.writes]
    arguments += [client[slot] if slot in client else slots[slot] for slot in self.client_values]
    slots.update(zip(self.writes, self.accumulate(arguments, slots, device), strict=True))

  def add_sum(self, leaves: list[object], slots: Values, device: str) -> None:
    """Adds the sum over the clients that follow."""
    assert self.merge is not None, 'the plan was made for one process'
    arguments = [*(slots[slot] for slot in self.writes), *leaves]
    slots.update(zip(self.writes, self.merge(arguments, slots, device), strict=True))


@dataclasses.dataclass
class SequenceReduce(Step):
  sequence: int
  element_type: tff.Type
  zero: list[int]
  accumulate: Function

  def run(self, slots, device):
    state = [slots[slot] for slot in self.zero]
    for element in values.elements(slots[self.sequence], self.element_type):
      state = self.accumulate([*state, *element], slots, device)
    slots.update(zip(self.writes, state, strict=True))


@dataclasses.dataclass
class SequenceSum(Step):
  sequence: int
  element_type: tff.Type

  def run(self, slots, device):
    total = values.zeros(self.element_type)
    for element in values.elements(slots[self.sequence], self.element_type):
      total = [x + y for x, y in zip(total, element, strict=True)]
    slots.update(zip(self.writes, total, strict=True))


@dataclasses.dataclass
class SequenceMap(Step):
  sequence: int
  element_type: tff.Type
  result_type: tff.Type
  function: Function

  def run(self, slots, device):
    mapped = [
      self.function(element, slots, device)
      for element in values.elements(slots[self.sequence], self.element_type)
    ]
    slots[self.writes[0]] = values.dataset_from_leaves(mapped, self.result_type)


@dataclasses.dataclass
class Select(Step):
  """Gives a client the sequence of the slices of a server's value that its keys ask for."""

  keys: int
  max_key: int
  result_type: tff.Type
  select: Function

  def run(self, slots, device):
    max_key = int(slots[self.max_key])
    keys = values.to_tensor(slots[self.keys])
    slices = []
    for key in tf.unstack(keys):
      if not 0 <= int(key) < max_key:
        raise ValueError(f'federated_select: key {int(key)} is not in [0, {max_key}).')
      slices.append(self.select([key], slots, device))
    slots[self.writes[0]] = values.dataset_from_leaves(slices, self.result_type)
