# SPDX-License-Identifier: Apache-2.0
"""The context of the in-process runtime, and how it is set up.

There is no worker, and no dataset is serialised. TFF's compiler reduces a computation to its
building blocks, `passes` turns these into steps, and each TensorFlow graph becomes a function that
is called with tensors by reference.
"""

import os
import weakref
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from fednar_tff.runtime import default_context
from fednar_tff.runtime.in_process import (
  accelerators,
  cancellation,
  client_pool,
  passes,
  rounds,
  values,
)


def _replace_secure_intrinsics(block):
  """Puts sums in the clear in place of secure ones."""
  # TFF's function serialises the result, which fails for blocks that are nested deeply. This form
  # is flat.
  flat = tff.framework.to_call_dominant(block)
  computation = tff.framework.ConcreteComputation.from_building_block(flat)
  return tff.backends.test.replace_secure_intrinsics_with_bodies(computation).to_building_block()


def make_plan(
  computation: tff.framework.ConcreteComputation,
  simulate_secure_sums_in_the_clear: bool,
  *,
  with_merge: bool = False,
) -> passes.Plan:
  """Compiles a computation, and plans it.

  Args:
    computation: The computation.
    simulate_secure_sums_in_the_clear: As in `create_in_process_context`.
    with_merge: Whether the plan is for several processes, whose sums are merged.

  Returns:
    The plan. Two processes that plan the same serialised computation give its values the same
    numbers.
  """
  block = computation.to_building_block()
  if simulate_secure_sums_in_the_clear:
    block = _replace_secure_intrinsics(block)
  # Not `tff.backends.native`'s compiler: it flattens loops and turns TensorFlow's optimizer off
  # inside them, which makes a training step slower by half.
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
  return passes.make_plan(tff.framework.to_call_dominant(block), with_merge=with_merge)


class InProcessContext(tff.framework.SyncContext):
  """Runs computations in this process."""

  def __init__(
    self,
    devices,
    num_threads,
    default_num_clients,
    simulate_secure_sums_in_the_clear,
    clients_per_device=None,
  ):
    self._devices = devices
    self._num_threads = num_threads
    self._clients_per_device = clients_per_device
    self._default_num_clients = default_num_clients
    self._simulate_secure_sums_in_the_clear = simulate_secure_sums_in_the_clear
    self._lazy_pool = None
    # By `id`, because the hash of a computation serialises all its graphs.
    self._plans = {}

  @property
  def pool(self) -> client_pool.ClientPool:
    """The threads of the clients."""
    # Made at the first computation: to list the devices initialises TensorFlow, and then it can no
    # longer be configured.
    if self._lazy_pool is None:
      self._lazy_pool = _make_pool(self._devices, self._num_threads, self._clients_per_device)
    return self._lazy_pool

  def _plan_of(self, computation) -> passes.Plan:
    key = id(computation)
    if key not in self._plans:
      self._plans[key] = self._make_plan(computation)
      weakref.finalize(computation, self._plans.pop, key, None).atexit = False
    return self._plans[key]

  def _make_plan(self, computation) -> passes.Plan:
    return make_plan(computation, self._simulate_secure_sums_in_the_clear)

  def _new_round(self, plan: passes.Plan, num_clients: int) -> rounds.Round:
    return rounds.Round(plan, self.pool, num_clients)

  def invoke(self, comp, arg):
    plan = self._plan_of(comp)
    num_clients = None if arg is None else rounds.num_clients(arg, plan.parameter_type)
    if num_clients is None:
      num_clients = self._default_num_clients
    with cancellation.cancelled_on_error():
      current = self._new_round(plan, num_clients)
      if arg is not None:
        current.ingest(arg)
      current.run()
      # The compiler forgets Python containers: the type before compilation has them.
      return current.result(comp.type_signature.result)

  def describe(self) -> dict[str, object]:
    return {
      'runtime': 'in_process',
      'shares_data': True,
      'devices': self.pool.devices,
      'executes_on': tuple(map(accelerators.executing_device, self.pool.devices)),
      'clients_by_device': dict(self.pool.clients_by_device),
      'num_threads': self.pool.num_threads,
      'intra_op_threads': tf.config.threading.get_intra_op_parallelism_threads(),
    }


