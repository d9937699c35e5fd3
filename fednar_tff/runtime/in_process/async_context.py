# SPDX-License-Identifier: Apache-2.0
"""The in-process runtime for programs that await computations, as those of `tff.program` do."""

import asyncio
import concurrent.futures
from collections.abc import Sequence

import tensorflow_federated as tff

from fednar_tff.runtime.in_process import cancellation
from fednar_tff.runtime.in_process import context as in_process


class _AsyncInProcessContext(tff.framework.AsyncContext):
  """Runs computations in a thread of their own, one after the other."""

  def __init__(self, context):
    self._context = context
    # One thread: the clients of a computation have all cores, and a second computation would take
    # them away.
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'computations')

  async def invoke(self, comp, arg):
    future = self._thread.submit(self._context.invoke, comp, arg)
    try:
      return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
      if not future.cancel():  # It runs already; otherwise it never will.
        cancellation.cancel_running()
      raise

  def describe(self) -> dict[str, object]:
    return self._context.describe()


def create_async_in_process_context(
  *,
  devices: Sequence[str] | None = None,
  num_threads: int | None = None,
  default_num_clients: int = 0,
  simulate_secure_sums_in_the_clear: bool = False,
) -> tff.framework.AsyncContext:
  """Creates a context whose computations are awaited, as those of `tff.program` are.

  ```
  context = create_async_in_process_context()
  tff.framework.set_default_context(tff.program.NativeFederatedContext(context))
  asyncio.run(tff.learning.programs.train_model(...))
  ```

  While a computation runs, in a thread, the program can write checkpoints and metrics. Computations
  run in the order in which they are called, one at a time. Each has all devices and gives the same
  bits as on `create_in_process_context`. One that is cancelled stops.

  Args:
    devices: As in `create_in_process_context`.
    num_threads: As in `create_in_process_context`.
    default_num_clients: As in `create_in_process_context`.
    simulate_secure_sums_in_the_clear: As in `create_in_process_context`.

  Returns:
    A context for `tff.program.NativeFederatedContext`, or for `tff.framework.set_default_context`.

  Raises:
    ValueError: As from `create_in_process_context`.
  """
  return _AsyncInProcessContext(
    in_process.create_in_process_context(
      devices=devices,
      num_threads=num_threads,
      default_num_clients=default_num_clients,
      simulate_secure_sums_in_the_clear=simulate_secure_sums_in_the_clear,
    )
  )
