# SPDX-License-Identifier: Apache-2.0
"""A worker of the cluster: an in-process runtime, in a process that Ray starts."""

import collections
import dataclasses
import os
import pickle
import socket
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.runtime.cluster import parcels
from fednar_tff.runtime.in_process import cancellation, client_pool, context, passes, rounds, values


@dataclasses.dataclass(frozen=True)
class Piece:
  """Some clients of one pass of a computation, with what they need.

  Attributes:
    computation: The stored computation.
    pass_number: Which pass of its plan.
    server_values: The stored values of the server, by slot.
    clients: The values of each client, by slot.
    in_use: The numbers of all stored values that the driver still uses.
  """

  computation: parcels.Stored
  pass_number: int
  server_values: parcels.Stored
  clients: list[dict[int, Any]]
  in_use: frozenset[int]


@dataclasses.dataclass(frozen=True)
class Done:
  """What a piece gives.

  Attributes:
    accumulators: For each aggregation, the leaves of the sum over the piece's clients.
    kept: For each client, the values that outlive the pass, by slot.
    clients_by_device: How many clients ran on each device.
    fetched: How many bytes of stored values this worker had to get for it, by their kind.
  """

  accumulators: list[list[Any]]
  kept: list[dict[int, Any]]
  clients_by_device: dict[str, int]
  fetched: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Failed:
  """That a client's computation failed: the client's number within the piece, and why."""

  client_index: int
  cause: Exception


class Worker:
  """The class of Ray's actors."""

  def __init__(self, options: Mapping[str, Any], simulate_secure_sums_in_the_clear: bool):
    """Makes the runtime.

    Args:
      options: Arguments of `create_in_process_context`.
      simulate_secure_sums_in_the_clear: As there.
    """
    if options['num_threads'] is not None:
      # By default, each worker of a machine would run as many operations at a time as it has cores.
      tf.config.threading.set_inter_op_parallelism_threads(options['num_threads'])
    self._context = context.create_in_process_context(**options)
    self._secure_sums_in_the_clear = simulate_secure_sums_in_the_clear
    self._plans: dict[int, passes.Plan] = {}
    self._server_values: dict[int, dict[int, Any]] = {}
    self._references: Mapping[int, Any] = {}
    self._kinds: dict[parcels.Stored, str] = {}
    self._fetched: collections.Counter[str] = collections.Counter()
    self._unpacker = parcels.Unpacker(self._fetch)

  def describe(self) -> dict[str, Any]:
    """Says where this worker is, and what it computes on."""
    return {
      'host': socket.gethostname(),
      'process': os.getpid(),
      'devices': self._context.describe()['executes_on'],
    }

  def cancel(self) -> None:
    """Stops the piece that runs now, if one does. Ray calls it in a thread of its own."""
    cancellation.cancel_running()

  def run(self, parcel: parcels.Parcel, references: Mapping[int, Any]) -> parcels.Parcel:
    """Does a piece.

    Args:
      parcel: A `Piece`.
      references: Ray's references to the stored values that it names.

    Returns:
      A parcel with a `Done` or a `Failed`.
    """
    piece = parcel.open()
    self._references = references
    self._kinds = {piece.computation: 'computation', piece.server_values: 'server_values'}
    self._fetched.clear()
    caches: list[dict[int, Any]] = [self._plans, self._server_values, self._unpacker.resident]
    for cache in caches:
      for key in cache.keys() - piece.in_use:
        del cache[key]
    with tf.device(values.HOST):
      server = self._cached(self._server_values, piece.server_values, self._unpacker.leaves)
      clients = [self._unpacker.leaves(client) for client in piece.clients]
    plan = self._cached(self._plans, piece.computation, self._make_plan)
    current = rounds.Round(plan, self._context.pool, len(clients))
    current.server.update(server)
    for kept, client in zip(current.kept, clients, strict=True):
      kept.update(client)
    before = collections.Counter(self._context.pool.clients_by_device)
    this_pass = plan.passes[piece.pass_number]
    for step in plan.zero_steps(this_pass):
      step.run(current.server, values.HOST)
    try:
      with cancellation.cancelled_on_error():
        current.run_clients(this_pass)
    except client_pool.ClientError as e:
      return parcels.pack(Failed(e.client_index, _picklable(e.__cause__)))  # type: ignore[arg-type]
    packer = parcels.Packer(store=None)
    accumulators = [
      [packer.leaf(current.server[slot]) for slot in aggregation.writes]
      for aggregation in this_pass.aggregations
    ]
    kept = [packer.leaves({s: k[s] for s in this_pass.keeps}) for k in current.kept]  # type: ignore[assignment]
    counts = self._context.pool.clients_by_device - before
    return parcels.pack(Done(accumulators, kept, dict(counts), dict(self._fetched)))  # type: ignore[arg-type]

  def _make_plan(self, message):
    return context.make_plan(
      tff.framework.deserialize_computation(message),
      self._secure_sums_in_the_clear,
      with_merge=True,
    )

  def _cached(self, cache, stored, make):
    if stored.key not in cache:
      cache[stored.key] = make(self._fetch(stored))
    return cache[stored.key]

  def _fetch(self, stored):
    import ray

    parcel = ray.get(self._references[stored.key])
    self._fetched[self._kinds.get(stored, 'data')] += parcel.num_bytes
    return parcel.open()


def _picklable(error: Exception) -> Exception:
  """Returns the error itself if it survives the journey, or else one with its text."""
  try:
    pickle.loads(pickle.dumps(error))
    return error
  except Exception:
    return RuntimeError(f'{type(error).__name__}: {error}')
