"""From settings to a run: what the binaries and the demo share."""

import hashlib
import json
import os
import pathlib
import platform
import sys

from experiments import settings as settings_lib


def train(settings, quiet=False):
  """Runs what the settings say, or the rest of it; returns the run's directory."""
  output_dir = pathlib.Path(
    settings['output_dir'] or pathlib.Path('runs') / settings_lib.run_name(settings)
  )
  check_directory(output_dir, settings)
  if (output_dir / 'result.json').exists():
    print(f'{output_dir} is finished: {(output_dir / "result.json").read_text().strip()}')
    return output_dir

  os.environ.setdefault(
    'TF_CPP_MIN_LOG_LEVEL', '3'
  )  # At 2, TensorFlow complains of GPU libraries on each start.
  # Imported only now: flags are checked, and help is shown, without waiting for TensorFlow.
  import fednar_tff
  from experiments import plots, results

  set_runtime(settings)
  seeds = fednar_tff.simulation.derive_seeds(
    settings['seed'],
    partition=settings['partition_seed'],
    sampling=settings['sampling_seed'],
    model=settings['model_seed'],
    batches=settings['batch_seed'],
  )
  try:
    task = create_task(settings, seeds)
    process = create_process(settings, task)
    run = fednar_tff.simulation.run(
      task,
      process,
      output_dir=output_dir,
      sampling_seed=seeds.sampling,
      batch_seed=seeds.batches,
      share_data=settings['runtime'] == 'in_process',
      client_states_in_memory=settings.get('client_state_storage') != 'disk',
      **{
        name: settings[name]
        for name in (
          'total_rounds', 'clients_per_round', 'batch_size', 'local_steps', 'local_epochs',
          'rounds_per_evaluation', 'rounds_per_checkpoint',
        )
      },
    )  # fmt: skip
  except (ValueError, fednar_tff.tasks.DataError, fednar_tff.simulation.RunDirectoryError) as e:
    raise settings_lib.UsageError(str(e)) from e
  check_partition(output_dir, task.partition.hash)
  save_json(output_dir / 'config.json', {
    'settings': settings,
    'seeds': seeds._asdict(),
    'partition_hash': task.partition.hash,
    'environment': describe_environment(),
  })  # fmt: skip
  if run.round_num:
    print(f'{output_dir}: resumes after round {run.round_num} of {settings["total_rounds"]}.')
  try:
    run.finish(settings['title'] or output_dir.name)
  except fednar_tff.simulation.RunDirectoryError as e:
    sys.exit(f'train: {e}')

  found = results.read_run(output_dir)
  plots.plot_run(found, output_dir / 'curves.png')
  summary = {**found.summary(), 'weights_sha256': hash_weights(run.model_weights)}
  save_json(
    output_dir / 'result.json', summary
  )  # Last: its presence says that the run is finished.
  if not quiet:
    print(f'{output_dir}: {json.dumps(summary)}')
  return output_dir


def check_directory(output_dir, settings):
  """Refuses a directory that holds another run."""
  config = output_dir / 'config.json'
  if config.exists():
    lines = settings_lib.difference(json.loads(config.read_text())['settings'], settings)
    if lines:
      raise settings_lib.UsageError(
        f'{output_dir} holds a run with other settings ({"; ".join(lines)}). Choose another --output_dir.'
      )


def check_partition(output_dir, partition_hash):
  """Refuses to go on with other data than a run began with."""
  config = output_dir / 'config.json'
  if config.exists() and json.loads(config.read_text())['partition_hash'] != partition_hash:
    raise settings_lib.UsageError(
      f'{output_dir} was begun on other data (its partition has another hash). Choose another --output_dir.'
    )


def set_runtime(settings):
  import fednar_tff

  if settings['runtime'] == 'in_process':
    fednar_tff.runtime.set_in_process_context()
  elif settings['runtime'] == 'native':
    fednar_tff.runtime.set_native_context()
  else:
    fednar_tff.runtime.set_remote_context(settings['workers'].split(','))


