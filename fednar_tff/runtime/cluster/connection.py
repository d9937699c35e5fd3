# SPDX-License-Identifier: Apache-2.0
"""The way to a Ray cluster: one that runs already, or one that is started here."""

import math
import os
import re
import socket
from typing import Any

from fednar_tff.runtime.cluster import local_ray
from fednar_tff.runtime.workers import remote

_SECONDS_TO_CONNECT = 5.0
# So many CPUs may be handed out on a machine that has fewer, to try a program with several workers.
_CPUS_TO_TRY = 4


def connect(
  address: str | None, num_cpus: int, object_store_memory: int | None
) -> tuple[local_ray.LocalRay | None, Any]:
  """Connects this process to Ray.

  Args:
    address: The cluster; None for the one that this process is connected to, or a Ray of its own.
    num_cpus: How many CPUs Ray has, if it is started here.
    object_store_memory: The size of its object store, if it is started here.

  Returns:
    Ray's processes if they were started here, and the module `ray`.

  Raises:
    ImportError: If Ray is not installed.
    ValueError: If this process is connected to another cluster, or this machine is too small.
    WorkerLostError: If no cluster answers.
  """
  if address is None and not local_ray.is_connected():
    cores = os.cpu_count() or 1
    if num_cpus > max(cores, _CPUS_TO_TRY):
      raise ValueError(
        f'This machine has {cores} cores, so a Ray that is started here has at most '
        f'{max(cores, _CPUS_TO_TRY)} CPUs; `num_workers` times `cpus_per_worker` is {num_cpus}.'
      )
    started = local_ray.LocalRay(num_cpus, object_store_memory)
    return started, local_ray.import_ray()
  # Ray reads it when it is imported, and would try 20 times, for 36 seconds each.
  os.environ.setdefault('RAY_NUM_REDIS_GET_RETRIES', '1')
  ray = local_ray.import_ray()
  if ray.is_initialized():
    there = ray.get_runtime_context().gcs_address
    if address not in (None, 'auto', there, local_ray.joined):
      raise ValueError(
        f'This process is connected to the Ray cluster at {there}, and can be to one only; '
        f'`address` is {address!r}.'
      )
  else:
    _check_address(address)  # type: ignore[arg-type]
    try:
      local_ray.init(ray, address)  # type: ignore[arg-type]
    except (ConnectionError, RuntimeError, ValueError) as e:
      reason = ' '.join(str(e).split())
      raise remote.WorkerLostError(f'No Ray cluster answers at {address!r}: {reason}') from e
  return local_ray.running(), ray


def _check_address(address: str) -> None:
  """Tries the port before Ray does, which takes longer to give up."""
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
