# SPDX-License-Identifier: Apache-2.0
"""Small clients in groups: one call of TensorFlow trains several clients, one after the other.

A call from Python costs more than the work of a client that has a few thousand weights. So the
steps of a pass are joined into one graph that loops over the clients of a group, and the
aggregations into another one that adds what they send, client by client. Both graphs take the
number of clients as an argument. They are the same for every size of a group, and so are the bits.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from fednar_tff.runtime.in_process import call_options, client_pool, passes, steps, values

# Of what a client sends or keeps: for larger ones, a call from Python costs little.
_MAX_CLIENT_BYTES = 2**19
_MAX_GROUP_BYTES = 2**23
_MAX_GROUP = 128
# Long beside the cost of a call (some milliseconds), short beside a round.
_GROUP_SECONDS = 0.1


def _is_plain(all_steps: Iterable[steps.Step]) -> bool:
  """Returns whether the steps can be parts of one graph."""
  return all(
    isinstance(step, steps.Constant) or (isinstance(step, steps.Call) and step.function.can_be_part)
    for step in all_steps
  )


def _specs(plain: Iterable[steps.Step], device: str) -> tuple[dict, dict]:
  """Returns the type of each slot that steps read, and of each that they write."""
  read: dict[int, Any] = {}
  written: dict[int, Any] = {}
  for step in plain:
    if isinstance(step, steps.Call):
      inputs, outputs = step.function.signature(device)
      read.update(zip(step.reads, inputs, strict=True))
      written.update(zip(step.writes, outputs, strict=True))
    elif isinstance(step, steps.Constant):
      value: Any = step.value
      written[step.writes[0]] = tf.TensorSpec(value.shape, value.dtype)
  return read, written


def _is_array(spec: tf.TensorSpec | None) -> bool:
  return (
    spec is not None
    and spec.shape.is_fully_defined()
    and (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool)
  )


def _num_bytes(specs: Iterable[tf.TensorSpec]) -> int:
  return sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)


def _own(step: steps.Step, device: str) -> steps.Step:
  """Returns a step whose graph has variables that no other step sees."""
  if not isinstance(step, steps.Call):
    return step
  part: Any = step.function.new_part(device)
  return dataclasses.replace(step, function=part)


def _stack(leaves: Sequence[object]) -> tf.Tensor:
  with tf.device(values.HOST):
    return tf.stack([values.to_tensor(leaf) for leaf in leaves])


class _Traced:
  """A graph that takes the number of clients and a value for each slot that it reads."""

  def __init__(self, fn, specs: dict[int, tf.TensorSpec], device: str):
    self.reads = list(specs)
    self._device = device
    signature = [tf.TensorSpec([], tf.int32), *specs.values()]

    def run(number, *leaves):
      return fn(number, dict(zip(self.reads, leaves, strict=True)))

    with tf.device(device), call_options.memory_optimizer_off():
      function = tf.function(run, autograph=False, input_signature=signature)
      self._call = function.get_concrete_function()

  def __call__(self, number: int, slots: steps.Values) -> list[tf.Tensor]:
    leaves = [values.to_tensor(slots[slot]) for slot in self.reads]
    with tf.device(self._device), call_options.memory_optimizer_off():
      return self._call(tf.constant(number), *leaves)


class _ClientLoop:
  """The client steps of a pass, for one client after the other; one call at a time."""

  def __init__(self, group: 'Group', device: str):
    self._progress = tf.Variable(0, trainable=False, dtype=tf.int32)
    self._steps = [_own(step, device) for step in group.current.client_steps]
    self._writes = list(group.results)
    specs = {
      slot: tf.TensorSpec([None, *spec.shape], spec.dtype) if slot in group.client_reads else spec
      for slot, spec in group.reads.items()
    }

    def loop(number, slots):
      def body(client, *arrays):
        # Told before the client starts: whoever fails is the one that was named last.
        with tf.control_dependencies([self._progress.assign(client)]):
          own = {
            slot: tf.gather(leaf, client) if slot in group.client_reads else leaf
            for slot, leaf in slots.items()
          }
          for step in self._steps:
            step.run(own, device)
        written = [
          array.write(client, own[slot]) for array, slot in zip(arrays, self._writes, strict=True)
        ]
        return client + 1, *written

      arrays = [
        tf.TensorArray(spec.dtype, number, element_shape=spec.shape)
        for spec in group.results.values()
      ]
      _, *arrays = tf.while_loop(
        lambda client, *_: client < number, body, [tf.constant(0), *arrays], parallel_iterations=1
      )
      return [array.stack() for array in arrays]

    self._traced = _Traced(loop, specs, device)

  def __call__(self, clients: range, slots: steps.Values) -> steps.Values:
    try:
      return dict(zip(self._writes, self._traced(len(clients), slots), strict=True))
    except tf.errors.OpError as error:
      raise client_pool.ClientError(clients[int(self._progress)], error) from error


class _Sums:
  """The aggregations of a pass, for one client after the other."""

  def __init__(self, group: 'Group', device: str):
    aggregations = [
      dataclasses.replace(
        aggregation,
        accumulate=dataclasses.replace(
          aggregation.accumulate,
          steps=[_own(step, device) for step in aggregation.accumulate.steps],
        ),
      )
      for aggregation in group.current.aggregations
    ]
    self._totals = [slot for aggregation in aggregations for slot in aggregation.writes]
    sent = group.current.sends
    specs = {
      slot: tf.TensorSpec([None, *spec.shape], spec.dtype) if slot in sent else spec
      for slot, spec in group.sum_reads.items()
    }

    def loop(number, slots):
      def body(client, *totals):
        own = {slot: tf.gather(slots[slot], client) for slot in sent}
        server = {**slots, **dict(zip(self._totals, totals, strict=True))}
        for aggregation in aggregations:
          aggregation.add(own, server, device)
        return client + 1, *(server[slot] for slot in self._totals)

      _, *totals = tf.while_loop(
        lambda client, *_: client < number,
        body,
        [tf.constant(0), *(slots[slot] for slot in self._totals)],
        parallel_iterations=1,
      )
      return totals

    self._traced = _Traced(loop, specs, device)

  def __call__(self, number: int, sent: steps.Values, server: steps.Values) -> None:
    totals = self._traced(number, {**server, **sent})
    server.update(zip(self._totals, totals, strict=True))


class Group:
  """How the clients of a pass run in groups; any number of threads may call it at the same time.

  Attributes:
    current: The pass.
    client_reads: The slots that the client steps read and each client has.
    reads: The type of each slot that the client steps read.
    results: The type of each slot that a client sends or keeps.
    sum_reads: The type of each slot that the aggregations read.
  """

  def __init__(self, current: passes.Pass, client_slots: Iterable[int], device: str):
    self.current = current
    self._device = device
    read, written = _specs(current.client_steps, device)
    self.reads = {slot: spec for slot, spec in read.items() if slot not in written}
    self.client_reads = self.reads.keys() & set(client_slots)
    self.results: dict[int, Any] = {
      slot: written.get(slot) for slot in {*current.sends, *current.keeps}
    }
    self.sum_reads = _sum_reads(current, device)
    self._lock = threading.Lock()
    self._free: list[_ClientLoop] = []
    self._sums: _Sums | None = None
    self._seconds = math.inf

  @property
  def is_possible(self) -> bool:
    """Whether all is of sizes that are known, and so small that a group pays."""
    client_reads = [self.reads[slot] for slot in self.client_reads]
    return (
      all(_is_array(spec) or spec.dtype == tf.variant for spec in client_reads)
      and all(map(_is_array, self.results.values()))
      and all(map(_is_array, self.sum_reads.values()))
      and _num_bytes(self.results.values()) <= _MAX_CLIENT_BYTES
    )

  def size(self, num_left: int, num_threads: int) -> int:
    """Returns how many clients the next group has.

    Args:
      num_left: How many clients wait.
      num_threads: How many groups run at the same time; towards the end all get something to do.
    """
    num_bytes = max(1, _num_bytes(self.results.values()))
    by_time = _MAX_GROUP if not self._seconds else _GROUP_SECONDS / self._seconds
    share = math.ceil(num_left / (2 * num_threads))
    return max(1, int(min(by_time, _MAX_GROUP_BYTES // num_bytes, _MAX_GROUP, share)))

  def run_clients(
    self, clients: range, kept: Sequence[steps.Values], server: steps.Values
  ) -> steps.Values:
    """Runs some clients; returns what they send, stacked, and updates what they keep."""
    start = time.perf_counter()
    stacked = {slot: _stack([kept[i][slot] for i in clients]) for slot in self.client_reads}
    with self._lock:
      loop = self._free.pop() if self._free else None
    if loop is None:
      loop = _ClientLoop(self, self._device)
    try:
      results = loop(clients, {**server, **stacked})
    finally:
      self._free.append(loop)
    for slot in self.current.keeps:
      for i, leaf in zip(clients, tf.unstack(results[slot], len(clients)), strict=True):
        kept[i][slot] = leaf
    self._seconds = (time.perf_counter() - start) / len(clients)
    return {slot: results[slot] for slot in self.current.sends}

  def add(self, number: int, sent: steps.Values, server: steps.Values) -> None:
    """Adds what `run_clients` returned for that many clients to the sums, in client order."""
    if not self.current.aggregations:
      return
    if self._sums is None:
      self._sums = _Sums(self, self._device)
    self._sums(number, sent, server)


def _sum_reads(current: passes.Pass, device: str) -> dict[int, Any]:
  """Returns the type of each slot that the aggregations of a pass read."""
  found: dict[int, Any] = {}
  for aggregation in current.aggregations:
    read, _ = _specs(aggregation.accumulate.steps, device)
    outside = [*aggregation.writes, *aggregation.client_values]
    parameters = zip(outside, aggregation.accumulate.parameters, strict=True)
    found.update((slot, read.get(parameter)) for slot, parameter in parameters)
    found.update((slot, read.get(slot)) for slot in aggregation.accumulate.captures)
  return found


def make_group(
  current: passes.Pass, client_slots: Iterable[int], devices: Sequence[str]
) -> Group | None:
  """Returns how the clients of a pass run in groups, or None if they run one by one.

  They run one by one if a client sends much, if not all its steps are TensorFlow graphs with
  results of known shapes, and on GPUs: a client there has its values in the GPU's memory.

  Args:
    current: The pass.
    client_slots: The slots of which each client has a value before the pass.
    devices: The devices of the clients.
  """
  if [values.device_suffix(device) for device in devices] != [values.device_suffix(values.HOST)]:
    return None
  if not current.client_steps or not _is_plain(current.client_steps):
    return None
  if not all(_is_plain(aggregation.accumulate.steps) for aggregation in current.aggregations):
    return None
  group = Group(current, client_slots, devices[0])
  return group if group.is_possible else None
