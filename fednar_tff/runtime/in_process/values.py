# SPDX-License-Identifier: Apache-2.0
"""Values on their way into and out of the in-process runtime."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# The device whose memory holds datasets, and what is to outlive a client's turn.
HOST = '/device:CPU:0'
# NumPy's letters for kinds of numbers. TFF converts within a row, never from one row to another.
_KINDS = ('b', 'iu', 'f', 'c', 'SUO')
# The last type of a dataset's elements that fitted, and the type that it fitted.
_last_fit: tuple[object, object] = (None, None)


def _check_tensor(shape, dtype: np.dtype, type_spec: tff.TensorType) -> None:
  if not tf.TensorShape(type_spec.shape).is_compatible_with(shape):
    raise TypeError(f'A tensor must be of type {type_spec}, found one of shape {tuple(shape)}.')
  expected = type_spec.dtype
  same_kind = any(dtype.kind in kinds and expected.kind in kinds for kinds in _KINDS)
  fits = expected.kind == 'U' or np.can_cast(dtype, expected)
  if dtype != expected and not (same_kind and fits):
    raise TypeError(f'A tensor must be of type {type_spec}, found one of dtype {dtype}.')


def from_python(value: Any, type_spec: tff.TensorType) -> tf.Tensor:
  """Makes a tensor of what a caller gives for a tensor type.

  Args:
    value: A tensor, variable, NumPy array, scalar, string or nested sequence of scalars.
    type_spec: The type that the tensor is to have.

  Returns:
    The tensor; an eager tensor of the right type is not copied.

  Raises:
    TypeError: If the value has another shape, another kind of number, or more bits than the type.
  """
  dtype = tf.as_dtype(type_spec.dtype)
  if isinstance(value, tf.Variable):
    value = value.read_value()
  if tf.is_tensor(value) and value.dtype == dtype:
    if not tf.TensorShape(type_spec.shape).is_compatible_with(value.shape):
      raise TypeError(f'A tensor must be of type {type_spec}, found one of shape {value.shape}.')
    return value
  is_python = not isinstance(value, (np.ndarray, np.generic)) and not tf.is_tensor(value)
  array = np.asarray(value)
  if is_python and array.dtype.kind in 'if' and array.dtype.kind == type_spec.dtype.kind:
    # A Python number has no width of its own: it takes that of the type, if it fits.
    narrow = array.astype(type_spec.dtype)
    if array.dtype.kind == 'f' or np.array_equal(narrow, array):
      array = narrow
  elif not array.size and is_python:
    array = array.astype(type_spec.dtype)
  _check_tensor(array.shape, array.dtype, type_spec)
  return tf.constant(array, dtype)


def to_tensor(value: object) -> tf.Tensor:
  """Returns the tensor that a TensorFlow graph gets for a leaf: a dataset travels as a variant."""
  if isinstance(value, tf.data.Dataset):
    return tf.data.experimental.to_variant(value)
  if isinstance(value, np.ndarray):
    return tf.constant(value)
  return value


def device_suffix(device: str) -> str:
  """Returns the end of a device's full name, whether it is given as 'GPU:0' or in full."""
  return ':' + device.upper().split('DEVICE:')[-1].lstrip('/')


def on_device(value: Any, device: str) -> object:
  """Returns a leaf in the memory of a device; a leaf that is there already as it is.

  Only floating-point numbers move. What TensorFlow does with integers on a GPU (counters, shapes)
  it mostly does in the host's memory.

  Args:
    value: A tensor, or another leaf.
    device: Where to; 'CPU:0' is the host.
  """
  if not tf.is_tensor(value) or not value.dtype.is_floating:
    return value
  if value.device.endswith(device_suffix(device)):
    return value
  with tf.device(device):
    return tf.identity(value)


def elements_of(value: object, type_spec: tff.StructType) -> list[object]:
  """Lists the elements of a container in the order of the type."""
  elements = tff.structure.from_container(value)
  if len(elements) != len(type_spec):
    raise TypeError(
      f'A structure must be of type {type_spec}, found one of {len(elements)} elements.'
    )
  names = tff.structure.name_list_with_nones(type_spec)
  if None not in names and set(names) == set(tff.structure.name_list(elements)):
    return [elements[name] for name in names]
  for found, expected in zip(tff.structure.name_list_with_nones(elements), names, strict=True):
    if found not in (None, expected):
      raise TypeError(f'A structure must be of type {type_spec}, found an element named {found}.')
  return list(elements)


def flatten(value: object, type_spec: tff.Type, *, keep_arrays: bool = False) -> list[object]:
  """Lists the leaves of a caller's value (tensors and datasets), in the order of the type.

  Args:
    value: What the caller gives.
    type_spec: Its type.
    keep_arrays: Whether NumPy arrays of the right type stay arrays. `to_tensor` makes tensors of
      them later.
  """
  if isinstance(type_spec, tff.StructType):
    return [
      leaf
      for element, element_type in zip(elements_of(value, type_spec), type_spec, strict=True)
      for leaf in flatten(element, element_type, keep_arrays=keep_arrays)
    ]
  if isinstance(type_spec, tff.SequenceType):
    return [_to_dataset(value, type_spec)]
  if keep_arrays and _is_array_of(value, type_spec):
    return [value]
  return [from_python(value, type_spec)]


