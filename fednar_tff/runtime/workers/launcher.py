# SPDX-License-Identifier: Apache-2.0
"""TFF's C++ worker as a process that never outlives the Python process that started it."""

import os
import pathlib
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence

import tensorflow_federated as tff

from fednar_tff.runtime.workers import connection as connections

_SUPERVISOR = pathlib.Path(__file__).with_name('supervisor.py')
_SECONDS_TO_END = 5
_SECONDS_BETWEEN_LOOKS = 0.2
PORTS = range(1, 2**16)


def _worker_binary() -> pathlib.Path:
  path = pathlib.Path(tff.__file__).parent / 'data' / 'worker_binary'
  if not path.is_file():
    raise RuntimeError(
      f'TFF {tff.__version__} has no worker at {path}: its wheel ships one for Linux and macOS.'
    )
  return path


def unused_port() -> int:
  """Returns a port that nothing listens on."""
  with socket.socket() as probe:
    probe.bind(('', 0))
    return probe.getsockname()[1]


def _check_port(port: int) -> None:
  """Raises an error if a port is not free: the worker itself would share it, or say nothing."""
  if port not in PORTS:
    raise ValueError(f'`port` must be from {PORTS[0]} to {PORTS[-1]}, found {port}.')
  with socket.socket() as probe:
    # Connections that have just ended do not keep a listener away.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      probe.bind(('', port))
    except OSError as e:
      raise OSError(e.errno, f'Cannot listen on port {port}: {e.strerror}') from e


def start_supervised(
  command: Sequence[str], *, folder: pathlib.Path | None = None, **options
) -> subprocess.Popen:
  """Starts a command that ends when this process does, however this process ends.

  Args:
    command: The command.
    folder: A folder that is removed when the command has ended.
    **options: Those of `subprocess.Popen`.

  Returns:
    The command's supervisor, to be ended with `end`.
  """
  own = [] if folder is None else [f'--remove={folder}']
  return subprocess.Popen(
    [sys.executable, '-I', '-S', str(_SUPERVISOR), str(os.getpid()), *own, *command],
    stdin=subprocess.DEVNULL,
    # Ctrl-C in a terminal interrupts the computation, not the worker: a notebook goes on with the
    # same one.
    start_new_session=True,
    **options,
  )


def end(supervisor: subprocess.Popen) -> None:
  """Ends a supervisor, which ends its command first; killing it is the last resort."""
  supervisor.terminate()
  try:
    supervisor.wait(_SECONDS_TO_END)
  except subprocess.TimeoutExpired:
    supervisor.kill()
    supervisor.wait()


class WorkerProcess:
  """One running `worker_binary` of TFF, which ends with this object or with this process."""

  def __init__(self, port: int | None = None, max_concurrent_computation_calls: int = -1):
    """Starts the worker.

    Args:
      port: The port to listen on, on every interface; `None` picks an unused one.
      max_concurrent_computation_calls: How many calls of one computation the worker runs at the
        same time; not positive means no limit.

    Raises:
      OSError: If the port is in use or not ours to use.
      ValueError: If there is no such port.
    """
    if port is not None:
      _check_port(port)
    self.port = unused_port() if port is None else port
    self._supervisor = start_supervised(
      [
        str(_worker_binary()),
        f'--port={self.port}',
        f'--max_concurrent_computation_calls={max_concurrent_computation_calls}',
      ],
      stdout=subprocess.DEVNULL,
      env={'TF_CPP_MIN_LOG_LEVEL': '1', **os.environ},
    )
    # `finalize` runs when this object is dropped and at interpreter exit; the supervisor covers all
    # other ends.
    self._finalizer = weakref.finalize(self, end, self._supervisor)

  @property
  def is_running(self) -> bool:
    """Whether the worker has neither crashed nor been stopped."""
    return self._supervisor.poll() is None

  def wait_until_ready(self, seconds: float) -> bool:
    """Waits until the worker answers or ends, at most `seconds`, and returns whether it answers."""
    connection = connections.Connection(f'localhost:{self.port}')
    deadline = time.monotonic() + seconds
    try:
      while self.is_running and time.monotonic() < deadline:
        if connection.wait_until_ready(_SECONDS_BETWEEN_LOOKS):
          return True
      return False
    finally:
      connection.close()

  def wait(self) -> int:
    """Waits until the worker ends by itself and returns its exit status."""
    return self._supervisor.wait()

  def stop(self) -> None:
    """Ends the worker now."""
    self._finalizer()
