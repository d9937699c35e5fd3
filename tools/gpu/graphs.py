# SPDX-License-Identifier: Apache-2.0
"""Reads the graphs that TensorFlow has split over devices, and says what a step of a loop costs.

TensorFlow hands them out as `RunMetadata` when a function is first called. A loop is, by then, a
circle of nodes between `Enter` and `Exit`.
"""

import collections
import dataclasses
import functools
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import kernels, op_def_registry

HOST = 'CPU:0'
_SENDS, _RECEIVES = ('_Send', '_HostSend'), ('_Recv', '_HostRecv')
# What moves no data on a GPU: the flow of control, constants that are there already, names and
# shapes of buffers, handles.
_WITHOUT_WORK = frozenset(
  'Const Identity IdentityN StopGradient PreventGradient Reshape Squeeze ExpandDims Shape '
  'ShapeN Rank Size BroadcastGradientArgs '
  'Switch Merge Enter Exit NextIteration LoopCond NoOp ControlTrigger _Arg _Retval _Send _Recv '
  '_HostSend _HostRecv '
  'VarHandleOp ReadVariableOp AssignVariableOp'.split()
)


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


def source_name(tensor: str) -> str:
  """Returns the node of an input of a node."""
  return tensor.lstrip('^').split(':')[0]


def loop_depths(nodes: dict[str, NodeDef]) -> dict[str, int]:
  """Returns in how many loops, one in the other, each node is."""
  readers = collections.defaultdict(list)
  for node in nodes.values():
    for tensor in node.input:
      readers[source_name(tensor)].append(node)
  depths = {node.name: 0 for node in nodes.values() if not node.input}
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


def _fits(kernel, node: NodeDef) -> bool:
  for constraint in kernel.constraint:
    allowed = constraint.allowed_values.list.type
    found = node.attr[constraint.name].type if constraint.name in node.attr else 0
    if allowed and found and found not in allowed:
      return False
  return True


def _gpu_kernel(node: NodeDef):
  fitting = [
    k for k in _kernels_of(node.op) if k.device_type in ('GPU', 'DEFAULT') and _fits(k, node)
  ]
  return max(fitting, key=lambda k: (k.device_type == 'GPU', k.priority), default=None)


def _is_host_op(node: NodeDef, kernel) -> bool:
  """Whether a kernel 'on the GPU' works on host memory alone, as those on shapes do."""
  definition = op_def_registry.get(node.op)
  outputs = [o.name for o in definition.output_arg] if definition else []
  return bool(outputs) and set(outputs) <= set(kernel.host_memory_arg)


def _takers(node: NodeDef, nodes: dict[str, NodeDef], readers) -> list[tuple[str, int]]:
  """Lists who takes a tensor; nobody does if it is empty and only says that it is time."""
  taken = []
  for name, position in readers[node.name]:
    reader = nodes[name.rpartition(':')[0]]
    if reader.op != 'Identity' or readers[reader.name]:
      taken.append((name, position))
  return taken


def devices_of(parts: Sequence[tf.compat.v1.GraphDef]) -> list[str]:
  """Lists the devices of a function's parts, such as 'GPU:0'."""
  found = []
  for part in parts:
    names = (node.device.rpartition('device:')[2] for node in part.node)
    found.append(next((name for name in names if name), HOST))
  return found


def read_step(parts: Sequence[tf.compat.v1.GraphDef]) -> LoopStep | None:
  """Says what happens in a step of a function's loop; None if it has none.

  Args:
    parts: The function's parts, one for each device.
  """
  # The largest of a device last: a small function that was called meanwhile may be among them.
  by_size = sorted(zip(devices_of(parts), parts), key=lambda pair: len(pair[1].node))
  graphs = {device: {node.name: node for node in part.node} for device, part in by_size}
  depths = {device: loop_depths(nodes) for device, nodes in graphs.items()}
  launches = collections.defaultdict(collections.Counter)
  host_ops, without_kernel = collections.Counter(), collections.Counter()
  sent, received = {}, {}
  has_loop = False
  for device, nodes in graphs.items():
    readers = collections.defaultdict(list)
    for node in nodes.values():
      for position, tensor in enumerate(node.input):
        if not tensor.startswith('^'):
          readers[source_name(tensor)].append((f'{node.name}:{node.op}', position))
    for node in nodes.values():
      if not depths[device].get(node.name):
        continue
      has_loop = True
      if node.op in _SENDS:
        producer = nodes[source_name(node.input[0])]
        place = 'host' if device == HOST or node.op == '_HostSend' else device
        sent[node.attr['tensor_name'].s] = (place, producer, node.attr['T'].type)
      elif node.op in _RECEIVES:
        place = 'host' if device == HOST or node.op == '_HostRecv' else device
        received[node.attr['tensor_name'].s] = (place, tuple(_takers(node, nodes, readers)))
      elif node.op in _WITHOUT_WORK:
        continue
      elif device == HOST:
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
      name = tf.as_dtype(dtype).name
      copies.append(Copy(source, target, name, f'{producer.name}:{producer.op}', consumers))
  return LoopStep(dict(launches), copies, host_ops, without_kernel)
