# SPDX-License-Identifier: Apache-2.0
"""TFF's own local runtime, without the worker process that it leaves behind."""

import tensorflow_federated as tff

from fednar_tff.runtime import default_context
from fednar_tff.runtime.workers import connection, execution, launcher

_SECONDS_TO_START = 60.0


class _LocalWorker(execution.Worker):
  """Starts a worker at the first call, and a new one when it has died."""

  def __init__(self, max_concurrent_computation_calls: int):
    super().__init__()
    self._max_concurrent_computation_calls = max_concurrent_computation_calls
    self._process: launcher.WorkerProcess | None = None
    self._connection: connection.Connection | None = None

  def _connect(self):
    if self._process is None or not self._process.is_running:
      self._process = launcher.WorkerProcess(
        max_concurrent_computation_calls=self._max_concurrent_computation_calls
      )
      self._connection = connection.Connection(f'localhost:{self._process.port}')
      if not self._connection.wait_until_ready(_SECONDS_TO_START):
        self._process.stop()
        raise RuntimeError(f"TFF's worker did not answer within {_SECONDS_TO_START:.0f} s.")
    assert self._connection is not None  # It comes with the process.
    return self._connection.stub

  def _disconnect(self):
    if self._process is not None:
      self._process.stop()


class _NativeContext(execution.WorkerContext):
  """Runs computations on a worker of our own."""

  def __init__(self, worker: _LocalWorker, default_num_clients: int):
    super().__init__(worker, default_num_clients)
    self._worker = worker

  def invoke(self, comp, arg):
    with execution.interruptible([self._worker]):
      return super().invoke(comp, arg)

  def describe(self) -> dict[str, object]:
    return {
      'runtime': 'native',
      'shares_data': False,
      'devices': ('CPU of one local TFF worker',),
    }


def create_native_context(
  default_num_clients: int = 0, max_concurrent_computation_calls: int = -1
) -> tff.framework.SyncContext:
  """Creates TFF's local C++ runtime, whose worker ends with this process, however that ends.

  The worker starts at the first computation. It ends with the context, at a normal exit, after an
  exception or Ctrl-C, and after SIGTERM or `kill -9` of this process.

  Args:
    default_num_clients: The number of clients of a computation whose arguments do not tell it.
    max_concurrent_computation_calls: How many calls of one computation the worker runs at the same
      time; not positive means no limit.

  Returns:
    A context for `tff.framework.set_default_context`.
  """
  return _NativeContext(_LocalWorker(max_concurrent_computation_calls), default_num_clients)


set_native_context = default_context.setter_of(
  create_native_context,
  "Makes TFF's local C++ runtime the default; see `create_native_context`.",
)
