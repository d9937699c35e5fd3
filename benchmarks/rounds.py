"""Seconds a round of each runtime, and their ratios: `python -m benchmarks.rounds` (about 40 minutes; `--workloads A` about 8).

Workload A is the benchmark of pfl-research (50 clients, 5 steps, batch 10, its simple CNN of 1,626,442 parameters), B has
the shape of the paper (20 clients, 20 steps, batch 50, CNN), T is the paper's transformer at 2 steps. All
contenders see the same arrays. Each has a process of its own, so that none sees the threads or the memory of another;
the first round, which compiles, does not count. Then they take turns of three rounds, of which the fastest counts (the
first finds cold caches), since the speed of a machine changes from minute to minute: a ratio is the median over the turns.
"""

import argparse
import collections
import concurrent.futures
import copy
import dataclasses
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

_THREADS = os.cpu_count()
_LEARNING_RATE = 0.1
_MAX_NORM = 10.0
_ANSWER = 'seconds: '
_ROUNDS_OF_A_TURN = 3


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
      'x': rng.integers(0, 80, [size, 80], np.int32),
      'y': rng.integers(0, 80, [size], np.int32),
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
    return models.build_model_fns(models.build_transformer(80), spec)[0]
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


RunRound = Callable[[], object]


def _rounds_of(process, clients) -> RunRound:
  state = process.initialize()

  def run_round():
    nonlocal state
    state = process.next(state, clients).state

  return run_round


def _tff_fed_avg(workload: Workload, loop: str) -> RunRound:
  """TFF's own FedAvg with its own SGD, on the runtime that is set."""
  import tensorflow_federated as tff

  process = tff.learning.algorithms.build_unweighted_fed_avg(
    _model_fn(workload),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
    loop_implementation=tff.learning.LoopImplementation[loop],
  )
  return _rounds_of(process, _batched_clients(workload))


def _native(workload, loop):
  from fednar_tff import runtime

  runtime.set_native_context()
  return _tff_fed_avg(workload, loop)


def _in_process(workload, loop):
  from fednar_tff import runtime

  runtime.set_in_process_context()
  return _tff_fed_avg(workload, loop)


def _remote(workload):
  from fednar_tff import runtime
  from fednar_tff.runtime.workers import launcher

  workers = [launcher.WorkerProcess() for _ in range(2)]
  runtime.set_remote_context([f'localhost:{worker.port}' for worker in workers])
  run_round = _tff_fed_avg(workload, 'DATASET_ITERATOR')
  run_round.workers = workers  # They end when nothing refers to them.
  return run_round


def _packed(workload):
  """Our FedAvg with NAR, packed clients, in process."""
  from fednar_tff import algorithms, optimizers, runtime

  runtime.set_in_process_context()
  process = algorithms.build_fed_avg(
    _model_fn(workload),
    client_optimizer_fn=optimizers.build_nar(_LEARNING_RATE, 0.001, _MAX_NORM),
    loop_implementation=algorithms.PACKED,
  )
  return _rounds_of(process, _packed_clients(workload))


def _bare(workload):
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
          # A seed that changes: TensorFlow would compute the dropout of a constant one only once.
          batch = _structure(workload, x, y, tf.stack([step, 0]))
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

  return run_round


def _torch_model(workload: Workload):
  """The same network in PyTorch; pfl wants `loss` and `metrics` on it."""
  import torch
  from torch import nn

  kernel = 3 if workload.model == 'pfl_cnn' else 5
  inner = [] if kernel == 3 else [nn.MaxPool2d(2)]
  flat = 64 * 14 * 14 if kernel == 3 else 64 * 5 * 5

  class Network(nn.Sequential):
    def loss(self, x, y):
      return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y):
      from pfl.metrics import Weighted

      return {'loss': Weighted(self.loss(x, y).item() * len(y), len(y))}

  torch.manual_seed(0)
  return Network(
    *(nn.Conv2d(3, 32, kernel), nn.ReLU(), *inner),
    *(nn.Conv2d(32, 64, kernel), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    *(nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, 10)),
  )


