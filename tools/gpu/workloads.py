# SPDX-License-Identifier: Apache-2.0
"""The rounds that the GPU tools look at: the paper's models on random data of the real shapes,
which needs no download."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, tasks
from fednar_tff.tasks import sources

MODELS = ('resnet18', 'transformer')
ALGORITHMS = ('fed_avg', 'fed_prox', 'scaffold', 'fed_exp', 'fed_adam')
# TFF's own, as a pipeline has it that only changes its optimizer.
TFF_FED_AVG = 'tff_fed_avg'
LOOPS = {
  'packed': algorithms.PACKED,
  'iterator': tff.learning.LoopImplementation.DATASET_ITERATOR,
  'reduce': tff.learning.LoopImplementation.DATASET_REDUCE,
}
BATCH_SIZE = 20
# More than any batch: what crosses in a step and is as large as this cannot be a batch.
_NUM_IMAGES = 600
_ARGUMENTS = {
  'fed_prox': {'proximal_strength': 0.001},
  'scaffold': {'num_clients': 3},
  'fed_exp': {'epsilon': 1e-3},
}


def _random_cifar10(data_dir):
  del data_dir
  generator = np.random.RandomState(0)

  def split(size):
    return {
      'image': tf.constant(generator.randint(0, 256, [size, 32, 32, 3]).astype(np.uint8)),
      'label': tf.constant(np.arange(size) % 10),
    }

  return {'train': split(_NUM_IMAGES), 'test': split(20)}


def _random_shakespeare(data_dir):
  del data_dir
  generator = np.random.RandomState(0)

  def split(size):
    letters = generator.randint(ord('a'), ord('z') + 1, [3, size]).astype(np.uint8)
    return {
      'client_id': [f'role{i}'.encode() for i in range(3)],
      'snippets': [row.tobytes() for row in letters],
    }

  return {'train': split(2200), 'test': split(500)}


def create_task(model: str) -> tasks.Task:
  """Creates the task of one of `MODELS`, or of the CNN, with 3 clients."""
  with tf.device('CPU:0'):
    if model in ('resnet18', 'cnn'):
      original, sources.load_cifar10 = sources.load_cifar10, _random_cifar10
      try:
        return tasks.create_task('cifar10', model=model, num_clients=3, partition='iid')
      finally:
        sources.load_cifar10 = original
    original, sources.load_shakespeare = sources.load_shakespeare, _random_shakespeare
    try:
      return tasks.create_task('shakespeare', num_clients=3)
    finally:
      sources.load_shakespeare = original


def create_process(task: tasks.Task, algorithm: str, loop: str, **arguments):
  """Builds one of `ALGORITHMS`, or `TFF_FED_AVG`, with NAR on a task's functional model, as
  `experiments.train` does."""
  with tf.device('CPU:0'):  # Initial weights are drawn at once, which a pretended GPU cannot do.
    model = task.functional_model_fn()
  optimizer = optimizers.build_nar(0.01, 0.001, 10.0)
  if algorithm == TFF_FED_AVG:
    with tf.Graph().as_default():  # TFF tries the optimizer, which it cannot do either.
      return tff.learning.algorithms.build_weighted_fed_avg(
        model, client_optimizer_fn=optimizer, loop_implementation=LOOPS[loop]
      )
  return algorithms.get_builder(algorithm)(
    model,
    client_optimizer_fn=optimizer,
    loop_implementation=LOOPS[loop],
    **_ARGUMENTS.get(algorithm, {}),
    **arguments,
  )


def client_data(task: tasks.Task, loop: str, steps: list[int]) -> list[tf.data.Dataset]:
  """Returns the data of a round's clients, one for each number of local steps; 0 is a client
  without data."""
  data = []
  for client_id, num_steps in zip(task.partition.client_ids, steps):
    make = task.packed_client if loop == 'packed' else task.client_batches
    dataset = make(client_id, 0, batch_size=BATCH_SIZE, local_steps=max(num_steps, 1), seed=0)
    if not num_steps:
      dataset = _without_steps(dataset) if loop == 'packed' else dataset.take(0)
    data.append(dataset)
  return data


def _without_steps(dataset):
  with tf.device('CPU:0'):
    element = dataset.get_single_element()
    return tf.data.Dataset.from_tensors(
      collections.OrderedDict(data=element['data'], index=element['index'][:0])
    )


def run_round(process, state, data):
  """Runs a round; clients that carry a state begin with the first one. Returns what `next`
  returns."""
  if algorithms.has_client_states(process):
    return process.next(state, [process.initial_client_state() for _ in data], data)
  return process.next(state, data)
