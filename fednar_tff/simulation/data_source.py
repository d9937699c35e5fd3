# SPDX-License-Identifier: Apache-2.0
"""The clients of each round and their data, for a run and for other drivers of rounds."""

import json
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from fednar_tff import algorithms, signatures
from fednar_tff.simulation import seeds as seeds_lib
from fednar_tff.tasks import Task

_OTHER_PROCESS = (
  tff.framework.SyncExecutionContext,
  tff.framework.AsyncExecutionContext,
  tff.framework.MergeableCompExecutionContext,
)


class ClientBatches:
  """Which clients take part in a round, and their data: a function of the round's number."""

  def __init__(
    self,
    task: Task,
    process: Any,
    *,
    seeds: seeds_lib.Seeds,
    packed: bool | None = None,
    share_data: bool | None = None,
    batch_size: int,
    local_steps: int | None = None,
    local_epochs: int | None = None,
  ):
    """Takes the arguments of `run`."""
    self._task = task
    self._seeds = seeds
    size: Any = dict(batch_size=batch_size, local_steps=local_steps, local_epochs=local_epochs)
    task.check_batches(**size)
    arguments = {**size, 'seed': seeds.batches}
    self.packed = find_packed(process, packed)
    # What the batches are, but for which clients they are of.
    self.description = {
      **arguments,
      'sampling seed': seeds.sampling,
      'partition of the data': task.partition.hash,
    }
    share_data = find_share_data(share_data)
    if self.packed:
      arguments['own_rows_only'] = not share_data
      if algorithms.takes_data_size(process):
        arguments['with_size'] = True
    self._arguments = arguments

  def sample(self, round_index: int, clients_per_round: int) -> list[str]:
    """Returns the clients of a round, counted from 0."""
    return seeds_lib.sample_clients(
      self._task.partition.client_ids, clients_per_round, round_index, self._seeds.sampling
    )

  def of_client(self, client_id: str, round_index: int) -> Any:
    """Returns what a client trains on in a round, counted from 0."""
    make: Any = self._task.packed_client if self.packed else self._task.client_batches
    return make(client_id, round_index, **self._arguments)


def find_packed(process: Any, packed: bool | None) -> bool:
  """Returns whether a process takes packed clients.

  Args:
    process: The algorithm.
    packed: What the caller says about it; None for nothing.

  Raises:
    ValueError: If the caller says something else than the process.
  """
  takes_packed = algorithms.takes_packed_clients(process)
  if packed is not None and packed != takes_packed:
    raise ValueError(
      f'`packed` must be {takes_packed} for a process that was built '
      f'{"with" if takes_packed else "without"} `loop_implementation=algorithms.PACKED`, '
      f'found packed={packed!r}.'
    )
  return takes_packed


def find_share_data(share_data: bool | None) -> bool:
  """Returns whether clients may refer to data in the memory of this process.

  A context of `fednar_tff.runtime` says so in its description. TFF's own contexts compute in
  another process.

  Args:
    share_data: What the caller says about it; None for nothing.

  Raises:
    ValueError: If the caller wants to share data with another process.
  """
  context = tff.framework.get_context_stack().current
  if hasattr(context, 'describe'):
    shares = context.describe().get('shares_data', False)
  else:
    shares = not isinstance(context, _OTHER_PROCESS)
  if share_data and not shares:
    raise ValueError(
      f'`share_data` must be False or None on {type(context).__name__.lstrip("_")}, '
      'which computes in another process, found True.'
    )
  return shares if share_data is None else share_data


