# SPDX-License-Identifier: Apache-2.0
"""TensorFlow graphs of TFF computations, imported once and called like functions."""

import collections
import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fednar_tff.runtime.in_process import call_options, reduce_loops

# No number is used twice in a process: TensorFlow knows variables and functions by their names.
_copy_numbers = itertools.count()
# What copies leave behind: the attributes of their variables, and the device.
_abandoned_variables: collections.deque[tuple[list[dict], str]] = collections.deque()
# Temporary variables of equal name are one and the same, in whatever graphs of the process.
_temporary_variables = threading.Lock()


def flatten_binding(binding) -> list[str]:
  """Lists the tensor names in a binding of TFF, in the order of the type's leaves."""
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    return [binding.tensor.tensor_name]
  if kind == 'sequence':
    return [binding.sequence.variant_tensor_name]
  return [name for element in binding.struct.element for name in flatten_binding(element)]


def _all_nodes(graph_def: tf.compat.v1.GraphDef):
  yield from graph_def.node
  for function in graph_def.library.function:
    yield from function.node_def


def _rename_functions(graph_def: tf.compat.v1.GraphDef, suffix: str) -> None:
  """Gives the library functions names of their own: all graphs of a process share one library."""
  names = {
    function.signature.name: function.signature.name + suffix
    for function in graph_def.library.function
  }
  for function in graph_def.library.function:
    function.signature.name = names[function.signature.name]
  for gradient in graph_def.library.gradient:
    gradient.function_name = names.get(gradient.function_name, gradient.function_name)
    gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
  for node in _all_nodes(graph_def):
    node.op = names.get(node.op, node.op)
    for attr in node.attr.values():
      for func in (attr.func, *attr.list.func):
        if func.name in names:
          func.name = names[func.name]


def _rename_resources(graph_def: tf.compat.v1.GraphDef, suffix: str) -> None:
  """Gives variables and tables names of their own: those of equal name are one and the same."""
  for node in _all_nodes(graph_def):
    if 'shared_name' in node.attr:
      name = node.attr['shared_name'].s or node.name.encode()
      node.attr['shared_name'].s = name + suffix.encode()


def _remove_temporary_variables(graph_def: tf.compat.v1.GraphDef) -> None:
  """Keeps TensorFlow from making temporary variables (see `call_options`) of sums."""
  for node in _all_nodes(graph_def):
    if node.op == 'AccumulateNV2':
      node.op = 'AddN'
      del node.attr['shape']
    if 'config_proto' in node.attr:
      config = node.attr['config_proto']
      config.s = call_options.without_memory_optimizer(config.s).SerializeToString()


def _needed(operation: tf.Operation, feeds: list[tf.Tensor]) -> list[int]:
  """Lists which of the feeds the operation depends on: a variable may start as an argument."""
  before = {operation}
  stack = [operation]
  while stack:
    current = stack.pop()
    new = {*(tensor.op for tensor in current.inputs), *current.control_inputs} - before
    before |= new
    stack.extend(new)
  return [i for i, feed in enumerate(feeds) if feed.op in before]


def _destroy_abandoned_variables() -> None:
  """Frees the variables of copies that nobody refers to any more.

  A copy cannot do it itself when it is collected: that can happen anywhere, also while TensorFlow
  builds a graph and holds its lock, and would add to that graph, or wait for the lock for ever.
  """
  while _abandoned_variables:
    try:
      variables, device = _abandoned_variables.popleft()
    except IndexError:
      return  # Another thread was faster.
    with tf.init_scope(), tf.device(device):
      for attributes in variables:
        handle = tf.raw_ops.VarHandleOp(**attributes)
        tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


