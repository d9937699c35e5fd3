# SPDX-License-Identifier: Apache-2.0
"""Values on their way to the workers of a cluster and back.

What travels is a parcel: a pickle, and beside it the memory of its arrays, which Ray passes on
without copying. A parcel knows its size. What stays at the workers is an object of Ray's store, and
the parcel holds its number.
"""

import dataclasses
import itertools
import pickle
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from fednar_tff import resident

# A dataset whose graph is smaller travels with its client; a larger one goes to the store, once.
_SMALL_GRAPH = 2**14


@dataclasses.dataclass
class Parcel:
  """A pickled value and the buffers of its arrays."""

  pickled: bytes
  buffers: list[np.ndarray]

  @property
  def num_bytes(self) -> int:
    return len(self.pickled) + sum(buffer.nbytes for buffer in self.buffers)

  def open(self) -> Any:
    """Returns the value; its arrays may be read-only."""
    return pickle.loads(self.pickled, buffers=self.buffers)


def pack(value: Any) -> Parcel:
  """Puts a picklable value into a parcel."""
  buffers: list[pickle.PickleBuffer] = []
  pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
  return Parcel(pickled, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers])


@dataclasses.dataclass(frozen=True)
class Stored:
  """A value that is in the store, by its number."""

  key: int


@dataclasses.dataclass(frozen=True)
class _Strings:
  """A tensor of strings: NumPy has no type for them."""

  array: Any


@dataclasses.dataclass(frozen=True)
class _Graph:
  """A dataset as TensorFlow serialises it, or where that is stored."""

  graph: np.ndarray | Stored


@dataclasses.dataclass(frozen=True)
class _Element:
  """A dataset of one element: the positions of its leaves in their structure, and the leaves."""

  structure: Any
  leaves: list[Any]


class Store:
  """What the driver has put into Ray's object store: each thing once, as long as it is in use here.

  Things are told apart by their identity. When the driver drops one, the store does, too.
  """

  def __init__(self, put: Callable[[Any], Any]):
    """Makes an empty store.

    Args:
      put: `ray.put`.
    """
    self._put = put
    self._numbers = itertools.count()
    self._keys: dict[int, Stored] = {}
    self._refs: dict[int, Any] = {}

  @property
  def keys(self) -> frozenset[int]:
    """The numbers of what is in use."""
    return frozenset(self._refs)

  def add(self, value: Any) -> Stored:
    """Puts a value into the store, until `drop`."""
    key = next(self._numbers)
    self._refs[key] = self._put(pack(value))
    return Stored(key)

  def drop(self, stored: Stored) -> None:
    self._refs.pop(stored.key, None)

  def find(self, owner: Any) -> Stored | None:
    """Returns what `add_for` has put into the store for an object."""
    return self._keys.get(id(owner))

  def add_for(self, owner: Any, value: Any) -> Stored:
    """Puts a value into the store for as long as an object lives."""
    stored = self._keys[id(owner)] = self.add(value)
    weakref.finalize(owner, self._forget, id(owner)).atexit = False
    return stored

  def _forget(self, owner_id):
    self.drop(self._keys.pop(owner_id))

  def references(self, keys: Any) -> dict[int, Any]:
    """Returns Ray's references by number."""
    return {key: self._refs[key] for key in keys}


class Packer:
  """Turns leaves into what can be pickled, and notes which stored values they need."""

  def __init__(self, store: Store | None):
    """Makes a packer.

    Args:
      store: Where resident arrays and large datasets go; None if all travels.
    """
    self._store = store
    self.needs: set[int] = set()

  def leaves(self, values: Mapping[int, Any]) -> dict[int, Any]:
    return {slot: self.leaf(value) for slot, value in values.items()}

  def leaf(self, value: Any) -> Any:
    if isinstance(value, tf.data.Dataset):
      parts = resident.parts_of(value)
      return self._dataset(value) if parts is None else self._element(parts)
    if tf.is_tensor(value):
      if value.dtype == tf.variant:
        return _Graph(_serialize(value))
      return _Strings(value.numpy()) if value.dtype == tf.string else value.numpy()
    return value

  def _dataset(self, dataset):
    stored = None if self._store is None else self._store.find(dataset)
    if stored is None:
      graph = _serialize(tf.data.experimental.to_variant(dataset))
      if self._store is None or graph.nbytes < _SMALL_GRAPH:
        return _Graph(graph)
      stored = self._store.add_for(dataset, graph)
    self.needs.add(stored.key)
    return _Graph(stored)

  def _element(self, parts):
    leaves = tf.nest.flatten(parts.element)
    structure = tf.nest.pack_sequence_as(parts.element, list(range(len(leaves))))
    return _Element(structure, [self._leaf_of_element(leaf, parts) for leaf in leaves])

  def _leaf_of_element(self, leaf, parts):
    if self._store is None or id(leaf) not in parts.resident:
      return self.leaf(leaf)
    stored = self._store.find(leaf) or self._store.add_for(leaf, self.leaf(leaf))
    self.needs.add(stored.key)
    return stored


def _serialize(variant: tf.Tensor) -> np.ndarray:
  graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()
  return np.frombuffer(graph, np.uint8)


class Unpacker:
  """Turns what a `Packer` has made back into tensors and datasets."""

  def __init__(self, fetch: Callable[[Stored], Any] | None = None):
    """Makes an unpacker.

    Args:
      fetch: Returns a stored value.
    """
    self._fetch = fetch
    # Resident arrays, by number: they become tensors once.
    self.resident: dict[int, tf.Tensor] = {}

  def leaves(self, packed: Mapping[int, Any]) -> dict[int, Any]:
    return {slot: self.leaf(value) for slot, value in packed.items()}

  def leaf(self, packed: Any) -> Any:
    if isinstance(packed, _Graph):
      graph = self._fetch(packed.graph) if isinstance(packed.graph, Stored) else packed.graph  # type: ignore[misc]
      return tf.raw_ops.DatasetFromGraph(graph_def=graph.tobytes())
    if isinstance(packed, _Element):
      leaves = [self._leaf_of_element(leaf) for leaf in packed.leaves]
      return tf.data.Dataset.from_tensors(tf.nest.pack_sequence_as(packed.structure, leaves))
    if isinstance(packed, _Strings):
      return tf.constant(packed.array, tf.string)
    return tf.constant(packed)

  def _leaf_of_element(self, packed):
    if not isinstance(packed, Stored):
      return self.leaf(packed)
    if packed.key not in self.resident:
      self.resident[packed.key] = self.leaf(self._fetch(packed))  # type: ignore[misc]
    return self.resident[packed.key]