class TaskDataSource(tff.program.FederatedDataSource):
  """The clients that `simulation.run` would train on, made by `build_data_source`."""

  def __init__(self, clients: ClientBatches, federated_type: tff.FederatedType, with_ids: bool):
    self._clients = clients
    self._type = federated_type
    self._with_ids = with_ids

    class Iterator(_Iterator):
      """Of this data source: what is saved of an iterator is its round, and no task."""

      data_source = self

    self._iterator_class = Iterator

  @property
  def federated_type(self) -> tff.FederatedType:
    """The type of the clients' data."""
    return self._type

  @property
  def description(self) -> dict[str, Any]:
    """What sets these data apart from others, as values of JSON by name."""
    return self._clients.description

  def iterator(self) -> tff.program.FederatedDataSourceIterator:
    """Returns the rounds from the first on; `tff.program` saves how many of them are done."""
    return self._iterator_class(0)

  def selection_fn(self, clients_per_round: int) -> Callable[[int], list[Any]]:
    """Returns a `training_selection_fn` for `tff.simulation.run_training_process`.

    Rounds are counted from 1 there.

    Args:
      clients_per_round: How many clients take part in a round.
    """
    self._clients.sample(0, clients_per_round)  # Complains now rather than in the first round.
    return lambda round_num: self.select(round_num - 1, clients_per_round)

  def select(self, round_index: int, clients_per_round: int) -> list[Any]:
    """Returns the data of the clients of a round, with their ids if the process takes these.

    Args:
      round_index: The round, counted from 0.
      clients_per_round: How many clients take part in it.
    """
    ids = self._clients.sample(round_index, clients_per_round)
    data = [self._clients.of_client(client_id, round_index) for client_id in ids]
    return list(zip(ids, data)) if self._with_ids else data


class _Iterator(tff.program.FederatedDataSourceIterator):
  """Counts rounds. Each data source has its own subclass: only the class restores it."""

  data_source: TaskDataSource

  def __init__(self, round_index: int):
    self._round_index = round_index

  @classmethod
  def from_bytes(cls, buffer: bytes):
    saved = json.loads(buffer)
    wanted = cls.data_source.description
    names = [n for n in wanted if saved['description'].get(n) != wanted[n]]
    if names:
      raise ValueError(
        'The saved program is of other data: '
        + '; '.join(f'{n} {saved["description"].get(n)} there, {wanted[n]} now' for n in names)
        + '. Choose another directory for its states.'
      )
    return cls(saved['round'])

  def to_bytes(self) -> bytes:
    saved = {'round': self._round_index, 'description': self.data_source.description}
    return json.dumps(saved).encode()

  def __deepcopy__(self, memo):
    return type(self)(self._round_index)  # The data stays what it is.

  @property
  def federated_type(self) -> tff.FederatedType:
    return self.data_source.federated_type

  def select(self, k: int | None = None) -> list[Any]:
    if k is None:
      raise ValueError('`k`, the number of clients, must be given, found None.')
    selected = self.data_source.select(self._round_index, k)
    self._round_index += 1
    return selected


@signatures.with_arguments_of(ClientBatches, without=('seeds', 'packed'))
def build_data_source(
  task: Task,
  process: Any,
  *,
  seed: int | seeds_lib.Seeds = 0,
  sampling_seed: int | None = None,
  batch_seed: int | None = None,
  **client_arguments: Any,
) -> TaskDataSource:
  """Returns a task's clients for TFF's own drivers: those of `run`, with the same batches.

  It is the `train_data_source` of `tff.learning.programs.train_model`; its
  `selection_fn(clients_per_round)` is the `training_selection_fn` of
  `tff.simulation.run_training_process`. What it hands out is a function of the round's number, so a
  program that resumes goes on with the clients that it would have had.

  Args:
    task: As in `run`.
    process: As in `run`, or what `keep_client_states` makes of it, which takes the clients' ids,
      too.
    seed: As in `run`.
    sampling_seed: As in `run`.
    batch_seed: As in `run`.
    **client_arguments: `batch_size`, `local_steps` or `local_epochs`, and `share_data`, as in
      `run`.

  Raises:
    ValueError: If a number is out of range; when a saved program is loaded, if it has other data.
  """
  seeds = seeds_lib.derive_seeds(seed, sampling=sampling_seed, batches=batch_seed)
  clients = ClientBatches(task, process, seeds=seeds, **client_arguments)
  *_, data_type = process.next.type_signature.parameter
  return TaskDataSource(clients, data_type, with_ids=getattr(process, 'takes_client_ids', False))
