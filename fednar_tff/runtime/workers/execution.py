# SPDX-License-Identifier: Apache-2.0
"""What the runtimes on TFF's workers share: a context on one worker, and the end of a computation.

TFF retries a computation whose worker does not answer. A computation that the user interrupts must
end instead. So a worker that is interrupted gives no more connections until the next computation.
"""

import abc
import contextlib
from collections.abc import Iterator, Sequence

import tensorflow_federated as tff


class Worker(abc.ABC):
  """A worker that runs computations, until it is interrupted."""

  def __init__(self):
    self._interrupted = False

  @abc.abstractmethod
  def _connect(self) -> tff.framework.RemoteExecutorGrpcStub:
    """Returns a stub that is connected, or raises an error if there is none."""

  @abc.abstractmethod
  def _disconnect(self) -> None:
    """Ends the calls that wait for an answer."""

  def get_stub(self) -> tff.framework.RemoteExecutorGrpcStub:
    """Returns a connected stub. TFF asks for one again whenever a call failed."""
    if self._interrupted:
      raise RuntimeError('The computation was interrupted.')
    return self._connect()

  def interrupt(self) -> None:
    """Ends what the worker does for this process; it does nothing more until `resume`."""
    self._interrupted = True
    self._disconnect()

  def resume(self) -> None:
    """Lets the worker run computations again."""
    self._interrupted = False


@contextlib.contextmanager
def interruptible(workers: Sequence[Worker]) -> Iterator[None]:
  """Lets workers run the computation of the block, and interrupts them when the user stops it.

  Without this, a worker would compute to the end, and the end of this process would wait for it.

  Args:
    workers: The workers.

  Yields:
    Nothing.
  """
  for worker in workers:
    worker.resume()
  try:
    yield
  except (KeyboardInterrupt, SystemExit):
    for worker in workers:
      worker.interrupt()
    raise


class WorkerContext(tff.framework.SyncExecutionContext):
  """TFF's synchronous execution context on one worker."""

  def __init__(self, worker: Worker, default_num_clients: int):
    """Makes the context.

    Args:
      worker: The worker.
      default_num_clients: The number of clients of a computation whose arguments do not tell it.
    """

    def create_executor(cardinalities):
      cardinalities.setdefault(tff.CLIENTS, default_num_clients)
      executor = tff.framework.RemoteExecutor(worker.get_stub())
      executor.set_cardinalities(cardinalities)
      return executor

    super().__init__(
      tff.framework.ResourceManagingExecutorFactory(create_executor),
      tff.backends.native.desugar_and_transform_to_native,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )
