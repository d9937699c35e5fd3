# SPDX-License-Identifier: Apache-2.0
"""Plans a compiled TFF computation, once, as passes over the clients: a round only runs them.

Values at the server are written once a round, values at the clients once for each client. An
aggregation ends a *pass* over the clients. All client steps and all aggregations that need nothing
but the passes before it share it. So a client's values live no longer than its turn, except those
that a later pass or the result asks for.
"""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from fednar_tff.runtime.in_process import steps, values
from fednar_tff.runtime.in_process import tracer as tracing


@dataclasses.dataclass
class Pass:
  """What happens between two synchronisations of all clients."""

  server_steps: list[steps.Step]
  client_steps: list[steps.Step]
  aggregations: list[steps.Aggregation]
  # The slots of a client that outlive its turn, and those that only the aggregations need.
  keeps: list[int]
  sends: list[int]
  # How its clients run in groups, or False if they do not. The first round finds out.
  group: Any = None

  @property
  def reads(self) -> set[int]:
    """The slots that the client steps read."""
    return {slot for step in self.client_steps for slot in step.reads}

  @property
  def needs(self) -> set[int]:
    """The slots that a process needs to run some of the clients and to sum up what they send."""
    return self.reads | {slot for step in self.aggregations for slot in step.reads}

  def ran_on(self, slots: steps.Values, device: str) -> str:
    """Returns where a client has run: on its device, unless a step's results are elsewhere."""
    for step in self.client_steps:
      found = step.ran_on(slots)
      if found is not None and not found.endswith(values.device_suffix(device)):
        return values.device_suffix(found)[1:]
    return device


@dataclasses.dataclass
class Plan:
  """A computation that is ready to run."""

  parameter: object
  parameter_type: tff.Type | None
  passes: list[Pass]
  result: object

  def zero_steps(self, current: Pass) -> list[steps.Step]:
    """Lists the server's steps that make nothing but the zeros of a pass, out of nothing.

    Zeros are as large as what is summed up. A process makes them faster than it gets them sent.
    """
    zeros = {slot for step in current.aggregations for slot in step.zero} - current.reads
    for step in current.aggregations:
      zeros.difference_update(step.client_values, step.accumulate.captures)
    server_steps = [step for one in self.passes for step in one.server_steps]
    return [step for step in server_steps if not step.reads and zeros.issuperset(step.writes)]


def _drop_dead(all_steps: list[steps.Step], results: list[int]) -> list[steps.Step]:
  """Drops the steps that no result depends on."""
  needed = set(results)
  live = []
  for step in reversed(all_steps):
    if needed.intersection(step.writes):
      needed.update(step.reads)
      live.append(step)
  return live[::-1]


def _split(
  live: list[steps.Step], result: list[int], is_on_clients: Callable[[int], bool]
) -> list[Pass]:
  """Puts each step into the first pass in which all that it reads is known."""
  pass_of_slot: dict[int, int] = collections.defaultdict(int)
  pass_of_step = []
  for step in live:
    number = max((pass_of_slot[slot] for slot in step.reads), default=0)
    pass_of_step.append(number)
    known_from = number + 1 if isinstance(step, steps.Aggregation) else number
    pass_of_slot.update((slot, known_from) for slot in step.writes)
  passes = []
  last = max(pass_of_slot.values(), default=0)
  read_later = {slot for slot in result if is_on_clients(slot)}
  for number in range(last, -1, -1):
    here = [step for step, p in zip(live, pass_of_step, strict=True) if p == number]
    aggregations = [step for step in here if isinstance(step, steps.Aggregation)]
    client_steps = [step for step in here if step.on_clients]
    written = {slot for step in client_steps for slot in step.writes}
    sends = {slot for step in aggregations for slot in step.client_values if is_on_clients(slot)}
    passes.append(
      Pass(
        [step for step in here if not step.on_clients and not isinstance(step, steps.Aggregation)],
        client_steps,
        aggregations,
        sorted(written & read_later),
        sorted(sends),
      )
    )
    read_later |= {slot for step in client_steps + aggregations for slot in step.reads}
  return passes[::-1]


def make_plan(block: tff.framework.ComputationBuildingBlock, *, with_merge: bool = False) -> Plan:
  """Makes the plan of a computation.

  Args:
    block: A function in which `tff.tensorflow.replace_intrinsics_with_bodies` has left only the
      basic intrinsics.
    with_merge: Whether the plan is for several processes, whose sums are merged.

  Returns:
    The plan.

  Raises:
    NotImplementedError: If the computation contains something that this runtime cannot run; the
      message names it.
  """
  tracer = tracing.Tracer(with_merge)
  parameter_type = block.type_signature.parameter
  parameter = None if parameter_type is None else tracer.new_tree(parameter_type)
  function = tracer.trace(block, collections.ChainMap(), False)
  result = tracer.apply(function, parameter, on_clients=False)
  if not isinstance(result, (int, tuple)):
    raise NotImplementedError('The in-process runtime cannot return a function.')
  slots = steps.flatten(result)
  live = _drop_dead(tracer.steps, slots)
  return Plan(parameter, parameter_type, _split(live, slots, tracer.is_on_clients), result)