def _torch_arrays(workload: Workload):
  import torch

  arrays = _arrays(workload)
  images = torch.from_numpy(arrays['x']).permute(0, 3, 1, 2).contiguous()
  return images, torch.from_numpy(arrays['y']).long()


def _torch(workload):
  """PyTorch with index slicing, one thread for each core."""
  import torch

  torch.set_num_threads(1)
  model = _torch_model(workload)
  images, labels = _torch_arrays(workload)
  index = torch.from_numpy(_index(workload)).long()

  def run_client(rows):
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), _LEARNING_RATE)
    for row in rows:
      optimizer.zero_grad()
      local.loss(images[row], labels[row]).backward()
      torch.nn.utils.clip_grad_norm_(local.parameters(), _MAX_NORM)
      optimizer.step()
    return [(x - y).detach() for x, y in zip(model.parameters(), local.parameters(), strict=True)]

  pool = concurrent.futures.ThreadPoolExecutor(_THREADS)

  def run_round():
    updates = list(pool.map(run_client, index))
    with torch.no_grad():
      for parameter, *update in zip(model.parameters(), *updates, strict=True):
        parameter -= torch.stack(update).mean(0)

  return run_round


def _pfl(workload):
  """pfl-research: its FedAvg on its PyTorch model, one client at a time, the cores used by PyTorch's operations."""
  import asyncio

  import torch
  from pfl import algorithm, hyperparam
  from pfl.aggregate.simulate import SimulatedBackend
  from pfl.data import FederatedDataset
  from pfl.data.pytorch import PyTorchTensorDataset
  from pfl.data.sampling import get_user_sampler
  from pfl.model.pytorch import PyTorchModel

  network = _torch_model(workload)
  images, labels = _torch_arrays(workload)
  clients = [
    PyTorchTensorDataset((images[rows], labels[rows]))
    for rows in torch.from_numpy(_index(workload)).long().flatten(1)
  ]
  sampler = get_user_sampler('minimize_reuse', list(range(workload.num_clients)))
  data = FederatedDataset(clients.__getitem__, sampler)
  model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
  backend = SimulatedBackend(training_data=data, val_data=data)
  fed_avg = algorithm.FederatedAveraging()
  num_rounds = 0
  asyncio.set_event_loop(asyncio.new_event_loop())  # pfl takes the current one for granted.

  def run_round():
    nonlocal num_rounds
    num_rounds += 1
    fed_avg.run(  # Goes on where it stopped.
      algorithm_params=algorithm.NNAlgorithmParams(
        central_num_iterations=num_rounds,
        evaluation_frequency=10**6,  # In the first round alone, which does not count.
        train_cohort_size=workload.num_clients,
        val_cohort_size=0,
      ),
      backend=backend,
      model=model,
      model_train_params=hyperparam.NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=_LEARNING_RATE,
        local_batch_size=workload.batch_size,
        local_max_grad_norm=_MAX_NORM,
      ),
    )

  return run_round


CONTENDERS = {
  'TFF native, DATASET_REDUCE': lambda w: _native(w, 'DATASET_REDUCE'),
  'TFF native, DATASET_ITERATOR': lambda w: _native(w, 'DATASET_ITERATOR'),
  'in-process, DATASET_REDUCE': lambda w: _in_process(w, 'DATASET_REDUCE'),
  'in-process, DATASET_ITERATOR': lambda w: _in_process(w, 'DATASET_ITERATOR'),
  'in-process, our FedAvg-NAR, packed': _packed,
  'remote, 2 local workers, DATASET_ITERATOR': _remote,
  'bare tf.range loop': _bare,
  'PyTorch': _torch,
  'pfl-research': _pfl,
}
# (contender, opponent, the most that the ratio should be on workload A, on B)
RATIOS = (
  ('in-process, DATASET_REDUCE', 'TFF native, DATASET_REDUCE', 1.0, 0.8),
  ('in-process, DATASET_ITERATOR', 'TFF native, DATASET_ITERATOR', 1.0, 0.8),
  ('in-process, our FedAvg-NAR, packed', 'bare tf.range loop', 1.15, 1.15),
  ('in-process, our FedAvg-NAR, packed', 'TFF native, DATASET_REDUCE', 0.5, 0.5),
  ('in-process, our FedAvg-NAR, packed', 'PyTorch', 1.0, 1.0),
  ('in-process, our FedAvg-NAR, packed', 'pfl-research', 1.0, 1.0),
)
# PyTorch wants other versions of packages than TFF does, so it lives in an environment of its own.
_OPPONENTS = ('PyTorch', 'pfl-research')
_OPPONENTS_PYTHON = pathlib.Path('.venv-opponents/bin/python')


