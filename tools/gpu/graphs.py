"""Reads the graphs that TensorFlow dumps after it has split them over devices, and says what a step of a loop costs.

With TF_DUMP_GRAPH_PREFIX=<folder>, TF_DUMP_GRAPH_NAME_FILTER=* and TF_DUMP_GRAPH_GROUPS=main in the environment, TensorFlow writes a function's
part on each device into a text file when the function is first called. A loop is, by then, a circle of nodes between `Enter` and `Exit`.
"""

import collections
import dataclasses
import functools
import pathlib
import re

import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

_PART = re.compile(
  r'(?P<function>.+)_partition__.*device:(?P<device>\w+:\d+)\.\d+\.main\.after_partition_passes'
)
_SENDS, _RECEIVES = ('_Send', '_HostSend'), ('_Recv', '_HostRecv')
# What moves no data on a GPU: the flow of control, constants that are there already, names and shapes of buffers, handles.
_WITHOUT_WORK = frozenset(
  'Const Identity IdentityN StopGradient PreventGradient Reshape Squeeze ExpandDims Shape ShapeN Rank Size BroadcastGradientArgs '
  'Switch Merge Enter Exit NextIteration LoopCond NoOp ControlTrigger _Arg _Retval _Send _Recv _HostSend _HostRecv '
  'VarHandleOp ReadVariableOp AssignVariableOp'.split()
)


@dataclasses.dataclass
class Node:
  """A node of a dumped graph, as far as it is of interest here."""

  name: str = ''
  op: str = ''
  inputs: list[str] = dataclasses.field(default_factory=list)
  types: dict[str, str] = dataclasses.field(default_factory=dict)
  strings: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Copy:
  """A tensor that goes from one device to another, or between host and device memory, in each step.

  Attributes:
    source: Where it comes from: 'host', 'GPU:0', ...
    target: Where it goes to.
    dtype: The type of its entries.
    producer: The operation that makes it, as 'name:op'.
    consumers: Those that take it there, as 'name:op', with the position among their inputs.
  """

  source: str
  target: str
  dtype: str
  producer: str
  consumers: tuple[tuple[str, int], ...]


@dataclasses.dataclass
class LoopStep:
  """What happens in a step of a function's outermost loop.

  Attributes:
    launches: By device, the operations that launch work there, with their number.
    copies: What is copied.
    host_ops: The operations that were placed on the host, with their number.
    without_kernel: The operations of the device's part that the wheel has no GPU kernel for.
  """

  launches: dict[str, collections.Counter]
  copies: list[Copy]
  host_ops: collections.Counter
  without_kernel: collections.Counter


def read_graph(path: pathlib.Path) -> dict[str, Node]:
  """Reads the nodes of a dumped graph by their names.

  A parser of text protos would need a minute for the larger ones; the layout of these is always the same.
  """
  nodes, node, key, depth = {}, None, None, 0
  with open(path) as lines:
    for raw in lines:
      line = raw.strip()
      if line == '}':
        depth -= 1
        if depth == 0 and node is not None:
          nodes[node.name], node = node, None
      elif line.endswith('{'):
        if depth == 0:
          if line != 'node {':
            break  # What follows is the library of functions.
          node = Node()
        depth += 1
      elif depth == 1:
        name, _, value = line.partition(': ')
        if name == 'name':
          node.name = value.strip('"')
        elif name == 'op':
          node.op = value.strip('"')
        elif name == 'input':
          node.inputs.append(value.strip('"'))
      elif depth == 2 and line.startswith('key: '):
        key = line[5:].strip('"')
      elif depth == 3 and line.startswith('type: '):
        node.types[key] = line[6:]
      elif depth == 3 and line.startswith('s: '):
        node.strings[key] = line[3:].strip('"')
  return nodes


def source_name(tensor: str) -> str:
  """Returns the node of an input of a node."""
  return tensor.lstrip('^').split(':')[0]


def loop_depths(nodes: dict[str, Node]) -> dict[str, int]:
  """Returns in how many loops, one in the other, each node is."""
  readers = collections.defaultdict(list)
  for node in nodes.values():
    for tensor in node.inputs:
      readers[source_name(tensor)].append(node)
  depths = {node.name: 0 for node in nodes.values() if not node.inputs}
  waiting = collections.deque(depths)
  while waiting:
    name = waiting.popleft()
    # The result of an `Exit` is outside already, that of an `Enter` inside.
    for reader in readers[name]:
      depth = depths[name] + (reader.op == 'Enter') - (reader.op == 'Exit')
      if depths.get(reader.name, -1) < depth and reader.op != 'Merge' or reader.name not in depths:
        depths[reader.name] = depth
        waiting.append(reader.name)
  return depths


