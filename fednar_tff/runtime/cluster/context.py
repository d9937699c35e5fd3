# SPDX-License-Identifier: Apache-2.0
"""TFF computations on a Ray cluster: a runtime on each worker, the server in this process.

The plan of a computation is the same as in process. What the clients of a pass do is cut into
pieces, which the workers take from one queue. A worker returns the sum over the clients of a piece;
the sums are merged in client order. So it does not matter who was faster.
"""

import collections
import contextlib
import itertools
import os
import weakref

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.runtime import default_context
from fednar_tff.runtime.cluster import connection, parcels, team
from fednar_tff.runtime.cluster import worker as workers
from fednar_tff.runtime.in_process import client_pool, context, passes, rounds, values

_PIECES_PER_WORKER = 4


def cut(num_clients: int, num_pieces: int) -> list[range]:
  """Cuts clients into pieces, large ones first: the last ones, which all wait for, are small.

  Args:
    num_clients: The number of clients.
    num_pieces: The number of pieces at most; no piece is empty.

  Returns:
    The clients of each piece.

  Example:
    >>> [len(piece) for piece in cut(20, 8)]
    [5, 4, 3, 3, 2, 2, 1]
  """
  ends = [round(num_clients * (1 - (1 - i / num_pieces) ** 2)) for i in range(num_pieces + 1)]
  return [range(start, end) for start, end in itertools.pairwise(ends) if start < end]


class _ClusterRound(rounds.Round):
  """One run of a plan whose clients are elsewhere."""

  def __init__(self, plan, pool, num_clients, cluster: 'ClusterContext'):
    super().__init__(plan, pool, num_clients)
    self._cluster = cluster
    # How many bytes of what kind have travelled.
    self.sent: collections.Counter[str] = collections.Counter()

  def run_clients(self, current: passes.Pass) -> None:
    if not current.client_steps or not self.num_clients:
      super().run_clients(current)  # There is nothing to do elsewhere.
      return
    for aggregation in current.aggregations:
      aggregation.start(self.server)
    pieces = cut(self.num_clients, self._cluster.num_pieces)
    results = self._cluster.run_pieces(self, current, pieces)
    with contextlib.closing(results):
      for number, (clients, done) in enumerate(zip(pieces, results, strict=True)):
        self._take(current, done, clients, is_first=number == 0)

  def _take(self, current, done, clients, is_first):
    unpacker = parcels.Unpacker()
    with tf.device(values.HOST):
      for aggregation, leaves in zip(current.aggregations, done.accumulators, strict=True):
        total = [unpacker.leaf(leaf) for leaf in leaves]
        if is_first:
          self.server.update(zip(aggregation.writes, total, strict=True))
        else:
          aggregation.add_sum(total, self.server, self._server_device)
      for client, kept in zip(clients, done.kept, strict=True):
        self.kept[client].update(unpacker.leaves(kept))


class ClusterContext(context.InProcessContext):
  """Spreads the clients of computations over a cluster."""

  def __init__(
    self, ray, started_ray, new_actor, num_workers, num_pieces, seconds_until_lost, **options
  ):
    super().__init__([values.HOST], 1, **options)
    self._ray = ray
    self._started_ray = started_ray
    self.num_pieces = num_pieces
    self._store = parcels.Store(ray.put)
    self._bytes: collections.Counter[str] = collections.Counter()
    self._clients_by_device: collections.Counter[str] = collections.Counter()
    self._team = team.Team(ray, new_actor, num_workers, seconds_until_lost)
    # At the exit of this process, Ray ends them by itself.
    weakref.finalize(self, self._team.end).atexit = False

  def _make_plan(self, computation):
    # Both sides plan what was serialised, so that both number its values alike.
    message = tff.framework.serialize_computation(computation)
    plan = context.make_plan(
      tff.framework.deserialize_computation(message),
      self._simulate_secure_sums_in_the_clear,
      with_merge=True,
    )
    self._store.add_for(plan, message)
    return plan

  def _new_round(self, plan, num_clients):
    return _ClusterRound(plan, self.pool, num_clients, self)

  def run_pieces(self, current_round: _ClusterRound, current: passes.Pass, pieces: list[range]):
    """Yields a `Done` for each piece of a pass, in client order."""
    plan = current_round.plan
    needed = current.needs.difference(*(step.writes for step in plan.zero_steps(current)))
    computation = self._store.find(plan)
    number = next(i for i, p in enumerate(plan.passes) if p is current)
    packer = parcels.Packer(store=None)
    server_values = self._store.add(
      packer.leaves({s: v for s, v in current_round.server.items() if s in needed})
    )
    sent = self._bytes = current_round.sent

    def call(actor, index):
      packer = parcels.Packer(self._store)
      clients = [
        packer.leaves({s: v for s, v in current_round.kept[i].items() if s in needed})
        for i in pieces[index]
      ]
      piece = workers.Piece(computation, number, server_values, clients, self._store.keys)  # type: ignore[arg-type]
      parcel = parcels.pack(piece)
      sent['clients'] += parcel.num_bytes
      keys = {computation.key, server_values.key, *packer.needs}  # type: ignore[union-attr]
      return actor.run.remote(parcel, self._store.references(keys))

    def name(index):
      return f'Clients {pieces[index][0]} to {pieces[index][-1]}'

    try:
      for clients, parcel in zip(pieces, self._team.run(len(pieces), call, name), strict=True):
        sent['results'] += parcel.num_bytes
        done = parcel.open()
        if isinstance(done, workers.Failed):
          raise client_pool.ClientError(clients[done.client_index], done.cause) from done.cause
        sent.update(done.fetched)  # Adds.
        self._clients_by_device.update(done.clients_by_device)
        yield done
    finally:
      self._store.drop(server_values)

  def describe(self) -> dict[str, object]:
    found = self._team.descriptions
    devices = [
      f'{device} of worker {i} on {worker["host"]}'
      for i, worker in enumerate(found)
      for device in worker['devices']
    ]
    return {
      'runtime': 'cluster',
      'shares_data': True,  # It sends arrays that stay in memory once.
      'devices': tuple(devices),
      'num_workers': len(found),
      'lost_workers': self._team.num_lost,
      'num_pieces': self.num_pieces,
      'clients_by_device': dict(self._clients_by_device),
      'bytes_in_last_round': dict(self._bytes),
    }


