# SPDX-License-Identifier: Apache-2.0
"""The reduce of a dataset, rewritten as a loop over an iterator.

By default, TFF trains and evaluates inside of `Dataset.reduce`. TensorFlow runs the function of a
reduce on the host, whatever device was asked for, and prepares it anew in every call, which for a
small model takes longer than to train it. A loop computes the same without either.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from fednar_tff.runtime.in_process import values

_AttrValue = tf.compat.v1.AttrValue
_VARIANT, _RESOURCE, _BOOL = (x.as_datatype_enum for x in (tf.variant, tf.resource, tf.bool))
_SCALAR, _ANY_SHAPE = tf.TensorShape([]).as_proto(), tf.TensorShape(None).as_proto()


def _types(types: Iterable[int]) -> Any:
  return _AttrValue(list=_AttrValue.ListValue(type=types))


def _shapes(shapes: Iterable[Any]) -> Any:
  return _AttrValue(list=_AttrValue.ListValue(shape=shapes))


def _named(function: str) -> Any:
  attribute = _AttrValue()
  attribute.func.name = function
  return attribute


def _node(name: str, op: str, inputs: Iterable[str], device: str = '', **attributes: Any) -> Any:
  return tf.compat.v1.NodeDef(name=name, op=op, input=inputs, device=device, attr=attributes)


def _data_node(name: str, op: str, inputs: Iterable[str], **attributes: Any) -> Any:
  """Returns a node where datasets are, and so what is read from them."""
  return _node(name, op, inputs, values.HOST, **attributes)


def _call(
  name: str, function: str, inputs: Iterable[str], types: Iterable[int], results: Iterable[int]
) -> Any:
  attributes = {'f': _named(function), 'Tin': _types(types), 'Tout': _types(results)}
  return _node(name, 'StatefulPartitionedCall', inputs, **attributes)


def _add_function(
  library: Any,
  name: str,
  argument_types: Iterable[int],
  nodes: list[Any],
  results: Iterable[tuple[str, int]],
) -> None:
  """Adds a function of the arguments `x0`, `x1`, ... whose results wait for all of its nodes.

  If they did not, a step of a loop could begin before the last one has written its variables. A
  result stays where the node is that made it: an element of a dataset need not go to a GPU whole.
  """
  devices = {node.name: node.device for node in nodes}
  function = library.function.add(node_def=nodes)
  function.signature.name = name
  function.signature.is_stateful = True
  for i, kind in enumerate(argument_types):
    function.signature.input_arg.add(name=f'x{i}', type=kind)
  for i, (value, kind) in enumerate(results):
    function.signature.output_arg.add(name=f'y{i}', type=kind)
    inputs = [value, *(f'^{node.name}' for node in nodes)]
    device = devices.get(value.split(':')[0], '')
    function.node_def.append(
      _node(f'result{i}', 'Identity', inputs, device, T=_AttrValue(type=kind))
    )
    function.ret[f'y{i}'] = f'result{i}:output:0'
  for node in nodes:
    function.signature.control_output.append(node.name)
    function.control_ret[node.name] = node.name


def _element_attributes(step: Any, start: int, end: int) -> dict[str, Any]:
  """Returns the types and shapes of a dataset's elements: arguments of the reduce's function."""
  shapes = []
  for i in range(start, end):
    known = step.arg_attr[i].attr['_output_shapes'].list.shape if i in step.arg_attr else ()
    shapes.append(known[0] if known else _ANY_SHAPE)
  types = (argument.type for argument in step.signature.input_arg[start:end])
  return {'output_types': _types(types), 'output_shapes': _shapes(shapes)}


def _add_loop(library: Any, name: str, reduce: Any) -> None:
  """Adds a function that takes what a reduce takes, and returns what it returns.

  ```
  def loop(dataset, *state, *captures):
    iterator = iter(dataset)
    element = iterator.get_next_as_optional()
    while element.has_value():
      state = step(*state, *element.get_value(), *captures)
      element = iterator.get_next_as_optional()
    return state
  ```
  """
  (step,) = (f for f in library.function if f.signature.name == reduce.attr['f'].func.name)
  # TensorFlow optimizes and places functions of datasets in another way than those of graphs.
  step.attr.pop('_tf_data_function', None)
  states, captures = (list(reduce.attr[key].list.type) for key in ('Tstate', 'Targuments'))
  step_types = [argument.type for argument in step.signature.input_arg]
  num_states, num_elements = len(states), len(step_types) - len(states) - len(captures)
  element = _element_attributes(step, num_states, num_states + num_elements)

  # What the loop carries: the next element, the state, the iterator, the captures.
  carried = [_VARIANT, *states, _RESOURCE, *captures]
  carried_shapes = [
    _SCALAR, *reduce.attr['output_shapes'].list.shape, _SCALAR, *[_ANY_SHAPE] * len(captures)
  ]  # fmt: skip
  next_element, *rest = (f'x{i}' for i in range(len(carried)))
  state_values, iterator = rest[:num_states], rest[num_states]
  constants = rest[num_states + 1 :]
  _add_function(
    library,
    f'{name}_condition',
    carried,
    [_data_node('has_value', 'OptionalHasValue', [next_element])],
    [('has_value:has_value:0', _BOOL)],
  )
  element_values = [f'value:components:{i}' for i in range(num_elements)]
  step_values = [*state_values, *element_values, *constants]
  _add_function(
    library,
    f'{name}_body',
    carried,
    [
      _data_node('value', 'OptionalGetValue', [next_element], **element),
      _call('step', step.signature.name, step_values, step_types, states),
      _data_node('next', 'IteratorGetNextAsOptional', [iterator], **element),
    ],
    [
      ('next:optional:0', _VARIANT),
      *((f'step:output:{i}', kind) for i, kind in enumerate(states)),
      (iterator, _RESOURCE),
      *zip(constants, captures),
    ],
  )

  dataset, *rest = (f'x{i}' for i in range(1 + num_states + len(captures)))
  state_values, constants = rest[:num_states], rest[num_states:]
  iterator = 'iterator:handle:0'
  loop = {
    'cond': _named(f'{name}_condition'),
    'body': _named(f'{name}_body'),
    'T': _types(carried),
    'output_shapes': _shapes(carried_shapes),
    # A part of the graph, as TensorFlow's own loops are, instead of a call for each step.
    '_lower_using_switch_merge': _AttrValue(b=True),
  }
  loop_values = ['first:optional:0', *state_values, iterator, *constants]
  _add_function(
    library,
    name,
    [_VARIANT, *states, *captures],
    [
      _data_node('iterator', 'AnonymousIteratorV3', [], **element),
      _data_node('start', 'MakeIterator', [dataset, iterator]),
      _data_node('first', 'IteratorGetNextAsOptional', [iterator, '^start'], **element),
      _node('loop', 'While', loop_values, **loop),
    ],
    [(f'loop:output:{1 + i}', kind) for i, kind in enumerate(states)],
  )


def _rename_results(function: Any, node: Any) -> None:
  """In functions, results are known by what an operation calls them: `node:components:0`."""

  def renamed(value):
    before = f'{node.name}:components:'
    return value.replace(before, f'{node.name}:output:') if value.startswith(before) else value

  for reader in function.node_def:
    reader.input[:] = map(renamed, reader.input)
  for key, value in function.ret.items():
    function.ret[key] = renamed(value)


def replace_reduces(graph_def: tf.compat.v1.GraphDef) -> None:
  """Replaces the reduces of datasets in a graph and in the functions of its library by loops."""
  library = graph_def.library
  places = [(None, graph_def.node), *((f, f.node_def) for f in library.function)]
  reduces = [(f, node) for f, nodes in places for node in nodes if node.op == 'ReduceDataset']
  for i, (function, node) in enumerate(reduces):
    name = f'reduce_as_loop_{i}'
    _add_loop(library, name, node)
    states, captures = (node.attr[key].list.type for key in ('Tstate', 'Targuments'))
    node.CopyFrom(_call(node.name, name, node.input, [_VARIANT, *states, *captures], states))
    if function is not None:
      _rename_results(function, node)
