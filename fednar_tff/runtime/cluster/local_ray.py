# SPDX-License-Identifier: Apache-2.0
"""Ray on this machine, for this process alone: on loopback, with a token, gone when it ends.

`ray.init()` would listen on every interface, and some of its processes outlive a driver that is
killed. So Ray is started by the same supervisor as TFF's workers.
"""

import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from typing import Any

from absl import logging

from fednar_tff.runtime.workers import launcher, remote

_SECONDS_TO_START = 180
# Ray's sockets lie below this folder, and a socket's name has at most 107 characters.
_LONGEST_TEMPORARY_FOLDER = 20
# What `ray start` says when it is ready.
_STARTED = 'Ray runtime started'
# Ray reads these when it is imported. It would print an error if its metrics do not start in time,
# and a paragraph for each worker that dies, which this runtime says in one line.
_QUIET = {
  'RAY_enable_metrics_collection': '0',
  'RAY_DEDUP_LOGS_SKIP_REGEX': 'A worker died or was killed',
}
# And these, where it is started here. The first keeps it on loopback, on Linux, too.
_ENVIRONMENT = {
  'RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER': '0',
  'RAY_USAGE_STATS_ENABLED': '0',
  'RAY_AUTH_MODE': 'token',
  # As any program: Ray would let others go first.
  'RAY_worker_niceness': '0',
}
_prepared = False
# The address that this process has connected to, as it was given.
joined: str | None = None
# The one that runs; several contexts share it.
_running: 'weakref.ref[LocalRay] | None' = None


def import_ray() -> Any:
  """Imports Ray, or says which extra brings it."""
  for name, value in _QUIET.items():
    os.environ.setdefault(name, value)
  try:
    import ray
  except ImportError as e:
    raise ImportError(
      'The cluster runtime needs Ray, which the extra [cluster] brings: pip install '
      "'fednar_tff[cluster]'"
    ) from e
  return ray


def init(ray: Any, address: str) -> None:
  """Connects this process to a cluster, without what Ray says to all its users."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', FutureWarning)
    ray.init(address=address, log_to_driver=False, logging_level='critical')
  global joined
  joined = address


def is_connected() -> bool:
  """Returns whether this process is connected to a Ray cluster, without importing Ray."""
  ray = sys.modules.get('ray')
  return ray is not None and ray.is_initialized()


def _prepare_environment() -> bool:
  """Makes the Ray that is imported next a private one; returns False if it is imported already."""
  global _prepared
  if not _prepared and 'ray' not in sys.modules:
    os.environ.update(_ENVIRONMENT)
    os.environ['RAY_AUTH_TOKEN'] = secrets.token_hex(32)
    _prepared = True
  return _prepared


def running() -> 'LocalRay | None':
  """Returns Ray if it was started here and has not ended."""
  return None if _running is None else _running()


class LocalRay:
  """A Ray cluster of one machine, which ends with this object or with this process."""

  def __init__(self, num_cpus: int, object_store_memory: int | None):
    """Starts Ray and connects to it.

    Args:
      num_cpus: How many cores Ray may hand out.
      object_store_memory: The size of its object store in bytes; Ray's own choice if None.

    Raises:
      WorkerLostError: If Ray does not start; the message has its last line.
    """
    is_private = _prepare_environment()
    ray = import_ray()
    if not is_private:
      logging.warning(
        'Ray was imported before, so it starts on every interface of this machine and without a '
        'token: whoever reaches its ports can run code here. Set the cluster context before '
        '`import ray` to keep it on loopback.'
      )
    parent = tempfile.gettempdir()
    if len(parent) > _LONGEST_TEMPORARY_FOLDER:
      parent = '/tmp'
    folder = pathlib.Path(tempfile.mkdtemp(prefix='fednar_ray_', dir=parent))
    port = launcher.unused_port()
    host = '127.0.0.1' if is_private else ray.util.get_node_ip_address()
    command = [
      *(sys.executable, '-m', 'ray.scripts.scripts', 'start', '--head', '--block'),
      *(f'--node-ip-address={host}', f'--port={port}', f'--num-cpus={num_cpus}'),
      *('--include-dashboard=false', '--disable-usage-stats', f'--temp-dir={folder}'),
      *('--min-worker-port=0', '--max-worker-port=0'),  # Any that is unused.
      f'--ray-client-server-port={launcher.unused_port()}',
    ]
    if object_store_memory is not None:
      command.append(f'--object-store-memory={object_store_memory}')
    with tempfile.TemporaryFile() as log:
      supervisor = launcher.start_supervised(
        command, stdout=log, stderr=subprocess.STDOUT, folder=folder
      )
      self.stop = weakref.finalize(self, _stop, supervisor, folder)
      self._wait(supervisor, log)
    init(ray, f'{host}:{port}')
    global _running
    _running = weakref.ref(self)

  def _wait(self, supervisor, log):
    deadline = time.monotonic() + _SECONDS_TO_START
    has_failed = False
    while not has_failed:
      has_failed = supervisor.poll() is not None or time.monotonic() > deadline
      # After the look, so that nothing is missed; not `read`, which moves the place Ray writes to.
      said = os.pread(log.fileno(), 2**20, 0).decode(errors='replace')
      if _STARTED in said:
        return
      time.sleep(0.1)
    self.stop()
    last = next((line.strip() for line in reversed(said.split('\n')) if line.strip()), 'nothing')
    raise remote.WorkerLostError(f'Ray did not start on this machine; it said: {last}')


def _stop(supervisor: subprocess.Popen, folder: pathlib.Path) -> None:
  import_ray().shutdown()
  launcher.end(supervisor)
  shutil.rmtree(folder, ignore_errors=True)
