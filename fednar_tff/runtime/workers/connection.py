# SPDX-License-Identifier: Apache-2.0
"""This process's end of the connection to a TFF worker: a gRPC channel."""

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
