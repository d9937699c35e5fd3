"""Turns a compiled TFF computation into a list of steps, once, so that a round only runs them.

A TFF value is a tree; here each of its leaves (a tensor or a dataset) is a numbered slot, and structures exist only
while the plan is made. A step reads slots and writes slots. Values at the server are written once a round, values at
the clients once for each client. An aggregation ends a *pass* over the clients: all client steps and all
aggregations that need nothing but the passes before it share it, so a client's values live no longer than its turn,
except those that a later pass or the result asks for.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterable

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.runtime import graph_function, values

_blocks = tff.framework

Values = dict[int, object]


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
    """Returns the full name of the device that the step has run on, or None if its results do not tell."""
    written = (slots[slot] for slot in self.writes)
    return next((x.device for x in written if tf.is_tensor(x) and x.dtype.is_floating), None)


@dataclasses.dataclass
class _Constant(Step):
  value: object

  def run(self, slots, device):
    del device
    slots[self.writes[0]] = self.value

  def ran_on(self, slots):
    return None


@dataclasses.dataclass
class _Call(Step):
  """Calls a TensorFlow graph."""

  function: graph_function.GraphFunction

  def run(self, slots, device):
    with tf.device(device):  # Arrays become tensors in the memory of the device that reads them.
      arguments = [values.to_tensor(slots[slot]) for slot in self.reads]
    slots.update(zip(self.writes, self.function(arguments, device), strict=True))

  def ran_on(self, slots):
    return values.HOST if self.function.reduces_on_host else super().ran_on(slots)


@dataclasses.dataclass
class Function:
  """The steps of a function that is called again and again: an accumulator, or the body of a sequence operator."""

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

  def start(self, slots: Values) -> None:
    slots.update(zip(self.writes, [slots[slot] for slot in self.zero], strict=True))

  def add(self, client: Values, slots: Values, device: str) -> None:
    arguments = [slots[slot] for slot in self.writes]
    arguments += [client[slot] if slot in client else slots[slot] for slot in self.client_values]
    slots.update(zip(self.writes, self.accumulate(arguments, slots, device), strict=True))


@dataclasses.dataclass
class _SequenceReduce(Step):
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
class _SequenceSum(Step):
  sequence: int
  element_type: tff.Type

  def run(self, slots, device):
    total = values.zeros(self.element_type)
    for element in values.elements(slots[self.sequence], self.element_type):
      total = [x + y for x, y in zip(total, element, strict=True)]
    slots.update(zip(self.writes, total, strict=True))


@dataclasses.dataclass
class _SequenceMap(Step):
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
class _Select(Step):
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


@dataclasses.dataclass
class Pass:
  """What happens between two synchronisations of all clients."""

  server_steps: list[Step]
  client_steps: list[Step]
  aggregations: list[Aggregation]
  # The slots of a client that outlive its turn, and those that only the aggregations need.
  keeps: list[int]
  sends: list[int]

  @property
  def reads(self) -> set[int]:
    """The slots that the client steps read."""
    return {slot for step in self.client_steps for slot in step.reads}

  def ran_on(self, slots: Values, device: str) -> str:
    """Returns where a client that was sent to a device has run: there, unless the results of a step are elsewhere."""
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


@dataclasses.dataclass(frozen=True)
class _Closure:
  """A lambda, with the names that were visible where it stands."""

  block: tff.framework.Lambda
  scope: collections.ChainMap


class _Tracer:
  """Walks the building blocks of a computation and writes down the steps."""

  def __init__(self):
    self.steps = []
    self._num_slots = 0
    self._functions = {}
    self._client_slots = set()

  def new_slot(self, on_clients: bool) -> int:
    slot = self._num_slots
    self._num_slots += 1
    if on_clients:
      self._client_slots.add(slot)
    return slot

  def is_on_clients(self, slot: int) -> bool:
    return slot in self._client_slots

  def new_tree(self, type_spec: tff.Type, on_clients: bool = False):
    """Makes a slot for each leaf of a type."""
    if isinstance(type_spec, tff.FederatedType):
      at_each_client = type_spec.placement is tff.CLIENTS and not type_spec.all_equal
      return self.new_tree(type_spec.member, at_each_client)
    if isinstance(type_spec, tff.StructType):
      return tuple(self.new_tree(element, on_clients) for element in type_spec)
    if isinstance(type_spec, (tff.TensorType, tff.SequenceType)):
      return self.new_slot(on_clients)
    raise NotImplementedError(
      f'The in-process runtime has no values of type {type_spec}; it has tensors, sequences and structures.'
    )

  def trace(self, block, scope: collections.ChainMap, on_clients: bool):
    """Returns the tree of slots, or the function, that a building block stands for."""
    if isinstance(block, _blocks.Reference):
      return scope[block.name]
    if isinstance(block, _blocks.Call):
      function = self.trace(block.function, scope, on_clients)
      argument = None
      if block.argument is not None:
        argument = self.trace(block.argument, scope, on_clients)
      return self.apply(function, argument, on_clients)
    if isinstance(block, _blocks.Selection):
      source = self.trace(block.source, scope, on_clients)
      return source[block.as_index()]
    if isinstance(block, _blocks.Struct):
      return tuple(self.trace(element, scope, on_clients) for element in block)
    if isinstance(block, _blocks.Block):
      scope = scope.new_child()
      for name, value in block.locals:
        scope[name] = self.trace(value, scope, on_clients)
      return self.trace(block.result, scope, on_clients)
    if isinstance(block, _blocks.Lambda):
      return _Closure(block, scope)
    if isinstance(block, _blocks.Literal):
      slot = self.new_slot(on_clients)
      self.steps.append(
        _Constant([], [slot], on_clients, values.from_python(block.value, block.type_signature))
      )
      return slot
    if isinstance(block, (_blocks.CompiledComputation, _blocks.Intrinsic)):
      return block
    raise NotImplementedError(
      f'The in-process runtime cannot run a {type(block).__name__}: {block.compact_representation()}'
    )

  def apply(self, function, argument, on_clients: bool):
    """Returns what a function gives for a tree of slots."""
    if isinstance(function, _Closure):
      scope = function.scope.new_child()
      if function.block.parameter_name is not None:
        scope[function.block.parameter_name] = argument
      return self.trace(function.block.result, scope, on_clients)
    if isinstance(function, _blocks.CompiledComputation):
      return self._call_graph(function, argument, on_clients)
    if isinstance(function, _blocks.Intrinsic):
      return self._apply_intrinsic(function, argument, on_clients)
    raise NotImplementedError(f'The in-process runtime cannot call {function!r}.')

  def _call_graph(self, block, argument, on_clients):
    kind = block.proto.WhichOneof('computation')
    if kind != 'tensorflow':
      raise NotImplementedError(
        f'The in-process runtime cannot run a computation in {kind}; it runs TensorFlow.'
      )
    proto = block.proto.tensorflow
    key = proto.SerializeToString(deterministic=True)
    if key not in self._functions:
      self._functions[key] = graph_function.GraphFunction(proto)
    result = self.new_tree(block.type_signature.result, on_clients)
    reads = [] if argument is None else flatten(argument)
    self.steps.append(_Call(reads, flatten(result), on_clients, self._functions[key]))
    return result

  def trace_function(self, function, parameter, on_clients: bool) -> Function:
    """Writes the steps of a function into a list of their own."""
    with self._separate_steps() as steps:
      result = self.apply(function, parameter, on_clients)
    return Function(flatten(parameter), steps, flatten(result))

  @contextlib.contextmanager
  def _separate_steps(self):
    outer, self.steps = self.steps, []
    try:
      yield self.steps
    finally:
      self.steps = outer

  def _copy_tree(self, tree, on_clients):
    return map_tree(lambda _: self.new_slot(on_clients), tree)

  def _apply_intrinsic(self, intrinsic, argument, on_clients):
    uri = intrinsic.uri
    if uri in (
      'federated_broadcast',
      'federated_value_at_clients',
      'federated_value_at_server',
      'federated_zip_at_clients',
      'federated_zip_at_server',
    ):
      return argument  # Placement is a matter of slots: nothing is to be done.
    if uri in ('federated_apply', 'federated_map_all_equal'):
      return self.apply(*argument, on_clients=False)
    if uri == 'federated_map':
      return self.apply(*argument, on_clients=True)
    if uri in ('federated_eval_at_clients', 'federated_eval_at_server'):
      return self.apply(argument, None, on_clients=uri == 'federated_eval_at_clients')
    if uri == 'federated_aggregate':
      return self._aggregate(*argument)
    if uri == 'federated_select':
      return self._select(intrinsic, *argument)
    if uri == 'sequence_reduce':
      return self._sequence_reduce(intrinsic, *argument, on_clients)
    if uri == 'sequence_map':
      return self._sequence_map(intrinsic, *argument, on_clients)
    if uri == 'sequence_sum':
      result = self.new_tree(intrinsic.type_signature.result, on_clients)
      element_type = intrinsic.type_signature.parameter.element
      self.steps.append(
        _SequenceSum([argument], flatten(result), on_clients, argument, element_type)
      )
      return result
    if 'secure' in uri:
      raise NotImplementedError(
        f'The in-process runtime has no {uri}: nothing is secure in one process. '
        'simulate_secure_sums_in_the_clear=True computes the same result in the clear.'
      )
    raise NotImplementedError(f'The in-process runtime has no intrinsic {uri}.')

  def _aggregate(self, client_values, zero, accumulate, merge, report):
    del merge  # One process has one accumulator.
    parameter = (self._copy_tree(zero, False), self._copy_tree(client_values, False))
    function = self.trace_function(accumulate, parameter, on_clients=False)
    total = self._copy_tree(zero, False)
    reads = [*flatten(client_values), *flatten(zero), *function.captures]
    self.steps.append(
      Aggregation(reads, flatten(total), False, flatten(client_values), flatten(zero), function)
    )
    return self.apply(report, total, on_clients=False)

  def _select(self, intrinsic, keys, max_key, server_value, select):
    key = self.new_slot(on_clients=True)
    with self._separate_steps() as steps:
      result = self.apply(select, (server_value, key), on_clients=True)
    function = Function([key], steps, flatten(result))
    slices = self.new_slot(on_clients=True)
    self.steps.append(
      _Select(
        [keys, max_key, *function.captures],
        [slices],
        True,
        keys,
        max_key,
        intrinsic.type_signature.result.member.element,
        function,
      )
    )
    return slices

  def _sequence_reduce(self, intrinsic, sequence, zero, accumulate, on_clients):
    element_type = intrinsic.type_signature.parameter[0].element
    parameter = (self._copy_tree(zero, on_clients), self.new_tree(element_type, on_clients))
    function = self.trace_function(accumulate, parameter, on_clients)
    result = self._copy_tree(zero, on_clients)
    reads = [sequence, *flatten(zero), *function.captures]
    self.steps.append(
      _SequenceReduce(
        reads, flatten(result), on_clients, sequence, element_type, flatten(zero), function
      )
    )
    return result

  def _sequence_map(self, intrinsic, mapped, sequence, on_clients):
    element_type = intrinsic.type_signature.parameter[1].element
    function = self.trace_function(mapped, self.new_tree(element_type, on_clients), on_clients)
    result = self.new_slot(on_clients)
    self.steps.append(
      _SequenceMap(
        [sequence, *function.captures],
        [result],
        on_clients,
        sequence,
        element_type,
        intrinsic.type_signature.result.element,
        function,
      )
    )
    return result


def _live_steps(steps: list[Step], results: list[int]) -> list[Step]:
  """Drops the steps that nothing depends on."""
  needed = set(results)
  live = []
  for step in reversed(steps):
    if needed.intersection(step.writes):
      needed.update(step.reads)
      live.append(step)
  return live[::-1]


def _split_into_passes(steps: list[Step], result: list[int], is_on_clients) -> list[Pass]:
  """Puts each step into the first pass in which all that it reads is known."""
  pass_of_slot = collections.defaultdict(int)
  pass_of_step = []
  for step in steps:
    number = max((pass_of_slot[slot] for slot in step.reads), default=0)
    pass_of_step.append(number)
    known_from = number + 1 if isinstance(step, Aggregation) else number
    pass_of_slot.update((slot, known_from) for slot in step.writes)
  passes = []
  last = max(pass_of_slot.values(), default=0)
  read_later = {slot for slot in result if is_on_clients(slot)}
  for number in range(last, -1, -1):
    here = [step for step, p in zip(steps, pass_of_step, strict=True) if p == number]
    aggregations = [step for step in here if isinstance(step, Aggregation)]
    client_steps = [step for step in here if step.on_clients]
    written = {slot for step in client_steps for slot in step.writes}
    sends = {slot for step in aggregations for slot in step.client_values if is_on_clients(slot)}
    passes.append(
      Pass(
        [step for step in here if not step.on_clients and not isinstance(step, Aggregation)],
        client_steps,
        aggregations,
        sorted(written & read_later),
        sorted(sends),
      )
    )
    read_later |= {slot for step in client_steps + aggregations for slot in step.reads}
  return passes[::-1]


def make_plan(block: tff.framework.ComputationBuildingBlock) -> Plan:
  """Makes the plan of a computation.

  Args:
    block: A function in which `tff.tensorflow.replace_intrinsics_with_bodies` has left only the basic intrinsics.

  Returns:
    The plan.

  Raises:
    NotImplementedError: If the computation contains something that this runtime cannot run; the message names it.
  """
  tracer = _Tracer()
  parameter_type = block.type_signature.parameter
  parameter = None if parameter_type is None else tracer.new_tree(parameter_type)
  function = tracer.trace(block, collections.ChainMap(), False)
  result = tracer.apply(function, parameter, on_clients=False)
  if not isinstance(result, (int, tuple)):
    raise NotImplementedError('The in-process runtime cannot return a function.')
  slots = flatten(result)
  steps = _live_steps(tracer.steps, slots)
  return Plan(
    parameter,
    parameter_type,
    _split_into_passes(steps, slots, tracer.is_on_clients),
    result,
  )