class _Copy:
  """One import of a graph, with variables and tables that no other copy sees."""

  def __init__(self, tensorflow_proto, device: str = ''):
    graph_def = tf.compat.v1.GraphDef.FromString(tensorflow_proto.graph_def.value)
    reduce_loops.replace_reduces(graph_def)
    suffix = f'_fednar_{next(_copy_numbers)}'
    _rename_functions(graph_def, suffix)
    _rename_resources(graph_def, suffix)
    _remove_temporary_variables(graph_def)
    imported = tf.compat.v1.wrap_function(
      lambda: tf.graph_util.import_graph_def(graph_def, name=''), []
    )
    graph = imported.graph
    feeds = flatten_binding(tensorflow_proto.parameter)
    self._extra_arguments = []
    if tensorflow_proto.session_token_tensor_name:
      feeds.append(tensorflow_proto.session_token_tensor_name)
      self._extra_arguments.append(tf.constant(suffix))
    fetches = [graph.get_tensor_by_name(name) for name in flatten_binding(tensorflow_proto.result)]
    feeds = [graph.get_tensor_by_name(name) for name in feeds]
    # With a signature, TensorFlow does not first try, and fail, to match an empty one: 8 times
    # faster.
    signature = tuple(
      tf.TensorSpec.from_tensor(feed, name=f'argument_{i}') for i, feed in enumerate(feeds)
    )
    self._call = imported.prune(feeds, fetches, input_signature=(signature, {}))
    num_leaves = len(feeds) - len(self._extra_arguments)
    self.signature = (
      [tf.TensorSpec(spec.shape, spec.dtype) for spec in signature[:num_leaves]],
      [tf.TensorSpec(fetch.shape, fetch.dtype) for fetch in fetches],
    )
    # A call of its own, because no control dependency reaches into the frames of a loop.
    self._initialize = None
    if tensorflow_proto.initialize_op:
      initialize_op = graph.get_operation_by_name(tensorflow_proto.initialize_op)
      self._initial_arguments = _needed(initialize_op, feeds)
      self._initialize = imported.prune(
        [feeds[i] for i in self._initial_arguments], [initialize_op]
      )
    variables = [
      dict(
        dtype=node.attr['dtype'].type,
        shape=tf.TensorShape(node.attr['shape'].shape),
        shared_name=node.attr['shared_name'].s,
        container=node.attr['container'].s,
      )
      for node in _all_nodes(graph_def)
      if node.op == 'VarHandleOp'
    ]
    if variables:
      leave = weakref.finalize(self, _abandoned_variables.append, (variables, device))
      leave.atexit = False  # Nothing is left to free when the interpreter ends.

  def __call__(self, arguments: list[tf.Tensor]) -> list[tf.Tensor]:
    arguments = [*arguments, *self._extra_arguments]
    if self._initialize is not None:
      self._initialize(*(arguments[i] for i in self._initial_arguments))
    return self._call(*arguments)


class GraphFunction:
  """A TensorFlow computation of TFF that any number of threads may call at the same time.

  Variables in a graph are found by their names, so two calls at the same time need two copies. A
  copy that is not in use is taken again: there are never more of them than calls at the same time.
  A graph without state needs only one.

  Nothing else in a graph is shared by calls at the same time. What was looked at: stacks and tensor
  arrays have numbers of their own, and lists are values; each call has its own rendezvous and step
  id, so sends between devices and scoped allocators do not meet; functions of datasets have step
  containers of their own; tables, queues and iterators have the attribute `shared_name` or no name
  at all. Temporary variables are what is left: TensorFlow's optimizer is kept from making them, and
  graphs that were written with some run one at a time.
  """

  def __init__(self, tensorflow_proto):
    self._proto = tensorflow_proto
    graph_def = tf.compat.v1.GraphDef.FromString(tensorflow_proto.graph_def.value)
    self._has_state = bool(tensorflow_proto.initialize_op) or any(
      'shared_name' in node.attr for node in _all_nodes(graph_def)
    )
    has_temporary_variables = any(node.op == 'TemporaryVariable' for node in _all_nodes(graph_def))
    self.can_be_part = not has_temporary_variables
    self._turn: Any = _temporary_variables if has_temporary_variables else contextlib.nullcontext()
    self._lock = threading.Lock()
    self._shared = None
    self._free = {}

  def __call__(self, arguments: list[tf.Tensor], device: str) -> list[tf.Tensor]:
    """Runs the graph.

    Args:
      arguments: A tensor for each leaf of the parameter; a dataset is given as its variant tensor.
      device: The device of all ops that the graph does not place itself.

    Returns:
      A tensor for each leaf of the result.
    """
    with tf.device(device), self._turn, call_options.memory_optimizer_off():
      if not self._has_state:
        return self._shared_copy()(arguments)
      copy = self._take_copy(device)
      try:
        return copy(arguments)
      finally:
        self._free[device].append(copy)

  def signature(self, device: str) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
    """Returns the types of the leaves of the parameter and of the result, as the graph has them."""
    if not self._has_state:
      return self._shared_copy().signature
    copy = self._take_copy(device)
    self._free[device].append(copy)
    return copy.signature

  def new_part(self, device: str) -> Callable[[list[tf.Tensor], str], list[tf.Tensor]]:
    """Returns the function as a part of a larger graph that runs once at a time.

    Only if `can_be_part`. It is to be called while that graph is traced, and has to live as long.
    """
    copy = self._take_copy(device) if self._has_state else self._shared_copy()
    return lambda arguments, device: copy(arguments)

  def _shared_copy(self) -> _Copy:
    with self._lock:
      if self._shared is None:
        self._shared = _Copy(self._proto)
      return self._shared

  def _take_copy(self, device: str) -> _Copy:
    with self._lock:
      free = self._free.setdefault(device, [])
      if free:
        return free.pop()
    _destroy_abandoned_variables()
    return _Copy(self._proto, device)
