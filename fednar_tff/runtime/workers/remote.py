# SPDX-License-Identifier: Apache-2.0
"""A round spread over many machines: TFF's own workers, each with a part of the clients."""

import threading
import weakref
from collections.abc import Sequence

import tensorflow_federated as tff
from absl import logging

from fednar_tff.runtime import default_context
from fednar_tff.runtime.workers import connection, execution, launcher, mergeable

_SECONDS_TO_CONNECT = 5.0


class WorkerLostError(ConnectionError):
  """A worker does not answer, or no worker is left that does."""


class _RemoteWorker(execution.Worker):
  """One worker: its connection, and the context that runs computations on it."""

  def __init__(self, address: str, default_num_clients: int):
    super().__init__()
    self.address = address
    self.is_lost = False
    self._connection = connection.Connection(address)
    self.context = execution.WorkerContext(self, default_num_clients)

  def answers(self, seconds: float) -> bool:
    return self._connection.wait_until_ready(seconds)

  def resume(self):
    if self._interrupted:
      self._connection = connection.Connection(self.address)
    super().resume()

  def _connect(self):
    if not self._connection.stub.is_ready:
      self._connection.close()
      self._connection = connection.Connection(self.address)
      if not self.answers(_SECONDS_TO_CONNECT):
        raise WorkerLostError(f'The worker at {self.address} does not answer.')
    return self._connection.stub

  def _disconnect(self):
    self._connection.close()


class _Workers:
  """All workers; what one of them does not finish, another one does."""

  def __init__(self, workers: Sequence[_RemoteWorker]):
    self._workers = workers
    self._lock = threading.Lock()

  def live(self) -> list[_RemoteWorker]:
    return [worker for worker in self._workers if not worker.is_lost]

  def invoke(self, computation, argument, first_choice: int = 0):
    """Runs a computation on one worker, or on the next if that one is lost meanwhile."""
    while live := self.live():
      worker = live[first_choice % len(live)]
      try:
        return worker.context.invoke(computation, argument)
      except WorkerLostError:
        with self._lock:
          worker.is_lost = True
          left = [other.address for other in self.live()]
        logging.warning(
          'The worker at %s is lost; its clients are done again by %s.', worker.address, left
        )
    addresses = ', '.join(worker.address for worker in self._workers)
    raise WorkerLostError(f'No worker is left: {addresses} do not answer.')


class _RemoteContext(tff.framework.SyncContext):
  """Splits the clients of a computation over the workers, and merges what these return."""

  def __init__(self, workers: Sequence[_RemoteWorker]):
    self._all = workers
    self._workers = _Workers(workers)
    self._forms: dict[int, tff.Computation | None] = {}
    self._merging = mergeable.Merging(len(workers), self._workers.invoke)

  def _mergeable_form(self, computation):
    """Returns TFF's mergeable form, or `None` if the computation is one for a single worker."""
    key = id(computation)
    if key not in self._forms:
      self._forms[key] = _compile(computation)
      weakref.finalize(computation, self._forms.pop, key, None).atexit = False
    return self._forms[key]

  def invoke(self, comp, arg):
    form = self._mergeable_form(comp)
    with execution.interruptible(self._all):
      if form is None:
        return self._workers.invoke(comp, arg)
      result = self._merging.run(form, arg)
      return tff.types.type_to_py_container(result, comp.type_signature.result)

  def describe(self) -> dict[str, object]:
    return {
      'runtime': 'remote',
      'shares_data': False,
      'devices': tuple(f'CPU of the worker at {worker.address}' for worker in self._workers.live()),
      'lost_workers': tuple(worker.address for worker in self._all if worker.is_lost),
    }


def _compile(computation):
  if not mergeable.has_clients(computation.type_signature.parameter):
    return None  # Without clients there is nothing to spread.
  try:
    return tff.backends.native.compile_to_mergeable_comp_form(computation)
  except ValueError:
    logging.warning(
      'A computation aggregates more than once in a row, so it cannot be split: '
      'one worker runs it alone.'
    )
    return None


def create_remote_context(
  workers: Sequence[str], *, default_num_clients: int = 0
) -> tff.framework.SyncContext:
  """Creates a context that spreads the clients of each round over TFF's workers on other machines.

  Start a worker with `python -m fednar_tff.runtime.worker --port=8000`; its help says how to
  protect it. A worker that dies costs its part of the round, which another one does again.
  Arguments are serialised: the runtimes that run on this machine are faster for small rounds.

  Args:
    workers: The addresses of the workers, each 'host:port'.
    default_num_clients: The number of clients of a computation whose arguments do not tell it.

  Returns:
    A context for `tff.framework.set_default_context`.

  Raises:
    ValueError: If no address is given, or one that is not 'host:port'.
    WorkerLostError: If a worker does not answer within seconds; the message names it.
  """
  if not workers:
    raise ValueError('`workers` must be the address of at least one worker, found none.')
  for address in workers:
    host, _, port = address.rpartition(':')
    if not host or not port.isdigit() or int(port) not in launcher.PORTS:
      raise ValueError(
        f"`workers` must be addresses 'host:port' with a port up to {launcher.PORTS[-1]}, "
        f'found {address!r}.'
      )
  connected = [_RemoteWorker(address, default_num_clients) for address in workers]
  silent = [worker.address for worker in connected if not worker.answers(_SECONDS_TO_CONNECT)]
  if silent:
    raise WorkerLostError(
      f'No TFF worker answers at {", ".join(silent)} (waited {_SECONDS_TO_CONNECT:.0f} s); '
      'start one there with: python -m fednar_tff.runtime.worker --port=PORT'
    )
  return _RemoteContext(connected)


set_remote_context = default_context.setter_of(
  create_remote_context,
  "Makes TFF's workers on other machines the default runtime; see `create_remote_context`.",
)
