# SPDX-License-Identifier: Apache-2.0
"""TFF's own FedAvg on each runtime, and our FedAvg-NAR with packed clients."""

from collections.abc import Callable

import tensorflow_federated as tff

from benchmarks import workloads
from benchmarks.contenders import tff_models
from fednar_tff import algorithms, optimizers, runtime
from fednar_tff.runtime.workers import launcher

RunRound = Callable[[], object]


def _rounds_of(process, make_clients) -> RunRound:
  state, round_num = process.initialize(), 0

  def run_round():
    nonlocal state, round_num
    state = process.next(state, make_clients(round_num)).state
    round_num += 1

  return run_round


def _ordinary_clients(workload):
  """Returns a function from a round to datasets of batches.

  Where making them is a part of the round, they are made by `tff.simulation.datasets.ClientData`
  and its `preprocess`, as TFF's tutorials do: rows gathered, shuffled, batched.
  """
  if not workload.makes_data:
    clients = tff_models.batched_clients(workload)
    return lambda round_num: clients
  task = tff_models.task(workload)
  size = workload.num_steps * workload.batch_size
  data = task.datasets.train_data.preprocess(
    lambda dataset: dataset.shuffle(size).batch(workload.batch_size)
  )
  return lambda round_num: [data.create_tf_dataset_for_client(c) for c in data.client_ids]


def _packed_clients(workload):
  """Returns a function from a round to packed clients.

  Where making them is a part of the round, they are made by the task as `simulation.run` has it.
  """
  if not workload.makes_data:
    clients = tff_models.packed_clients(workload)
    return lambda round_num: clients
  task = tff_models.task(workload)
  options = {'batch_size': workload.batch_size, 'local_steps': workload.num_steps, 'seed': 0}
  return lambda round_num: [
    task.packed_client(c, round_num, **options) for c in task.partition.client_ids
  ]


def _tff_fed_avg(workload: workloads.Workload, loop: str) -> RunRound:
  """TFF's own FedAvg with its own SGD, on the runtime that is set."""
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    tff_models.model_fn(workload),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(workloads.LEARNING_RATE),
    loop_implementation=tff.learning.LoopImplementation[loop],
  )
  return _rounds_of(process, _ordinary_clients(workload))


def native(workload: workloads.Workload, loop: str) -> RunRound:
  """TFF's FedAvg on TFF's own runtime."""
  runtime.set_native_context()
  return _tff_fed_avg(workload, loop)


def in_process(workload: workloads.Workload, loop: str) -> RunRound:
  """TFF's FedAvg on our in-process runtime."""
  runtime.set_in_process_context()
  return _tff_fed_avg(workload, loop)


def remote(workload: workloads.Workload) -> RunRound:
  """TFF's FedAvg on two workers of TFF that run on this machine."""
  workers = [launcher.WorkerProcess() for _ in range(2)]
  runtime.set_remote_context([f'localhost:{worker.port}' for worker in workers])
  run_round = _tff_fed_avg(workload, 'DATASET_ITERATOR')
  run_round.workers = workers  # They end when nothing refers to them.
  return run_round


def packed(workload: workloads.Workload, precision: str = 'float32') -> RunRound:
  """Our FedAvg with NAR, packed clients, in process."""
  runtime.set_in_process_context()
  return _packed(workload, precision)


def clipped(workload: workloads.Workload) -> RunRound:
  """Our FedAvg with the paper's baseline, packed clients, in process."""
  runtime.set_in_process_context()
  return _packed(workload, build_optimizer=optimizers.build_clipped_sgd)


def cluster(workload: workloads.Workload) -> RunRound:
  """Our FedAvg with NAR, packed clients, on two workers of Ray that run on this machine."""
  runtime.set_cluster_context(num_workers=2, object_store_memory=2**30)
  return _packed(workload)


def _packed(workload, precision='float32', build_optimizer=optimizers.build_nar):
  process = algorithms.build_fed_avg(
    tff_models.model_fn(workload, precision),
    client_optimizer_fn=build_optimizer(
      workloads.LEARNING_RATE, workloads.WEIGHT_DECAY, workloads.MAX_NORM
    ),
    loop_implementation=algorithms.PACKED,
  )
  return _rounds_of(process, _packed_clients(workload))
