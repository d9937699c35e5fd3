# SPDX-License-Identifier: Apache-2.0
"""Runs clients at the same time, on one or more devices, and returns results in client order."""

import collections
import concurrent.futures
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import tensorflow as tf

_Result = TypeVar('_Result')


class ClientError(RuntimeError):
  """A client's computation failed; `client_index` says whose, the cause says all there is to know.

  The message is one line. For an error of TensorFlow it names the operation, too.
  """

  def __init__(self, client_index: int, cause: Exception):
    super().__init__(f'Client {client_index} failed{_describe(cause)}')
    self.client_index = client_index
    self.__cause__ = cause


def _describe(error: Exception) -> str:
  """Returns the end of a sentence: where an error came from, and what it says, in one line."""
  text = error.message if isinstance(error, tf.errors.OpError) else str(error)
  node = re.search(r'\{\{node ([^}]+)\}\}', text)
  # What TensorFlow puts around the reason: a headline, a stack trace, the node once more.
  text = re.sub(r'^Graph execution error:\s*', '', text)
  text = re.sub(r'(?ms)^Detected at node .*?^(?!<stack|  |$)', '', text)
  text = re.sub(r'(?s)\s*(\[\[\{\{node |Traceback \(most recent).*', '', text)
  reason = ' '.join(text.split()) or 'no reason given'
  where = f' in operation {node[1]}' if node else ''
  return f'{where}: {type(error).__name__}: {reason}'


def _first_cause(under_way) -> ClientError:
  """Finds the first failure: when a client fails, TensorFlow cancels those that run with it."""
  errors = []
  for index, future in under_way:
    future.cancel()
    if not future.cancelled() and future.exception() is not None:
      error = future.exception()
      if not isinstance(error, ClientError):
        error = ClientError(index, error)
      errors.append(error)
  causes = [e for e in errors if not isinstance(e.__cause__, tf.errors.CancelledError)]
  return (causes or errors)[0]


class ClientPool:
  """Threads for clients. Client `i` always runs on device `i mod len(devices)`."""

  def __init__(self, devices: Sequence[str], num_threads: int):
    """Makes the pool.

    Args:
      devices: The devices that clients go to in turn.
      num_threads: How many clients run at the same time, on all devices together. Each device runs
        at least one.
    """
    self.devices = tuple(devices)
    # Where clients really ran, which only those know who look at their results.
    self.clients_by_device: collections.Counter[str] = collections.Counter()
    threads_per_device = -(-num_threads // len(devices))
    self.num_threads = threads_per_device * len(devices)
    self._executors = [
      concurrent.futures.ThreadPoolExecutor(threads_per_device, f'clients on {device}')
      for device in devices
    ]

  def map(self, fn: Callable[[int, str], _Result], num_clients: int) -> Iterator[_Result]:
    """Yields `fn(client_index, device)` of each client, in client order; see `map_groups`."""
    return self.map_groups(
      lambda clients, device: fn(clients[0], device), num_clients, lambda num_left: 1
    )

  def map_groups(
    self,
    fn: Callable[[range, str], _Result],
    num_clients: int,
    size_fn: Callable[[int], int],
  ) -> Iterator[_Result]:
    """Yields `fn(clients, device)` of each group of clients, in client order.

    At most twice as many groups as there are threads are under way or wait to be taken, so memory
    does not grow with the number of clients.

    Args:
      fn: What a group of clients does. If it knows which client failed it raises a `ClientError`.
      num_clients: The number of clients.
      size_fn: From the number of clients that wait to how many of them are the next group. Only
        where there is one device may groups have more than one client.

    Yields:
      What `fn` returns.

    Raises:
      ClientError: If `fn` raises an exception.
    """
    window = 2 * self.num_threads
    under_way: collections.deque[tuple[int, concurrent.futures.Future[_Result]]] = (
      collections.deque()
    )
    start = 0
    try:
      while start < num_clients or under_way:
        if start < num_clients:
          clients = range(start, start + size_fn(num_clients - start))
          place = start % len(self.devices)
          future = self._executors[place].submit(fn, clients, self.devices[place])
          under_way.append((start, future))
          start = clients.stop
        if len(under_way) == window or start == num_clients:
          first, future = under_way.popleft()
          try:
            result = future.result()
          except Exception:
            error = _first_cause([(first, future), *under_way])
            raise error from error.__cause__
          # The loop must not hold on to what the caller drops.
          del future
          yield result
          del result
    finally:
      for _, future in under_way:
        future.cancel()
