"""Seconds a round of each runtime, and their ratios: `python -m benchmarks.rounds` (2 to 20 minutes).

Workload A is the benchmark of pfl-research (50 clients, 5 steps, batch 10, its simple CNN of 1,626,442 parameters), B has
the shape of the paper (20 clients, 20 steps, batch 50, CNN), T is the paper's transformer at 2 steps. All
contenders see the same arrays. Each runs in a process of its own, so that none sees the threads or the memory
of another; the first round, which compiles, does not count.
"""

import argparse
import collections
import concurrent.futures
import copy
import dataclasses
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

_THREADS = os.cpu_count()
_LEARNING_RATE = 0.1
_MAX_NORM = 10.0


@dataclasses.dataclass(frozen=True)
class Workload:
  """The shape of a round; the model is named, and built where it is used."""

  model: str
  num_clients: int
  num_steps: int
  batch_size: int


WORKLOADS = {
  'A': Workload('pfl_cnn', 50, 5, 10),
  'B': Workload('paper_cnn', 20, 20, 50),
  'T': Workload('transformer', 10, 2, 50),
}


def _arrays(workload: Workload) -> dict[str, np.ndarray]:
  """All examples of all clients: `[num_clients * num_steps * batch_size, ...]`."""
  rng = np.random.default_rng(0)
  size = workload.num_clients * workload.num_steps * workload.batch_size
  if workload.model == 'transformer':
    return {
      'x': rng.integers(0, 90, [size, 80], np.int32),
      'y': rng.integers(0, 90, [size], np.int32),
    }
  images = rng.random([size, 32, 32, 3], np.float32)
  return {'x': images, 'y': rng.integers(0, 10, [size], np.int32)}


def _index(workload: Workload) -> np.ndarray:
  """The examples of each step of each client: `[num_clients, num_steps, batch_size]`."""
  shape = (workload.num_clients, workload.num_steps, workload.batch_size)
  return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def _keras_layers(model: str):
  import tensorflow as tf

  layers = tf.keras.layers
  relu = {'activation': 'relu'}
  if model == 'pfl_cnn':
    body = [layers.Conv2D(32, 3, **relu), layers.Conv2D(64, 3, **relu), layers.MaxPool2D()]
  else:
    body = [
      *(layers.Conv2D(32, 5, **relu), layers.MaxPool2D()),
      *(layers.Conv2D(64, 5, **relu), layers.MaxPool2D()),
    ]
  head = [layers.Flatten(), layers.Dense(128, **relu), layers.Dense(10)]
  return tf.keras.Sequential([layers.InputLayer((32, 32, 3)), *body, *head])


def _model_fn(workload: Workload) -> Callable[[], object]:
  import tensorflow as tf
  import tensorflow_federated as tff

  from fednar_tff.tasks import models

  labels = tf.TensorSpec([None], tf.int32)
  if workload.model == 'transformer':
    x = collections.OrderedDict(
      tokens=tf.TensorSpec([None, 80], tf.int32), seed=tf.TensorSpec([2], tf.int32)
    )
    spec = collections.OrderedDict(x=x, y=labels)
    return models.build_model_fns(models.build_transformer(90), spec)[0]
  spec = collections.OrderedDict(x=tf.TensorSpec([None, 32, 32, 3]), y=labels)
  return lambda: tff.learning.models.from_keras_model(
    _keras_layers(workload.model),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=spec,
  )


def _structure(workload: Workload, x, y, seed):
  if workload.model == 'transformer':
    x = collections.OrderedDict(tokens=x, seed=seed)
  return collections.OrderedDict(x=x, y=y)


def _batched_clients(workload: Workload) -> list:
  """Ordinary clients: datasets of batches."""
  import tensorflow as tf

  arrays, seeds = _arrays(workload), np.zeros([workload.num_steps, 2], np.int32)
  return [
    tf.data.Dataset.from_tensor_slices(
      _structure(workload, arrays['x'][index], arrays['y'][index], seeds)
    )
    for index in _index(workload)
  ]


def _packed_clients(workload: Workload) -> list:
  """Packed clients: the arrays of all, and each client's index."""
  import tensorflow as tf

  arrays, seeds = _arrays(workload), tf.zeros([workload.num_steps, 2], tf.int32)
  data = _structure(workload, tf.constant(arrays['x']), tf.constant(arrays['y']), seeds)
  return [
    tf.data.Dataset.from_tensors(collections.OrderedDict(data=data, index=tf.constant(index)))
    for index in _index(workload)
  ]