def _use_one_thread_for_each_op() -> None:
  """Leaves the cores to the clients, which is faster than to share them within each op.

  Always one thread, so that an op adds up its numbers in the same order for every size of the pool.
  """
  if (
    tf.config.list_physical_devices('GPU') or tf.config.threading.get_intra_op_parallelism_threads()
  ):
    return  # The clients are elsewhere, or the user has decided.
  try:
    tf.config.threading.set_intra_op_parallelism_threads(1)
  except RuntimeError:
    logging.info(
      'TensorFlow runs already with its own number of threads for an op; set the in-process '
      'context before the first operation to let clients have a core each.'
    )


def _make_pool(
  devices: Sequence[str] | None, num_threads: int | None, clients_per_device: int | None = None
) -> client_pool.ClientPool:
  known = [device.name for device in tf.config.list_logical_devices()]
  gpus = [device.name for device in tf.config.list_logical_devices('GPU')]
  if devices is None:
    problem = None if gpus else accelerators.unused_card()
    if problem:
      logging.warning('%s', problem)
    devices = gpus or [values.HOST]
  for device in devices:
    if not any(name.endswith(values.device_suffix(device)) for name in known):
      raise ValueError(f'`devices` must be among {known}, found {device!r}.')
  if num_threads is None and clients_per_device is None:
    if all('CPU' in device.upper() for device in devices):
      num_threads = os.cpu_count()
    else:
      clients_per_device = accelerators.clients_that_fit()
  if num_threads is None:
    num_threads = (clients_per_device or 1) * len(devices)
  return client_pool.ClientPool(devices, num_threads)


def create_in_process_context(
  *,
  devices: Sequence[str] | None = None,
  num_threads: int | None = None,
  clients_per_device: int | None = None,
  default_num_clients: int = 0,
  simulate_secure_sums_in_the_clear: bool = False,
  memory_growth: bool = True,
  deterministic: bool = False,
  allow_tf32: bool | None = None,
) -> tff.framework.SyncContext:
  """Creates a context that runs TFF computations in this process, on TensorFlow's devices.

  Clients run at the same time, in threads. Their results are combined in client order, so that a
  computation gives the same bits for every number of threads. Datasets are iterated where they are,
  and arrays are passed by reference: a dataset that shuffles anew at each iteration does so at each
  round, where TFF's own runtime starts its copy from the same seed.

  A random op of TensorFlow that has a seed but is not stateless draws from a generator of its
  thread, and gives other numbers for other numbers of threads.

  Args:
    devices: The devices that clients go to in turn, such as `['GPU:0', 'GPU:1']`. The first is also
      the server's. By default all GPUs, or the CPU if there is none.
    num_threads: How many clients run at the same time, on all devices together. By default one for
      each core of the CPU.
    clients_per_device: How many clients run at the same time on each device, instead of
      `num_threads`. By default as many as a GPU has 4 GB of memory, at most 4: while one client's
      thread prepares work, the GPU does another's.
    default_num_clients: The number of clients of a computation whose arguments do not tell it.
    simulate_secure_sums_in_the_clear: Whether secure sums are computed without any security. By
      default they are an error.
    memory_growth: Whether TensorFlow takes memory of a GPU as it needs it, so that several
      processes can share a GPU. Otherwise it takes nearly all at its start. It can be chosen only
      before the first operation of the process.
    deterministic: Whether operations that could give other bits from run to run, as many on a GPU,
      are replaced by slower ones that do not (TensorFlow's `enable_op_determinism`, for the whole
      process).
    allow_tf32: Whether GPUs may multiply float32 numbers with the 10 bits of mantissa of TF32;
      `None` leaves TensorFlow's choice, which is that they may.

  Returns:
    A context for `tff.framework.set_default_context`.

  Raises:
    ValueError: If `num_threads` or `clients_per_device` is less than 1, both are given, or
      `devices` is empty.
  """
  for name, value in (('num_threads', num_threads), ('clients_per_device', clients_per_device)):
    if value is not None and value < 1:
      raise ValueError(f'`{name}` must be at least 1, found {value}.')
  if num_threads is not None and clients_per_device is not None:
    raise ValueError(
      'Either `num_threads` or `clients_per_device` must be None, '
      f'found {num_threads} and {clients_per_device}.'
    )
  if devices is not None and not devices:
    raise ValueError('`devices` must be at least one device, found none.')
  accelerators.configure(
    memory_growth=memory_growth, deterministic=deterministic, allow_tf32=allow_tf32
  )
  _use_one_thread_for_each_op()
  return InProcessContext(
    devices,
    num_threads,
    default_num_clients,
    simulate_secure_sums_in_the_clear,
    clients_per_device,
  )


set_in_process_context = default_context.setter_of(
  create_in_process_context,
  'Makes the in-process runtime the default; see `create_in_process_context`.',
)
