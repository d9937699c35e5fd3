# SPDX-License-Identifier: Apache-2.0
"""The models and the clients of every contender that runs on TensorFlow."""

import collections
import inspect
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from benchmarks import workloads
from fednar_tff import resident, tasks
from fednar_tff.tasks import models


def _pfl_cnn(param, x, training):
  """The simple CNN of pfl-research's benchmark."""
  del training  # Unused.
  for i, filters in enumerate((32, 64)):
    x = tf.nn.relu(models.conv(param, x, filters, 3, f'conv{i}', padding='VALID'))
  x = tf.nn.max_pool2d(x, 2, 2, 'VALID')
  x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
  x = tf.nn.relu(models.dense(param, x, 128, 'hidden'))
  return models.dense(param, x, workloads.NUM_CLASSES, 'logits')


def _network(workload):
  hidden = {'mlp': (workload.width, workload.width), 'logistic': ()}
  if workload.model in hidden:
    return models.build_mlp(workloads.NUM_CLASSES, hidden[workload.model])
  if workload.model == 'transformer':
    return models.build_transformer(workloads.NUM_CHARACTERS)
  return _pfl_cnn if workload.model == 'pfl_cnn' else models.build_cnn(workloads.NUM_CLASSES)


def _input_spec(workload):
  labels = tf.TensorSpec([None], tf.int32)
  if workload.model == 'transformer':
    tokens = tf.TensorSpec([None, workloads.NUM_POSITIONS], tf.int32)
    x = collections.OrderedDict(tokens=tokens, seed=tf.TensorSpec([2], tf.int32))
  else:
    x = tf.TensorSpec([None, *workloads.arrays(workload)['x'].shape[1:]])
  return collections.OrderedDict(x=x, y=labels)


def model_fn(workload: workloads.Workload, precision: str = 'float32') -> Callable[[], object]:
  """Returns the workload's model as TFF wants it, with products of matrices in `precision`."""
  options = {}
  if precision != 'float32':
    if 'precision' not in inspect.signature(models.build_model_fns).parameters:
      raise SystemExit('the models of this version take no `precision`')
    options['precision'] = precision
  return models.build_model_fns(_network(workload), _input_spec(workload), **options)[0]


def structure(workload: workloads.Workload, x, y, seed):
  """Returns a batch, or all batches, in the order of the model's input."""
  if workload.model == 'transformer':
    x = collections.OrderedDict(tokens=x, seed=seed)
  return collections.OrderedDict(x=x, y=y)


def batched_clients(workload: workloads.Workload) -> list[tf.data.Dataset]:
  """Returns ordinary clients: datasets of batches."""
  arrays = workloads.arrays(workload)
  seeds = np.zeros([workload.num_steps, 2], np.int32)
  return [
    tf.data.Dataset.from_tensor_slices(
      structure(workload, arrays['x'][rows], arrays['y'][rows], seeds)
    )
    for rows in workloads.index(workload)
  ]


def packed_clients(workload: workloads.Workload) -> list[tf.data.Dataset]:
  """Returns packed clients: the arrays of all, and each client's index."""
  arrays = workloads.arrays(workload)
  seeds = tf.zeros([workload.num_steps, 2], tf.int32)
  data = structure(workload, tf.constant(arrays['x']), tf.constant(arrays['y']), seeds)
  elements = [
    collections.OrderedDict(data=data, index=tf.constant(rows))
    for rows in workloads.index(workload)
  ]
  return [
    resident.remember(tf.data.Dataset.from_tensors(element), element, tf.nest.flatten(data))
    for element in elements
  ]


def task(workload: workloads.Workload) -> tasks.Task:
  """Returns the workload as a task, which makes clients' data as `simulation.run` has it made."""
  arrays = workloads.arrays(workload)
  data = collections.OrderedDict(x=arrays['x'], y=arrays['y'])
  rows = workloads.index(workload).reshape(workload.num_clients, -1)
  names = [f'client{i:06d}' for i in range(workload.num_clients)]
  return tasks.build_task(
    'benchmark',
    train=data,
    test=collections.OrderedDict((name, array[:10]) for name, array in data.items()),
    partition=tasks.Partition(names, list(rows), arrays['y']),
    model_fn=model_fn(workload),
  )
