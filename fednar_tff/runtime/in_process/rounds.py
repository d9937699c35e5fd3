# SPDX-License-Identifier: Apache-2.0
"""One run of a planned computation: arguments in, passes over the clients, results out."""

import collections
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.runtime.in_process import client_pool, groups, passes, steps, values


def num_clients(argument, type_spec: tff.Type) -> int | None:
  """Finds the number of clients in an argument; `None` if it does not tell."""
  if isinstance(type_spec, tff.FederatedType):
    if type_spec.all_equal:
      return None
    if not isinstance(argument, (list, tuple)):
      raise TypeError(
        f'An argument of type {type_spec} must be a list with a value for each client, '
        f'found {type(argument).__name__}.'
      )
    return len(argument)
  if not isinstance(type_spec, tff.StructType):
    return None
  found = None
  elements = values.elements_of(argument, type_spec)
  for element, element_type in zip(elements, type_spec, strict=True):
    number = num_clients(element, element_type)
    if number is not None and found is not None and number != found:
      raise ValueError(
        f'Conflicting cardinalities: all arguments must have as many clients, '
        f'found {found} and {number}.'
      )
    found = found if number is None else number
  return found


class Round:
  """One run of a plan."""

  def __init__(self, plan: passes.Plan, pool: client_pool.ClientPool, num_clients: int):
    self.plan = plan
    self._pool = pool
    self.num_clients = num_clients
    self._server_device = pool.devices[0]
    self.server: steps.Values = {}
    # By client: the values that outlive its turn.
    self.kept: list[steps.Values] = [{} for _ in range(num_clients)]

  def ingest(self, argument) -> None:
    self._ingest(argument, self.plan.parameter, self.plan.parameter_type)

  def _ingest(self, argument, tree, type_spec):
    if isinstance(type_spec, tff.FederatedType):
      slots = steps.flatten(tree)
      if type_spec.all_equal:
        self.server.update(zip(slots, values.flatten(argument, type_spec.member), strict=True))
        return
      for kept, value in zip(self.kept, argument, strict=True):
        # Arrays as they are until the client's turn: all states at once may not fit into a GPU.
        leaves = values.flatten(value, type_spec.member, keep_arrays=True)
        kept.update(zip(slots, leaves, strict=True))
    elif isinstance(type_spec, tff.StructType) and tff.types.contains(
      type_spec, lambda t: isinstance(t, tff.FederatedType)
    ):
      for branch, element, element_type in zip(
        tree, values.elements_of(argument, type_spec), type_spec, strict=True
      ):
        self._ingest(element, branch, element_type)
    else:
      self.server.update(zip(steps.flatten(tree), values.flatten(argument, type_spec), strict=True))

  def run(self) -> None:
    for current in self.plan.passes:
      for step in current.server_steps:
        step.run(self.server, self._server_device)
      self.run_clients(current)

  def run_clients(self, current: passes.Pass) -> None:
    """Runs the clients of a pass, and aggregates what they send, in client order."""
    for aggregation in current.aggregations:
      aggregation.start(self.server)
    group = self._group_of(current)
    clients: Iterator[Any] = (
      self._sent_by_groups(group) if group else self._sent_by_clients(current)
    )
    for sent in clients:
      try:
        if group:
          number, leaves = sent
          group.add(number, leaves, self.server)
          continue
        for aggregation in current.aggregations:
          aggregation.add(sent, self.server, self._server_device)
      except tf.errors.CancelledError:
        # A client that fails cancels all that runs with it. Those that follow bring its error.
        collections.deque(clients, maxlen=0)
        raise

  def _group_of(self, current: passes.Pass) -> groups.Group | None:
    """Returns how the clients of a pass run in groups, or None if they run one by one."""
    if current.group is None and self.num_clients:
      made = groups.make_group(current, self.kept[0].keys(), self._pool.devices)
      current.group = made or False
    return current.group or None

  def _sent_by_groups(self, group: groups.Group):
    """Yields the number of clients of each group and what they send, in client order."""
    server = dict(self.server)

    def run_group(clients, device):
      return clients, device, group.run_clients(clients, self.kept, server)

    def size(num_left):
      return group.size(num_left, self._pool.num_threads)

    for clients, device, sent in self._pool.map_groups(run_group, self.num_clients, size):
      self._pool.clients_by_device[device] += len(clients)
      yield len(clients), sent
      del sent  # The loop must not hold on to what the caller drops.

  def _sent_by_clients(self, current: passes.Pass):
    """Yields what each client sends to the server, in client order."""

    def run_client(index, device):
      slots = {**self.server, **broadcast[device], **self.kept[index]}
      for step in current.client_steps:
        step.run(slots, device)
      # In the host's memory: the states of all clients may not fit into a GPU.
      self.kept[index].update(
        (slot, values.on_device(slots[slot], values.HOST)) for slot in current.keeps
      )
      return {slot: slots[slot] for slot in current.sends}, current.ran_on(slots, device)

    if current.client_steps:
      broadcast = self._broadcast(current)
      for sent, device in self._pool.map(run_client, self.num_clients):
        self._pool.clients_by_device[device] += 1
        yield sent
        del sent  # The loop must not hold on to what the caller drops.
    elif current.aggregations:
      yield from self.kept

  def _broadcast(self, current: passes.Pass):
    """Returns the server's values that clients read, on each device, once for all its clients.

    A loop carries its variables where they came from: a client on another device would copy them in
    every step.
    """
    read = self.server.keys() & current.reads
    return {
      device: {slot: values.on_device(self.server[slot], device) for slot in read}
      for device in self._pool.devices[: self.num_clients]
    }

  def result(self, type_spec: tff.Type):
    return self._result(self.plan.result, type_spec)

  def _result(self, tree, type_spec):
    if isinstance(type_spec, tff.FederatedType):
      slots = steps.flatten(tree)
      if type_spec.all_equal:
        return values.to_python([self.server[slot] for slot in slots], type_spec.member)
      return [
        values.to_python(
          [kept[slot] if slot in kept else self.server[slot] for slot in slots], type_spec.member
        )
        for kept in self.kept
      ]
    if isinstance(type_spec, tff.StructType) and tree:
      elements = tff.structure.Struct(
        [
          (name, self._result(branch, element_type))
          for branch, (name, element_type) in zip(
            tree, tff.structure.iter_elements(type_spec), strict=True
          )
        ]
      )
      return tff.types.type_to_py_container(elements, type_spec)
    return values.to_python([self.server[slot] for slot in steps.flatten(tree)], type_spec)
