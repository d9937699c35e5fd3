"""TFF computations inside this process, on whatever devices TensorFlow sees.

No worker, no serialised datasets: TFF's compiler reduces a computation to its building blocks, `plan` turns these
into steps, and each TensorFlow graph becomes a function that is called with tensors by reference.
"""

import collections
import os
import weakref
from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from fednar_tff.runtime import _cancellation, accelerators, client_pool, values
from fednar_tff.runtime import plan as plans


def _num_clients(argument, type_spec: tff.Type) -> int | None:
  """Finds the number of clients in an argument; `None` if it does not tell."""
  if isinstance(type_spec, tff.FederatedType):
    if type_spec.all_equal:
      return None
    if not isinstance(argument, (list, tuple)):
      raise TypeError(
        f'Expected a list with a value for each client, of type {type_spec}, found {type(argument).__name__}.'
      )
    return len(argument)
  if not isinstance(type_spec, tff.StructType):
    return None
  found = None
  elements = values.elements_of(argument, type_spec)
  for element, element_type in zip(elements, type_spec, strict=True):
    number = _num_clients(element, element_type)
    if number is not None and found is not None and number != found:
      raise ValueError(
        f'Conflicting cardinalities: expected one number of clients, found {found} and {number}.'
      )
    found = found if number is None else number
  return found


class _Round:
  """One run of a plan."""

  def __init__(self, plan: plans.Plan, pool: client_pool.ClientPool, num_clients: int):
    self._plan = plan
    self._pool = pool
    self._num_clients = num_clients
    self._server_device = pool.devices[0]
    self._server = {}
    # By client: the values that outlive its turn.
    self._kept = [{} for _ in range(num_clients)]

  def ingest(self, argument) -> None:
    self._ingest(argument, self._plan.parameter, self._plan.parameter_type)

  def _ingest(self, argument, tree, type_spec):
    if isinstance(type_spec, tff.FederatedType):
      slots = plans.flatten(tree)
      if type_spec.all_equal:
        self._server.update(zip(slots, values.flatten(argument, type_spec.member), strict=True))
        return
      for kept, value in zip(self._kept, argument, strict=True):
        # Arrays as they are until the client's turn: all states at once may not fit into a GPU.
        leaves = values.flatten(value, type_spec.member, keep_arrays=True)
        kept.update(zip(slots, leaves, strict=True))
    elif isinstance(type_spec, tff.StructType) and tff.types.contains(
      type_spec, lambda t: isinstance(t, tff.FederatedType)
    ):
      for branch, element, element_type in zip(
        tree, values.elements_of(argument, type_spec), type_spec, strict=True
      ):
        self._ingest(element, branch, element_type)
    else:
      self._server.update(
        zip(plans.flatten(tree), values.flatten(argument, type_spec), strict=True)
      )

  def run(self) -> None:
    for current in self._plan.passes:
      for step in current.server_steps:
        step.run(self._server, self._server_device)
      for aggregation in current.aggregations:
        aggregation.start(self._server)
      clients = self._run_clients(current)
      for sent in clients:
        try:
          for aggregation in current.aggregations:
            aggregation.add(sent, self._server, self._server_device)
        except tf.errors.CancelledError:
          # A client that fails cancels all that runs with it. The clients that follow bring its error.
          collections.deque(clients, maxlen=0)
          raise

  def _run_clients(self, current: plans.Pass):
    """Yields what each client sends to the server, in client order."""

    def run_client(index, device):
      slots = {**self._server, **broadcast[device], **self._kept[index]}
      for step in current.client_steps:
        step.run(slots, device)
      # In the host's memory: the states of all clients may not fit into a GPU.
      self._kept[index].update(
        (slot, values.on_device(slots[slot], values.HOST)) for slot in current.keeps
      )
      return {slot: slots[slot] for slot in current.sends}, current.ran_on(slots, device)

    if current.client_steps:
      broadcast = self._broadcast(current)
      for sent, device in self._pool.map(run_client, self._num_clients):
        self._pool.clients_by_device[device] += 1
        yield sent
        del sent  # The loop must not hold on to what the caller drops.
    elif current.aggregations:
      yield from self._kept

  def _broadcast(self, current: plans.Pass):
    """Returns the server's values that the clients read, on each device, where they stay for all its clients.

    A loop carries its variables where they came from: a client on another device would copy them in every step.
    """
    read = self._server.keys() & current.reads
    return {
      device: {slot: values.on_device(self._server[slot], device) for slot in read}
      for device in self._pool.devices[: self._num_clients]
    }

  def result(self, type_spec: tff.Type):
    return self._result(self._plan.result, type_spec)

  def _result(self, tree, type_spec):
    if isinstance(type_spec, tff.FederatedType):
      slots = plans.flatten(tree)
      if type_spec.all_equal:
        return values.to_python([self._server[slot] for slot in slots], type_spec.member)
      return [
        values.to_python(
          [kept[slot] if slot in kept else self._server[slot] for slot in slots], type_spec.member
        )
        for kept in self._kept
      ]
    if isinstance(type_spec, tff.StructType) and tree:
      elements = tff.structure.Struct(
        [
          (name, self._result(branch, element_type))
          for branch, (name, element_type) in zip(
            tree, tff.structure.iter_elements(type_spec), strict=True
          )
        ]
      )
      return tff.types.type_to_py_container(elements, type_spec)
    return values.to_python([self._server[slot] for slot in plans.flatten(tree)], type_spec)