class Contender:
  """A contender in a process of its own, which runs a round whenever it is asked to."""

  def __init__(self, name: str, workload: str, checkout: pathlib.Path | None = None):
    python = _OPPONENTS_PYTHON if name in _OPPONENTS else sys.executable
    self.name = name
    environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'}
    if checkout is not None:
      environment['PYTHONPATH'] = str(checkout)
    self._errors = tempfile.TemporaryFile('w+')
    self._process = subprocess.Popen(
      [str(python), '-m', 'benchmarks.rounds', '--serve', name, '--workloads', workload],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
      cwd=checkout,
      env=environment,
    )

  def run_round(self) -> float | None:
    """Returns the seconds that a round took; `None` if it failed."""
    try:
      print(file=self._process.stdin, flush=True)
    except BrokenPipeError:
      return None
    for line in self._process.stdout:
      if line.startswith(_ANSWER):
        return float(line.removeprefix(_ANSWER))
    self._errors.seek(0)
    print(f'{self.name}: {self._errors.read().strip().splitlines()[-1]}', file=sys.stderr)
    return None

  def stop(self) -> None:
    self._process.stdin.close()
    self._process.stdout.read()
    self._process.wait()


def _serve(contender: str, workload: Workload) -> None:
  run_round = CONTENDERS[contender](workload)
  for _ in sys.stdin:
    start = time.perf_counter()
    run_round()
    print(f'{_ANSWER}{time.perf_counter() - start}', flush=True)


def _compare(workload: str, num_turns: int) -> dict[str, list[float]]:
  """Returns, for each contender that runs here, the seconds of the fastest round of each turn."""
  import tqdm  # Here, because the environment of the opponents need not have it.

  names = [
    name
    for name in CONTENDERS
    if name not in _OPPONENTS
    or (_OPPONENTS_PYTHON.exists() and WORKLOADS[workload].model != 'transformer')
  ]
  contenders, seconds = [], {}
  with tqdm.tqdm(total=len(names) * (num_turns + 1), desc=workload, disable=None) as progress:
    try:
      for name in names:
        contenders.append(Contender(name, workload))
        if contenders[-1].run_round() is not None:
          seconds[name] = []
        progress.update()
      for _ in range(num_turns):
        for contender in contenders:
          times = [contender.run_round() for _ in range(_ROUNDS_OF_A_TURN)]
          if None in times:
            seconds.pop(contender.name, None)
          elif contender.name in seconds:
            seconds[contender.name].append(min(times))
          progress.update()
    finally:
      for contender in contenders:
        contender.stop()
  return seconds


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--workloads', nargs='+', choices=WORKLOADS, default=list(WORKLOADS))
  parser.add_argument('--turns', type=int, default=3, help='turns of each, of three rounds')
  parser.add_argument('--serve', choices=CONTENDERS, help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.serve:
    _serve(arguments.serve, WORKLOADS[arguments.workloads[0]])
    return
  for name in arguments.workloads:
    print(f'\n{name}: {WORKLOADS[name]}', flush=True)
    seconds = _compare(name, arguments.turns)
    for contender, times in seconds.items():
      print(f'  {statistics.median(times):8.3f} s a round  {contender}')
    for contender, opponent, most_a, most_b in RATIOS:
      if contender in seconds and opponent in seconds:
        pairs = zip(seconds[contender], seconds[opponent], strict=True)
        ratio = statistics.median(x / y for x, y in pairs)
        aim = {'A': f' (aim: {most_a})', 'B': f' (aim: {most_b})'}.get(name, '')
        print(f'  {ratio:5.2f} x  {contender} / {opponent}{aim}', flush=True)


if __name__ == '__main__':
  main()