def _time_rounds(run_round: Callable[[], object], num_rounds: int) -> float:
  run_round()
  seconds = []
  for _ in range(num_rounds):
    start = time.perf_counter()
    run_round()
    seconds.append(time.perf_counter() - start)
  return statistics.median(seconds)


def _time_process(process, clients, num_rounds: int) -> float:
  state = process.initialize()

  def run_round():
    nonlocal state
    state = process.next(state, clients).state

  return _time_rounds(run_round, num_rounds)


def _tff_fed_avg(workload: Workload, loop: str, num_rounds: int) -> float:
  """TFF's own FedAvg with its own SGD, on the runtime that is set."""
  import tensorflow_federated as tff

  process = tff.learning.algorithms.build_unweighted_fed_avg(
    _model_fn(workload),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
    loop_implementation=tff.learning.LoopImplementation[loop],
  )
  return _time_process(process, _batched_clients(workload), num_rounds)


def _native(workload, num_rounds, loop):
  from fednar_tff import runtime

  runtime.set_native_context()
  return _tff_fed_avg(workload, loop, num_rounds)


def _in_process(workload, num_rounds, loop):
  from fednar_tff import runtime

  runtime.set_in_process_context()
  return _tff_fed_avg(workload, loop, num_rounds)


def _remote(workload, num_rounds):
  from fednar_tff import runtime
  from fednar_tff.runtime import worker_process

  workers = [worker_process.WorkerProcess() for _ in range(2)]
  runtime.set_remote_context([f'localhost:{worker.port}' for worker in workers])
  try:
    return _tff_fed_avg(workload, 'DATASET_ITERATOR', num_rounds)
  finally:
    for worker in workers:
      worker.stop()


def _packed(workload, num_rounds):
  """Our FedAvg with NAR, packed clients, in process."""
  from fednar_tff import algorithms, optimizers, runtime

  runtime.set_in_process_context()
  process = algorithms.build_fed_avg(
    _model_fn(workload),
    client_optimizer_fn=optimizers.build_nar(_LEARNING_RATE, 0.001, _MAX_NORM),
    loop_implementation=algorithms.PACKED,
  )
  return _time_process(process, _packed_clients(workload), num_rounds)


def _bare(workload, num_rounds):
  """The least that TensorFlow needs: a `tf.range` loop over resident arrays, one thread for each core."""
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(1)
  arrays = {name: tf.constant(array) for name, array in _arrays(workload).items()}
  index = tf.constant(_index(workload))

  def build_client():
    model = _model_fn(workload)()
    variables = model.trainable_variables

    @tf.function
    def train(weights, rows):
      for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)
      for step in tf.range(tf.shape(rows)[0]):
        x, y = (tf.gather(arrays[name], rows[step]) for name in ('x', 'y'))
        with tf.GradientTape() as tape:
          batch = _structure(workload, x, y, tf.zeros([2], tf.int32))
          loss = model.forward_pass(batch, training=True).loss
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), _MAX_NORM)
        for variable, gradient in zip(variables, gradients, strict=True):
          variable.assign_sub(_LEARNING_RATE * gradient)
      return [weight - variable for weight, variable in zip(weights, variables, strict=True)]

    return train, [tf.identity(variable) for variable in variables]

  built = [build_client() for _ in range(_THREADS)]
  weights = built[0][1]
  free = collections.deque(train for train, _ in built)

  def run_client(rows):
    train = free.pop()
    try:
      return train(weights, rows)
    finally:
      free.append(train)

  pool = concurrent.futures.ThreadPoolExecutor(_THREADS)

  def run_round():
    nonlocal weights
    updates = list(pool.map(run_client, tf.unstack(index)))
    means = [tf.add_n(leaf) / len(updates) for leaf in zip(*updates, strict=True)]
    weights = [weight - mean for weight, mean in zip(weights, means, strict=True)]

  return _time_rounds(run_round, num_rounds)


