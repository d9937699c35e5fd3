# SPDX-License-Identifier: Apache-2.0
"""Walks the building blocks of a compiled TFF computation and writes down its steps."""

import collections
import contextlib
import dataclasses

import tensorflow_federated as tff

from fednar_tff.runtime.in_process import graph_function, steps, values

_blocks = tff.framework


@dataclasses.dataclass(frozen=True)
class _Closure:
  """A lambda, with the names that were visible where it stands."""

  block: tff.framework.Lambda
  scope: collections.ChainMap


class Tracer:
  """Walks the building blocks of a computation and writes down the steps."""

  def __init__(self, with_merge: bool = False):
    """Starts with no steps.

    Args:
      with_merge: Whether aggregations can merge sums over some of the clients.
    """
    self.steps: list[steps.Step] = []
    self._with_merge = with_merge
    self._num_slots = 0
    self._functions: dict[bytes, graph_function.GraphFunction] = {}
    self._client_slots: set[int] = set()

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
      f'The in-process runtime has no values of type {type_spec}; '
      'it has tensors, sequences and structures.'
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
        steps.Constant(
          [], [slot], on_clients, values.from_python(block.value, block.type_signature)
        )
      )
      return slot
    if isinstance(block, (_blocks.CompiledComputation, _blocks.Intrinsic)):
      return block
    raise NotImplementedError(
      f'The in-process runtime cannot run a {type(block).__name__}: '
      f'{block.compact_representation()}'
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
    reads = [] if argument is None else steps.flatten(argument)
    self.steps.append(steps.Call(reads, steps.flatten(result), on_clients, self._functions[key]))
    return result

  def trace_function(self, function, parameter, on_clients: bool) -> steps.Function:
    """Writes the steps of a function into a list of their own."""
    with self._separate_steps() as inner:
      result = self.apply(function, parameter, on_clients)
    return steps.Function(steps.flatten(parameter), inner, steps.flatten(result))

  @contextlib.contextmanager
  def _separate_steps(self):
    outer, self.steps = self.steps, []
    try:
      yield self.steps
    finally:
      self.steps = outer

  def _copy_tree(self, tree, on_clients):
    return steps.map_tree(lambda _: self.new_slot(on_clients), tree)

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
      function, value = argument
      return self.apply(function, value, on_clients=False)
    if uri == 'federated_map':
      function, value = argument
      return self.apply(function, value, on_clients=True)
    if uri in ('federated_eval_at_clients', 'federated_eval_at_server'):
      return self.apply(argument, None, on_clients=uri == 'federated_eval_at_clients')
    if uri == 'federated_aggregate':
      return self._aggregate(*argument)
    if uri == 'federated_select':
      return self._select(intrinsic, *argument)
    if uri == 'sequence_reduce':
      sequence, zero, accumulate = argument
      return self._sequence_reduce(intrinsic, sequence, zero, accumulate, on_clients)
    if uri == 'sequence_map':
      mapped, sequence = argument
      return self._sequence_map(intrinsic, mapped, sequence, on_clients)
    if uri == 'sequence_sum':
      result = self.new_tree(intrinsic.type_signature.result, on_clients)
      element_type = intrinsic.type_signature.parameter.element
      self.steps.append(
        steps.SequenceSum([argument], steps.flatten(result), on_clients, argument, element_type)
      )
      return result
    if 'secure' in uri:
      raise NotImplementedError(
        f'The in-process runtime has no {uri}: nothing is secure in one process. '
        'simulate_secure_sums_in_the_clear=True computes the same result in the clear.'
      )
    raise NotImplementedError(f'The in-process runtime has no intrinsic {uri}.')

  def _aggregate(self, client_values, zero, accumulate, merge, report):
    parameter = (self._copy_tree(zero, False), self._copy_tree(client_values, False))
    function = self.trace_function(accumulate, parameter, on_clients=False)
    total = self._copy_tree(zero, False)
    reads = [*steps.flatten(client_values), *steps.flatten(zero), *function.captures]
    merging = None  # One process has one sum.
    if self._with_merge:
      parameter = (self._copy_tree(zero, False), self._copy_tree(zero, False))
      merging = self.trace_function(merge, parameter, on_clients=False)
      reads += merging.captures
    self.steps.append(
      steps.Aggregation(
        reads,
        steps.flatten(total),
        False,
        steps.flatten(client_values),
        steps.flatten(zero),
        function,
        merging,
      )
    )
    return self.apply(report, total, on_clients=False)

  def _select(self, intrinsic, keys, max_key, server_value, select):
    key = self.new_slot(on_clients=True)
    with self._separate_steps() as inner:
      result = self.apply(select, (server_value, key), on_clients=True)
    function = steps.Function([key], inner, steps.flatten(result))
    slices = self.new_slot(on_clients=True)
    self.steps.append(
      steps.Select(
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
    reads = [sequence, *steps.flatten(zero), *function.captures]
    self.steps.append(
      steps.SequenceReduce(
        reads,
        steps.flatten(result),
        on_clients,
        sequence,
        element_type,
        steps.flatten(zero),
        function,
      )
    )
    return result

  def _sequence_map(self, intrinsic, mapped, sequence, on_clients):
    element_type = intrinsic.type_signature.parameter[1].element
    function = self.trace_function(mapped, self.new_tree(element_type, on_clients), on_clients)
    result = self.new_slot(on_clients)
    self.steps.append(
      steps.SequenceMap(
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