def create_task(settings, seeds):
  import fednar_tff

  names = (
    'model',
    'num_clients',
    'alpha',
    'partition',
    'augmentation',
    'pooling',
    'crop_windows',
    'dropout',
    'data_dir',
  )
  chosen = {name: settings[name] for name in names if settings.get(name) is not None}
  with_partition_seed = (
    {'partition_seed': seeds.partition} if settings['task'] != 'cifar100' else {}
  )
  return fednar_tff.tasks.create_task(
    settings['task'], model_seed=seeds.model, **with_partition_seed, **chosen
  )


def create_process(settings, task):
  """Builds the algorithm on the task's model, as a functional model where there is one, which is faster."""
  import tensorflow_federated as tff

  import fednar_tff
  from fednar_tff import algorithms, optimizers

  learning_rate, weight_decay = settings['learning_rate'], settings['weight_decay']
  if settings['client_optimizer'] == 'nar':
    optimizer = optimizers.build_nar(
      learning_rate, weight_decay, settings['max_norm'], epsilon=settings['norm_epsilon']
    )
  elif settings['client_optimizer'] == 'clip':
    optimizer = optimizers.build_clipped_sgd(
      learning_rate, weight_decay, settings['max_norm'], epsilon=settings['norm_epsilon']
    )
  else:
    optimizer = optimizers.build_clipped_sgd(learning_rate, weight_decay, max_norm=float('inf'))

  def schedule(value, decay):
    return algorithms.exponential_decay(
      value, decay, first_round_decays=settings['first_round_decays']
    )

  arguments = {
    'client_optimizer_fn': optimizer,
    'learning_rate_fn': schedule(learning_rate, settings['learning_rate_decay']),
    'weight_decay_fn': schedule(weight_decay, settings['weight_decay_decay']),
    'client_weighting': tff.learning.ClientWeighting[settings['client_weighting'].upper()],
    'loop_implementation': algorithms.PACKED,
  }
  algorithm = settings['algorithm']
  if algorithm == 'fed_prox':
    arguments['proximal_strength'] = settings['proximal_strength']
  elif algorithm == 'fed_exp':
    arguments['epsilon'] = settings['extrapolation_epsilon']
    arguments['average_last_two'] = settings['average_last_two']
  elif algorithm == 'fed_avgm':
    arguments['server_momentum'] = settings['server_momentum']
  elif algorithm == 'fed_adam':
    arguments['beta_1'], arguments['beta_2'] = settings['server_beta_1'], settings['server_beta_2']
    arguments['epsilon'], arguments['variant'] = (
      settings['server_epsilon'],
      settings['server_variant'],
    )
  elif algorithm == 'scaffold':
    arguments['num_clients'] = len(task.partition.client_ids)
  if settings['server_learning_rate'] is not None:
    if algorithm in ('fed_adam', 'fed_avgm'):
      arguments['server_learning_rate'] = settings['server_learning_rate']
    else:
      arguments['server_optimizer_fn'] = tff.learning.optimizers.build_sgdm(
        settings['server_learning_rate']
      )
  model = task.functional_model_fn() if task.functional_model_fn else task.model_fn
  return fednar_tff.algorithms.get_builder(algorithm)(model, **arguments)


def describe_environment():
  """Returns the versions and devices of this machine."""
  import tensorflow as tf
  import tensorflow_federated as tff

  import fednar_tff

  return {
    'fednar_tff': fednar_tff.__version__,
    'tensorflow': tf.__version__,
    'tensorflow_federated': tff.__version__,
    'python': platform.python_version(),
    'runtime': fednar_tff.runtime.describe(),
  }


def hash_weights(weights):
  """Returns a hash by which two runs can be compared to the bit."""
  import numpy as np
  import tensorflow as tf

  leaves = tf.nest.flatten([list(weights.trainable), list(weights.non_trainable)])
  return hashlib.sha256(b''.join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def save_json(path, value):
  """Writes a file in one step: it is there whole, or not at all."""
  temporary = path.with_suffix('.json_temp')
  temporary.write_text(json.dumps(value, indent=2, default=str) + '\n')
  temporary.replace(path)