def _torch(workload, num_rounds):
  """PyTorch with index slicing, one thread for each core."""
  import torch
  from torch import nn

  torch.set_num_threads(1)
  kernel = 3 if workload.model == 'pfl_cnn' else 5
  inner = [] if kernel == 3 else [nn.MaxPool2d(2)]
  flat = 64 * 14 * 14 if kernel == 3 else 64 * 5 * 5
  model = nn.Sequential(
    *(nn.Conv2d(3, 32, kernel), nn.ReLU(), *inner),
    *(nn.Conv2d(32, 64, kernel), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    *(nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, 10)),
  )
  arrays = _arrays(workload)
  images = torch.from_numpy(arrays['x']).permute(0, 3, 1, 2).contiguous()
  labels = torch.from_numpy(arrays['y']).long()
  index = torch.from_numpy(_index(workload)).long()
  loss_fn = nn.CrossEntropyLoss()

  def run_client(rows):

    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), _LEARNING_RATE)
    for row in rows:
      optimizer.zero_grad()
      loss_fn(local(images[row]), labels[row]).backward()
      nn.utils.clip_grad_norm_(local.parameters(), _MAX_NORM)
      optimizer.step()
    return [(x - y).detach() for x, y in zip(model.parameters(), local.parameters(), strict=True)]

  pool = concurrent.futures.ThreadPoolExecutor(_THREADS)

  def run_round():
    updates = list(pool.map(run_client, index))
    with torch.no_grad():
      for parameter, *update in zip(model.parameters(), *updates, strict=True):
        parameter -= torch.stack(update).mean(0)

  return _time_rounds(run_round, num_rounds)


CONTENDERS = {
  'TFF native, DATASET_REDUCE': lambda w, n: _native(w, n, 'DATASET_REDUCE'),
  'TFF native, DATASET_ITERATOR': lambda w, n: _native(w, n, 'DATASET_ITERATOR'),
  'in-process, DATASET_REDUCE': lambda w, n: _in_process(w, n, 'DATASET_REDUCE'),
  'in-process, DATASET_ITERATOR': lambda w, n: _in_process(w, n, 'DATASET_ITERATOR'),
  'in-process, our FedAvg-NAR, packed': _packed,
  'remote, 2 local workers, DATASET_ITERATOR': _remote,
  'bare tf.range loop': _bare,
  'PyTorch': _torch,
}
# (contender, opponent, the most that the ratio should be on workload A, on B)
RATIOS = (
  ('in-process, DATASET_REDUCE', 'TFF native, DATASET_REDUCE', 1.0, 0.8),
  ('in-process, DATASET_ITERATOR', 'TFF native, DATASET_ITERATOR', 1.0, 0.8),
  ('in-process, our FedAvg-NAR, packed', 'bare tf.range loop', 1.15, 1.15),
  ('in-process, our FedAvg-NAR, packed', 'TFF native, DATASET_REDUCE', 0.5, 0.5),
  ('in-process, our FedAvg-NAR, packed', 'PyTorch', 1.0, 1.0),
)


def _measure(contender: str, workload: str, num_rounds: int) -> float | None:
  """Runs a contender in a process of its own; `None` if it cannot run here."""
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'benchmarks.rounds', '--only', contender),
      *('--workloads', workload, '--rounds', str(num_rounds)),
    ],
    capture_output=True,
    text=True,
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
  )
  if done.returncode != 0:
    print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
    return None
  return float(done.stdout.strip().splitlines()[-1])


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--workloads', nargs='+', choices=WORKLOADS, default=list(WORKLOADS))
  parser.add_argument(
    '--rounds', type=int, default=5, help='rounds that count; the median is taken'
  )
  parser.add_argument('--only', choices=CONTENDERS, help='measure this one, in this process')
  arguments = parser.parse_args()
  if arguments.only:
    print(CONTENDERS[arguments.only](WORKLOADS[arguments.workloads[0]], arguments.rounds))
    return
  for name in arguments.workloads:
    workload = WORKLOADS[name]
    print(f'\n{name}: {workload}', flush=True)
    seconds = {}
    for contender in CONTENDERS:
      if contender == 'PyTorch' and (
        importlib.util.find_spec('torch') is None or workload.model == 'transformer'
      ):
        continue
      measured = _measure(contender, name, arguments.rounds)
      if measured is not None:
        seconds[contender] = measured
        print(f'  {measured:8.3f} s a round  {contender}', flush=True)
    for contender, opponent, most_a, most_b in RATIOS:
      if contender in seconds and opponent in seconds:
        aim = {'A': f' (aim: {most_a})', 'B': f' (aim: {most_b})'}.get(name, '')
        print(f'  {seconds[contender] / seconds[opponent]:5.2f} x  {contender} / {opponent}{aim}')


if __name__ == '__main__':
  main()
