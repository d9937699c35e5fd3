"""The client's end of a TFF worker: a gRPC channel, and the executors that speak through it."""

import time

import grpc
import tensorflow_federated as tff

_MAX_MESSAGE_BYTES = 2_000_000_000
_CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
)
_SECONDS_BETWEEN_LOOKS = 0.02


class Connection:
  """A channel to the worker at an address ('host:port'); it connects in the background."""

  def __init__(self, address: str):
    self._channel = grpc.insecure_channel(address, _CHANNEL_OPTIONS)
    self.stub = tff.framework.RemoteExecutorGrpcStub(self._channel)

  def wait_until_ready(self, seconds: float) -> bool:
    """Waits until the worker answers, at most `seconds`, and returns whether it did."""
    deadline = time.monotonic() + seconds
    while not self.stub.is_ready and time.monotonic() < deadline:
      time.sleep(_SECONDS_BETWEEN_LOOKS)
    return self.stub.is_ready

  def close(self) -> None:
    """Ends the connection, and with an error all calls that wait for an answer."""
    self._channel.close()


def executor_factory(get_stub, default_num_clients: int) -> tff.framework.ExecutorFactory:
  """Builds the executors of one worker.

  Args:
    get_stub: A function without arguments that returns a connected stub, or raises when there is none.
    default_num_clients: The number of clients of a computation whose arguments do not tell it.

  Returns:
    A factory with one executor for each number of clients.
  """

  def create_executor(cardinalities):
    cardinalities.setdefault(tff.CLIENTS, default_num_clients)
    executor = tff.framework.RemoteExecutor(get_stub())
    executor.set_cardinalities(cardinalities)
    return executor

  return tff.framework.ResourceManagingExecutorFactory(create_executor)