def _replace_secure_intrinsics(block):
  """Puts sums in the clear in place of secure ones."""
  # TFF's function for it serialises the result, which fails for blocks that are nested deeply; this makes them flat.
  flat = tff.framework.to_call_dominant(block)
  computation = tff.framework.ConcreteComputation.from_building_block(flat)
  return tff.backends.test.replace_secure_intrinsics_with_bodies(computation).to_building_block()


class _InProcessContext(tff.framework.SyncContext):
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
  def _pool(self) -> client_pool.ClientPool:
    # Made at the first computation: to list the devices initialises TensorFlow, and then it can no longer be configured.
    if self._lazy_pool is None:
      self._lazy_pool = _make_pool(self._devices, self._num_threads, self._clients_per_device)
    return self._lazy_pool

  def _plan_of(self, computation) -> plans.Plan:
    key = id(computation)
    if key not in self._plans:
      block = computation.to_building_block()
      if self._simulate_secure_sums_in_the_clear:
        block = _replace_secure_intrinsics(block)
      # Not `tff.backends.native`'s compiler: it flattens loops and turns TensorFlow's optimizer off inside them, which
      # makes a training step slower by half.
      block, _ = tff.tensorflow.replace_intrinsics_with_bodies(block)
      self._plans[key] = plans.make_plan(tff.framework.to_call_dominant(block))
      weakref.finalize(computation, self._plans.pop, key, None).atexit = False
    return self._plans[key]

  def invoke(self, comp, arg):
    plan = self._plan_of(comp)
    num_clients = None if arg is None else _num_clients(arg, plan.parameter_type)
    if num_clients is None:
      num_clients = self._default_num_clients
    with _cancellation.cancelled_on_error():
      current = _Round(plan, self._pool, num_clients)
      if arg is not None:
        current.ingest(arg)
      current.run()
      # The compiler forgets Python containers: the type before compilation has them.
      return current.result(comp.type_signature.result)

  def describe(self) -> dict[str, object]:
    return {
      'runtime': 'in_process',
      'devices': self._pool.devices,
      'executes_on': tuple(map(accelerators.executing_device, self._pool.devices)),
      'clients_by_device': dict(self._pool.clients_by_device),
      'num_threads': self._pool.num_threads,
      'intra_op_threads': tf.config.threading.get_intra_op_parallelism_threads(),
    }


