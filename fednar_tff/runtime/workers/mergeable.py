# SPDX-License-Identifier: Apache-2.0
"""Computations in TFF's mergeable form, over several workers, in client order.

TFF's own context for them takes results as they arrive. It merges them in that order, and so it
returns what belongs to clients: the state of one client would go to another.
"""

import concurrent.futures
import functools
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from fednar_tff.runtime.in_process import rounds, values


def _is_of_each_client(type_spec: tff.Type) -> bool:
  return (
    isinstance(type_spec, tff.FederatedType)
    and type_spec.placement is tff.CLIENTS
    and not type_spec.all_equal
  )


def has_clients(type_spec: tff.Type | None) -> bool:
  """Returns whether a value of a type has a part for each client."""
  return type_spec is not None and tff.types.contains(type_spec, _is_of_each_client)


def _select(value: Any, type_spec: tff.Type, clients: slice) -> Any:
  """Returns a value with some of the clients."""
  if _is_of_each_client(type_spec):
    return value[clients]
  if not has_clients(type_spec):
    return value
  names = tff.structure.name_list_with_nones(type_spec)
  elements = zip(values.elements_of(value, type_spec), type_spec, strict=True)
  parts = [_select(element, element_type, clients) for element, element_type in elements]
  return tff.structure.Struct(list(zip(names, parts, strict=True)))


def _join(parts: list[Any], type_spec: tff.Type) -> Any:
  """Puts the clients of several values together; what all of them share is in the first."""
  if _is_of_each_client(type_spec):
    return list(itertools.chain.from_iterable(parts))
  if not has_clients(type_spec):
    return parts[0]
  names = tff.structure.name_list_with_nones(type_spec)
  elements = zip(*(values.elements_of(part, type_spec) for part in parts), strict=True)
  joined = [_join(list(e), element_type) for e, element_type in zip(elements, type_spec)]
  return tff.structure.Struct(list(zip(names, joined, strict=True)))


class Merging:
  """Runs computations in parts, each in a thread of its own: TFF's calls to a worker block."""

  def __init__(self, num_parts: int, invoke: Callable[[Any, Any, int], Any]):
    """Makes the threads.

    Args:
      num_parts: How many parts there are at most.
      invoke: Runs a computation on an argument, given the number of the part.
    """
    self._num_parts = num_parts
    self._invoke = invoke
    self._threads = concurrent.futures.ThreadPoolExecutor(num_parts, 'parts of a round')

  def run(self, form: tff.framework.MergeableCompForm, argument: Any) -> Any:
    """Runs a computation, each part of it with some of the clients."""
    type_spec = form.up_to_merge.type_signature.parameter
    parts = self._split(argument, type_spec)
    sums = self._run_parts(form.up_to_merge, parts)
    merged = functools.reduce(
      lambda x, y: self._invoke(form.merge, tff.structure.Struct.unnamed(x, y), 0), sums
    )
    if not has_clients(form.after_merge.type_signature.result):
      # The server's values are the same in all parts, and the clients' data is not asked for.
      parts = [_select(argument, type_spec, slice(0, 1))]
    after = [tff.structure.Struct.unnamed(part, merged) for part in parts]
    results = self._run_parts(form.after_merge, after)
    return _join(results, form.after_merge.type_signature.result)

  def _split(self, argument, type_spec):
    number = rounds.num_clients(argument, type_spec) or 0
    num_parts = max(1, min(self._num_parts, number))
    ends = [number * i // num_parts for i in range(num_parts + 1)]
    return [_select(argument, type_spec, slice(*pair)) for pair in itertools.pairwise(ends)]

  def _run_parts(self, computation, arguments):
    futures = [
      self._threads.submit(self._invoke, computation, argument, number)
      for number, argument in enumerate(arguments)
    ]
    return [future.result() for future in futures]
