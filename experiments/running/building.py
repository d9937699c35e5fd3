# SPDX-License-Identifier: Apache-2.0
"""From settings to a runtime, a task and a process. Imports TensorFlow, so it is imported last."""

import json
import pathlib

import tensorflow as tf
import tensorflow_federated as tff

import fednar_tff
from experiments.definition import catalogue, identity
from experiments.definition.settings import UsageError
from fednar_tff import algorithms, optimizers, simulation, tasks

_WEIGHTINGS = {
  'uniform': tff.learning.ClientWeighting.UNIFORM,
  'num_examples': algorithms.DATA_SIZE,
}


def set_runtime(settings):
  """Makes computations run where the settings say."""
  if settings['runtime'] == 'in_process':
    fednar_tff.runtime.set_in_process_context(
      clients_per_device=settings['clients_per_device'],
      deterministic=settings['deterministic'],
      allow_tf32=settings['tf32'],
    )
  elif settings['runtime'] == 'native':
    fednar_tff.runtime.set_native_context()
  elif settings['runtime'] == 'cluster':
    fednar_tff.runtime.set_cluster_context(
      settings['cluster_address'],
      settings['num_workers'],
      settings['gpus_per_worker'],
      deterministic=settings['deterministic'],
      allow_tf32=settings['tf32'],
    )
  else:
    fednar_tff.runtime.set_remote_context(settings['workers'].split(','))


def derive_seeds(settings):
  """Returns the seed of each kind of random choice."""
  return simulation.derive_seeds(
    settings['seed'],
    partition=settings.get('partition_seed'),
    sampling=settings['sampling_seed'],
    model=settings['model_seed'],
    batches=settings['batch_seed'],
  )


def create_task(settings, seeds):
  """Creates the task with those settings and seeds that it takes."""
  values = {**settings, 'partition_seed': seeds.partition, 'model_seed': seeds.model}
  taken = tasks.task_arguments(settings['task'])
  chosen = {n: values[n] for n in taken if n != 'seed' and values.get(n) is not None}
  return tasks.create_task(settings['task'], **chosen)


def create_process(settings, task):
  """Builds the algorithm on the task's model, the functional one if it has it: it is faster."""
  option = catalogue.ALGORITHMS[settings['algorithm']]
  arguments = {
    'client_optimizer_fn': _client_optimizer(settings),
    'learning_rate_fn': _schedule(settings, 'learning_rate'),
    'weight_decay_fn': _schedule(settings, 'weight_decay'),
    'loop_implementation': algorithms.PACKED,
    'jit_compile': _check_jit_compile(settings, task),
    **{argument: settings[name] for name, argument in option.arguments.items()},
  }
  if 'client_weighting' in option.settings:
    arguments['client_weighting'] = _WEIGHTINGS[settings['client_weighting']]
  if settings.get('server_variant') == 'reference':
    arguments['epsilon_decay'] = settings['learning_rate_decay'] ** 2
  # Clients that carry states: the algorithm asks how many there are, or what they hold together.
  if 'client_state_storage' in option.settings:
    arguments['num_clients'] = len(task.partition.client_ids)
    if settings.get('client_weighting') == 'num_examples':
      arguments['total_examples'] = sum(map(len, task.partition.rows))
  if 'server_learning_rate' in option.settings and 'server_learning_rate' not in option.arguments:
    arguments['server_optimizer_fn'] = tff.learning.optimizers.build_sgdm(
      settings['server_learning_rate']
    )
  model = task.functional_model_fn() if task.functional_model_fn else task.model_fn
  return algorithms.get_builder(option.name)(model, **arguments)


def _check_jit_compile(settings, task):
  """Returns whether XLA compiles the step. Short batches are an error: each size compiles."""
  if not settings.get('jit_compile'):
    return False
  if task.functional_model_fn is None:
    raise UsageError(f'--jit_compile needs a functional model, and task {task.name} has none.')
  batch_size = settings['batch_size']
  for client_id, rows in zip(task.partition.client_ids, task.partition.rows):
    if len(rows) % batch_size:
      raise UsageError(
        f'--jit_compile needs full batches: client {client_id} holds {len(rows)} examples, '
        f'not a multiple of --batch_size={batch_size}.'
      )
  return True


def _client_optimizer(settings):
  rates = settings['learning_rate'], settings['weight_decay']
  if settings['client_optimizer'] == 'sgd':
    return optimizers.build_clipped_sgd(*rates, max_norm=float('inf'))
  builders = {'nar': optimizers.build_nar, 'clip': optimizers.build_clipped_sgd}
  return builders[settings['client_optimizer']](
    *rates, settings['max_norm'], epsilon=settings['norm_epsilon']
  )


def _schedule(settings, name):
  value, kind = settings[name], settings[f'{name}_schedule']
  if kind == 'constant':
    schedule = algorithms.constant(value)
  elif kind == 'exponential':
    schedule = algorithms.exponential_decay(
      value, settings[f'{name}_decay'], first_round_decays=settings['first_round_decays']
    )
  elif kind == 'cosine':
    schedule = algorithms.cosine_decay(
      value, settings[f'{name}_decay_rounds'], settings[f'{name}_final_fraction']
    )
  else:
    schedule = algorithms.step_decay(
      value, settings[f'{name}_decay_rounds'], settings[f'{name}_decay']
    )
  warm_up = settings[f'{name}_warm_up']
  return algorithms.linear_warm_up(schedule, warm_up) if warm_up else schedule


def round_of(settings, task):
  """Returns the task that rounds are run on, and how many clients do how much in one.

  Without federation, that is one client with all data, which processes as many examples as the
  clients would.
  """
  work = {name: settings.get(name) for name in ('clients_per_round', 'local_steps', 'local_epochs')}
  if settings['algorithm'] != 'centralized':
    return task, work
  examples = task.examples_per_round(**work, batch_size=settings['batch_size'])
  steps = max(1, round(examples / settings['batch_size']))
  return task.pooled(), {'clients_per_round': 1, 'local_steps': steps, 'local_epochs': None}


def optimizer_of_round(settings, round_num):
  """Returns the clients' optimizer with the rates of a round, counted from 0."""
  rates = {
    name: float(_schedule(settings, name)(tf.constant(round_num)))
    for name in ('learning_rate', 'weight_decay')
  }
  return _client_optimizer({**settings, **rates})


def num_weights(task):
  """Returns the number of the model's trainable weights."""
  return sum(int(tf.size(w)) for w in task.model_fn().trainable_variables)


def draw_partition(run_path, picture_path):
  """Draws who holds which classes, from a run's seeds and data."""
  config = json.loads((pathlib.Path(run_path) / 'config.json').read_text())
  seeds = simulation.Seeds(**config['seeds'])
  create_task(identity.resolve(identity.of_config(config['settings'])), seeds).partition.plot(
    picture_path
  )