def create_cluster_context(
  address: str | None = None,
  num_workers: int | None = None,
  gpus_per_worker: float = 0,
  cpus_per_worker: int = 1,
  *,
  num_pieces: int | None = None,
  seconds_until_lost: float = 600.0,
  object_store_memory: int | None = None,
  default_num_clients: int = 0,
  simulate_secure_sums_in_the_clear: bool = False,
  deterministic: bool = False,
  allow_tf32: bool | None = None,
) -> tff.framework.SyncContext:
  """Creates a context that spreads the clients of each round over the machines of a Ray cluster.

  Each worker is an in-process runtime, on its share of CPUs and GPUs. What the server does runs in
  this process. A computation goes to each worker once, and so do arrays that stay in memory: those
  of the clients of a task of this package, and datasets that are given again in later rounds.

  A worker that dies costs the clients that it was at, which others do again; Ray puts another
  worker into its place as soon as it can. Ray of our own (`address=None`) listens on loopback only,
  asks for a token, and ends with this process in every way a process can end. A cluster of yours
  is as safe as you make it: see docs/runtimes.md.

  Args:
    address: The cluster: 'auto' for the one that this machine is part of, 'host:port', or
      'ray://host:port' from outside; None starts Ray on this machine.
    num_workers: How many workers; by default as many as the cluster has CPUs and GPUs for.
    gpus_per_worker: How many GPUs each of them has; a fraction shares one.
    cpus_per_worker: How many CPUs each of them has, which without a GPU is also how many clients it
      trains at the same time.
    num_pieces: Into how many pieces the clients of a round are cut; by default 4 for each worker.
      Results are the same bits for the same number, whatever the number of workers.
    seconds_until_lost: A worker that takes longer over a piece counts as dead.
    object_store_memory: The size in bytes of the object store, if Ray is started; Ray's own choice
      unless given.
    default_num_clients: The number of clients of a computation whose arguments do not tell it.
    simulate_secure_sums_in_the_clear: As in `create_in_process_context`.
    deterministic: As in `create_in_process_context`, on the workers.
    allow_tf32: As in `create_in_process_context`, on the workers.

  Returns:
    A context for `tff.framework.set_default_context`.

  Raises:
    ImportError: If Ray is not installed.
    ValueError: If a number is out of range, the cluster or this machine has not the CPUs or GPUs
      that are asked for, or this process is connected to another cluster.
    WorkerLostError: If no cluster answers, or the workers do not start.
  """
  for name, value, least in (
    ('num_workers', num_workers, 1),
    ('cpus_per_worker', cpus_per_worker, 1),
    ('num_pieces', num_pieces, 1),
    ('gpus_per_worker', gpus_per_worker, 0),
    ('seconds_until_lost', seconds_until_lost, 1),
  ):
    if value is not None and value < least:
      raise ValueError(f'`{name}` must be at least {least}, found {value}.')
  # This process computes for the server, as the in-process runtime does.
  context.create_in_process_context(
    devices=[values.HOST], deterministic=deterministic, allow_tf32=allow_tf32
  )
  num_cpus = num_workers * cpus_per_worker if num_workers else os.cpu_count() or 1
  started, ray = connection.connect(address, num_cpus, object_store_memory)
  per_worker = {'CPU': cpus_per_worker, 'GPU': gpus_per_worker}
  num_workers = connection.check_resources(ray, per_worker, num_workers)
  options = {
    'devices': None if gpus_per_worker else [values.HOST],
    'num_threads': None if gpus_per_worker else cpus_per_worker,
    'deterministic': deterministic,
    'allow_tf32': allow_tf32,
  }
  actor_class = ray.remote(concurrency_groups={team.CONTROL: 1})(workers.Worker).options(
    num_cpus=cpus_per_worker, num_gpus=gpus_per_worker, max_restarts=0, scheduling_strategy='SPREAD'
  )
  return ClusterContext(
    ray,
    started,
    lambda: actor_class.remote(options, simulate_secure_sums_in_the_clear),
    num_workers,
    num_pieces or _PIECES_PER_WORKER * num_workers,
    seconds_until_lost,
    default_num_clients=default_num_clients,
    simulate_secure_sums_in_the_clear=simulate_secure_sums_in_the_clear,
  )


set_cluster_context = default_context.setter_of(
  create_cluster_context,
  'Makes a Ray cluster the default runtime; see `create_cluster_context`.',
)