def _use_one_thread_for_each_op() -> None:
  """Leaves the cores to the clients: two clients on one core each are faster than two cores for each op in turn.

  Always one, so that an op adds up its numbers in the same order for every size of the pool.
  """
  if (
    tf.config.list_physical_devices('GPU') or tf.config.threading.get_intra_op_parallelism_threads()
  ):
    return  # The clients are elsewhere, or the user has decided.
  try:
    tf.config.threading.set_intra_op_parallelism_threads(1)
  except RuntimeError:
    logging.info(
      'TensorFlow runs already with its own number of threads for an op; set the in-process context before the '
      'first operation to let clients have a core each.'
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
      raise ValueError(f'Expected devices among {known}, found {device!r}.')
  if num_threads is None and clients_per_device is None:
    if all('CPU' in device.upper() for device in devices):
      num_threads = os.cpu_count()
    else:
      clients_per_device = accelerators.clients_that_fit()
  if num_threads is None:
    num_threads = clients_per_device * len(devices)
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
  """Creates a context that runs TFF computations in this process, on the devices that TensorFlow sees.

  Clients run at the same time, in threads. Their results are combined in client order, so that a computation gives the same
  bits for every number of threads. Datasets are iterated where they are, and arrays are passed by reference: a
  dataset that shuffles anew at each iteration does so at each round, where TFF's own runtime starts its copy from the same seed.

  A random op of TensorFlow that has a seed but is not stateless draws from a generator of its thread, and gives other
  numbers for other numbers of threads.

  Args:
    devices: The devices that clients go to in turn, such as `['GPU:0', 'GPU:1']`; the first is also the server's. By
      default all GPUs, or the CPU if there is none.
    num_threads: How many clients run at the same time, on all devices together; by default one for each core of the CPU.
    clients_per_device: How many clients run at the same time on each device, instead of `num_threads`. By default as many
      as a GPU has 4 GB of memory, at most 4: while one client's thread prepares work, the GPU does another's.
    default_num_clients: The number of clients of a computation whose arguments do not tell it.
    simulate_secure_sums_in_the_clear: Whether secure sums are computed without any security. By default they are an error.
    memory_growth: Whether TensorFlow takes memory of a GPU as it needs it, so that several processes can share a GPU. Otherwise
      it takes nearly all at its start. It can be chosen only before the first operation of the process.
    deterministic: Whether operations that could give other bits from run to run, as many on a GPU, are replaced by
      slower ones that do not (TensorFlow's `enable_op_determinism`, for the whole process).
    allow_tf32: Whether GPUs may multiply float32 numbers with the 10 bits of mantissa of TF32; `None` leaves TensorFlow's
      choice, which is that they may.

  Returns:
    A context for `tff.framework.set_default_context`.

  Raises:
    ValueError: If `num_threads` or `clients_per_device` is less than 1, both are given, or `devices` is empty.
  """
  for name, value in (('num_threads', num_threads), ('clients_per_device', clients_per_device)):
    if value is not None and value < 1:
      raise ValueError(f'Expected {name} of at least 1, found {value}.')
  if num_threads is not None and clients_per_device is not None:
    raise ValueError(
      f'Expected num_threads or clients_per_device, found both: {num_threads} and {clients_per_device}.'
    )
  if devices is not None and not devices:
    raise ValueError('Expected at least one device, found none.')
  accelerators.configure(
    memory_growth=memory_growth, deterministic=deterministic, allow_tf32=allow_tf32
  )
  _use_one_thread_for_each_op()
  return _InProcessContext(
    devices,
    num_threads,
    default_num_clients,
    simulate_secure_sums_in_the_clear,
    clients_per_device,
  )


def set_in_process_context(
  *,
  devices: Sequence[str] | None = None,
  num_threads: int | None = None,
  clients_per_device: int | None = None,
  default_num_clients: int = 0,
  simulate_secure_sums_in_the_clear: bool = False,
  memory_growth: bool = True,
  deterministic: bool = False,
  allow_tf32: bool | None = None,
) -> None:
  """Makes the in-process runtime the default; see `create_in_process_context`."""
  context = create_in_process_context(
    devices=devices,
    num_threads=num_threads,
    clients_per_device=clients_per_device,
    default_num_clients=default_num_clients,
    simulate_secure_sums_in_the_clear=simulate_secure_sums_in_the_clear,
    memory_growth=memory_growth,
    deterministic=deterministic,
    allow_tf32=allow_tf32,
  )
  tff.framework.set_default_context(context)
