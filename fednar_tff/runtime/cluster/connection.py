# SPDX-License-Identifier: Apache-2.0
"""The way to a Ray cluster: one that runs already, or one that is started here."""

import math
import re
import socket
from typing import Any

from fednar_tff.runtime.cluster import local_ray
from fednar_tff.runtime.workers import remote

_SECONDS_TO_CONNECT = 5.0


def connect(
  address: str | None, num_cpus: int, object_store_memory: int | None
) -> tuple[local_ray.LocalRay | None, Any]:
  """Connects this process to Ray.

  Args:
    address: The cluster, or None to start Ray here; ignored if this process is connected already.
    num_cpus: How many CPUs Ray has, if it is started here.
    object_store_memory: The size of its object store, if it is started here.

  Returns:
    Ray's processes if they were started here, and the module `ray`.

  Raises:
    ImportError: If Ray is not installed.
    WorkerLostError: If no cluster answers.
  """
  if address is None and not local_ray.is_connected():
    started = local_ray.LocalRay(num_cpus, object_store_memory)
    return started, local_ray.import_ray()
  ray = local_ray.import_ray()
  if not ray.is_initialized():
    _check_address(address)  # type: ignore[arg-type]
    try:
      local_ray.init(ray, address)  # type: ignore[arg-type]
    except (ConnectionError, RuntimeError, ValueError) as e:
      reason = ' '.join(str(e).split())
      raise remote.WorkerLostError(f'No Ray cluster answers at {address!r}: {reason}') from e
  return local_ray.running(), ray


def _check_address(address: str) -> None:
  """Tries the port before Ray does, which would take minutes to give up."""
  match = re.fullmatch(r'(?:ray://)?(.+):(\d+)', address)
  if match is None:
    return
  try:
    socket.create_connection((match[1], int(match[2])), _SECONDS_TO_CONNECT).close()
  except OSError as e:
    raise remote.WorkerLostError(
      f'No Ray cluster answers at {address!r} ({e.strerror or e}); '
      'start one there with: ray start --head'
    ) from e


def check_resources(ray: Any, per_worker: dict[str, float], num_workers: int | None) -> int:
  """Returns how many workers to start, or says what the cluster has too little of.

  Args:
    ray: The module.
    per_worker: What a worker needs of each resource.
    num_workers: How many workers are asked for; None for as many as there is room for.
  """
  there = ray.cluster_resources()
  room = {
    name: math.floor(there.get(name, 0) / amount) for name, amount in per_worker.items() if amount
  }
  scarce = min(room, key=lambda name: room[name])
  if room[scarce] < (num_workers or 1):
    raise ValueError(
      f'The cluster has {there.get(scarce, 0):g} {scarce}s, which is room for {room[scarce]} '
      f'workers with {per_worker[scarce]:g} each; `num_workers` is {num_workers}.'
    )
  return room[scarce] if num_workers is None else num_workers