def _is_array_of(value: object, type_spec: tff.TensorType) -> bool:
  return (
    isinstance(value, np.ndarray)
    and value.dtype.kind in 'fiub'
    and value.dtype == type_spec.dtype
    and value.shape == tuple(type_spec.shape or ())
  )


def _to_dataset(value: object, type_spec: tff.SequenceType) -> tf.data.Dataset:
  if isinstance(value, list):
    return dataset_from_leaves(
      [flatten(element, type_spec.element) for element in value], type_spec.element
    )
  if not isinstance(value, tf.data.Dataset):
    raise TypeError(
      f'A value of type {type_spec} must be a tf.data.Dataset or a list, '
      f'found {type(value).__name__}.'
    )
  _check_element_spec(value.element_spec, type_spec)
  return value


def _check_element_spec(spec: object, type_spec: tff.SequenceType) -> None:
  # The clients of a round often share one object, and the check costs as much as a small client.
  global _last_fit
  if _last_fit[0] is spec and _last_fit[1] is type_spec:
    return
  found = tff.SequenceType(tff.types.tensorflow_to_type(spec))
  if not type_spec.is_assignable_from(found):
    raise TypeError(f'A dataset must be of type {type_spec}, found one of type {found}.')
  _last_fit = (spec, type_spec)


def _pack(leaves: Iterator[object], type_spec: tff.Type) -> object:
  """Builds the tree of a type from its leaves, as TFF's own structures."""
  if isinstance(type_spec, tff.StructType):
    return tff.structure.Struct(
      [(name, _pack(leaves, element)) for name, element in tff.structure.iter_elements(type_spec)]
    )
  return next(leaves)


def unflatten(leaves: Sequence[object], type_spec: tff.Type) -> object:
  """Builds a value in the Python containers of its type from its leaves."""
  return tff.types.type_to_py_container(_pack(iter(leaves), type_spec), type_spec)


def _leaf_types(type_spec: tff.Type) -> list[tff.Type]:
  if isinstance(type_spec, tff.StructType):
    return [leaf for element in type_spec for leaf in _leaf_types(element)]
  return [type_spec]


def to_python(leaves: Sequence[object], type_spec: tff.Type) -> object:
  """Makes what the caller gets: NumPy values and datasets, in the Python containers of the type."""
  converted = [
    _to_python_leaf(leaf, leaf_type)
    for leaf, leaf_type in zip(leaves, _leaf_types(type_spec), strict=True)
  ]
  return unflatten(converted, type_spec)


def _to_python_leaf(leaf, type_spec):
  if isinstance(type_spec, tff.SequenceType):
    return _as_dataset(leaf, type_spec.element)
  if isinstance(leaf, np.ndarray):
    return leaf.copy()  # The caller's own, which came back as it was.
  return leaf.numpy()


def _as_dataset(leaf, element_type: tff.Type) -> tf.data.Dataset:
  if isinstance(leaf, tf.data.Dataset):
    return leaf
  return tf.data.experimental.from_variant(leaf, tff.types.type_to_tf_tensor_specs(element_type))


def zeros(type_spec: tff.Type) -> list[tf.Tensor]:
  """Lists the zeros of a type's leaves; a dimension that the type leaves open is 0."""
  return [
    tf.zeros([size or 0 for size in leaf.shape], leaf.dtype) for leaf in _leaf_types(type_spec)
  ]


def elements(leaf: object, element_type: tff.Type) -> Iterator[list[tf.Tensor]]:
  """Yields the leaves of each element of a sequence."""
  for element in _as_dataset(leaf, element_type):
    yield flatten(element, element_type)


def dataset_from_leaves(rows: list[list[tf.Tensor]], element_type: tff.Type) -> tf.data.Dataset:
  """Makes a dataset of elements that are given by their leaves.

  Args:
    rows: The leaves of each element. Their types are equal, their shapes may differ from row to
      row.
    element_type: The type of an element.

  Returns:
    The dataset.
  """
  if not rows:
    empty = [
      tf.zeros([0, *(size or 0 for size in leaf.shape)], leaf.dtype)
      for leaf in _leaf_types(element_type)
    ]
    return tf.data.Dataset.from_tensor_slices(unflatten(empty, element_type))
  dataset: tf.data.Dataset | None = None
  run: list[list[tf.Tensor]] = []
  for row, following in zip(rows, [*rows[1:], None], strict=True):
    run.append(row)
    if following is not None and [t.shape for t in row] == [t.shape for t in following]:
      continue
    columns = [tf.stack(column) for column in zip(*run, strict=True)]
    part = tf.data.Dataset.from_tensor_slices(unflatten(columns, element_type))
    dataset = part if dataset is None else dataset.concatenate(part)
    run = []
  return dataset