@functools.cache
def _kernels_of(op: str):
  return tuple(kernels.get_registered_kernels_for_op(op).kernel)


def _fits(kernel, node: Node) -> bool:
  for constraint in kernel.constraint:
    allowed = {tf.as_dtype(t).name for t in constraint.allowed_values.list.type}
    found = node.types.get(constraint.name)
    if allowed and found and tf.as_dtype(_dtype_number(found)).name not in allowed:
      return False
  return True


def _dtype_number(name: str) -> int:
  from tensorflow.core.framework import types_pb2

  return types_pb2.DataType.Value(name)


def _gpu_kernel(node: Node):
  fitting = [
    k for k in _kernels_of(node.op) if k.device_type in ('GPU', 'DEFAULT') and _fits(k, node)
  ]
  return max(fitting, key=lambda k: (k.device_type == 'GPU', k.priority), default=None)


def _is_host_op(node: Node, kernel) -> bool:
  """Whether a kernel 'on the GPU' works on host memory alone, as those on shapes do."""
  definition = op_def_registry.get(node.op)
  outputs = [o.name for o in definition.output_arg] if definition else []
  return bool(outputs) and set(outputs) <= set(kernel.host_memory_arg)


def _takers(node: Node, nodes: dict[str, Node], readers) -> list[tuple[str, int]]:
  """Lists who takes a tensor; nobody does if it is empty and stands for 'now', as between operations that only wait."""
  taken = []
  for name, position in readers[node.name]:
    reader = nodes[name.rpartition(':')[0]]
    if reader.op != 'Identity' or readers[reader.name]:
      taken.append((name, position))
  return taken


def find_functions(paths: list[pathlib.Path]) -> dict[str, dict[str, pathlib.Path]]:
  """Returns the dumped parts by function and device, such as 'GPU:0'."""
  functions = collections.defaultdict(dict)
  for path in paths:
    match = _PART.match(path.name)
    if match:
      functions[match['function']][match['device']] = path
  return dict(functions)


def read_step(parts: dict[str, pathlib.Path], host: str = 'CPU:0') -> LoopStep | None:
  """Says what happens in a step of a function's loop; None if it has none.

  Args:
    parts: The files of the function's parts, by device.
    host: The device that is the host.
  """
  graphs = {device: read_graph(path) for device, path in parts.items()}
  depths = {device: loop_depths(nodes) for device, nodes in graphs.items()}
  launches = collections.defaultdict(collections.Counter)
  host_ops, without_kernel = collections.Counter(), collections.Counter()
  sent, received = {}, {}
  has_loop = False
  for device, nodes in graphs.items():
    readers = collections.defaultdict(list)
    for node in nodes.values():
      for position, tensor in enumerate(node.inputs):
        if not tensor.startswith('^'):
          readers[source_name(tensor)].append((f'{node.name}:{node.op}', position))
    for node in nodes.values():
      if not depths[device].get(node.name):
        continue
      has_loop = True
      if node.op in _SENDS:
        producer = nodes[source_name(node.inputs[0])]
        place = 'host' if device == host or node.op == '_HostSend' else device
        sent[node.strings['tensor_name']] = (place, producer, node.types['T'])
      elif node.op in _RECEIVES:
        place = 'host' if device == host or node.op == '_HostRecv' else device
        received[node.strings['tensor_name']] = (place, tuple(_takers(node, nodes, readers)))
      elif node.op in _WITHOUT_WORK:
        continue
      elif device == host:
        host_ops[node.op] += 1
      elif not device.startswith('GPU'):
        launches[device][node.op] += 1
      else:
        kernel = _gpu_kernel(node)
        if kernel is None:
          without_kernel[node.op] += 1
        elif not _is_host_op(node, kernel):
          launches[device][node.op] += 1
  if not has_loop:
    return None
  copies = []
  for key, (source, producer, dtype) in sent.items():
    target, consumers = received.get(key, (source, ()))
    if source != target and consumers:  # Without a consumer it is a signal, not a tensor.
      name = tf.as_dtype(_dtype_number(dtype)).name
      copies.append(Copy(source, target, name, f'{producer.name}:{producer.op}', consumers))
  return LoopStep(dict(launches), copies, host_ops, without_kernel)
