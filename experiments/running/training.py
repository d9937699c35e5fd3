# SPDX-License-Identifier: Apache-2.0
"""One run: from settings to a directory with its metrics, checkpoints and result."""

import hashlib
import json
import platform

from experiments.definition import catalogue, presets
from experiments.definition.settings import RunDivergedError, RunFailedError, UsageError
from experiments.running import directory, tensorflow_import

_PASSED_ON = (
  'total_rounds', 'batch_size', 'rounds_per_evaluation', 'rounds_per_checkpoint',
)  # fmt: skip


# Not for long enough to be stopped, but up to the end.
_DIVERGED_AT_THE_END = 'The run has diverged: no client had a finite update in the last round.'


def train(settings, quiet=False):
  """Runs what the settings, resolved, say, or the rest of it; returns the run's directory.

  Raises:
    UsageError: If something can be mended: settings, data, the directory. A run that began and
      failed or diverged is a `RunFailedError`, which is one.
  """
  path = directory.output_dir(settings)
  directory.check(path, settings)
  if directory.is_finished(path, settings):
    if directory.has_diverged(path):
      raise RunDivergedError(f'{path}: {_DIVERGED_AT_THE_END}')
    if not quiet:
      print(f'{path} is finished: {json.dumps(directory.read_result(path))}')
    return path
  directory.check_writable(path)
  settings = {**settings, 'title': settings['title'] or presets.title(settings)}

  tensorflow_import.import_tensorflow()
  import fednar_tff
  from experiments.running import building

  try:
    building.set_runtime(settings)
    seeds = building.derive_seeds(settings)
    task = building.create_task(settings, seeds)
    _check_partition(path, task.partition.hash)
    process = building.create_process(settings, task)
    round_task, work = building.round_of(settings, task)
    run = _start(settings, seeds, round_task, process, path, work)
  except (
    fednar_tff.tasks.DataError,
    fednar_tff.simulation.RunDirectoryError,
    ConnectionError,
  ) as e:
    raise UsageError(str(e)) from e
  except (ValueError, ImportError) as e:
    if not _is_ours(e, fednar_tff):
      raise
    raise UsageError(str(e)) from e
  config = {
    'settings': settings,
    'seeds': seeds._asdict(),
    'partition_hash': task.partition.hash,
    'environment': _describe_environment(),
  }
  with directory.writing_to(path):
    directory.save_json(path / 'config.json', config)
    (path / 'result.json').unlink(missing_ok=True)  # Of fewer rounds, if there is one.
  if not quiet:
    largest = max(map(len, round_task.partition.rows))
    num_weights = building.num_weights(task)
    lines = _describe(settings, task, work, largest, num_weights, path, run.round_num)
    print(lines, flush=True)
  try:
    run.finish(settings['title'], quiet=quiet)
  except fednar_tff.simulation.DivergedError as e:
    _save_result(path, run.model_weights, diverged=True)
    raise RunDivergedError(f'{path}: {e.reason}; --stop_on_divergence=0 goes on.') from e
  except (
    fednar_tff.simulation.RunDirectoryError,
    fednar_tff.runtime.ClientError,
    ConnectionError,
  ) as e:
    raise RunFailedError(str(e)) from e
  if run.diverged_rounds:
    _save_result(path, run.model_weights, diverged=True)
    raise RunDivergedError(f'{path}: {_DIVERGED_AT_THE_END}')
  summary = _save_result(path, run.model_weights)
  if not quiet:
    print(f'{path}: {json.dumps(summary)}')
  return path


def _start(settings, seeds, task, process, path, work):
  from fednar_tff import simulation

  return simulation.run(
    task,
    process,
    output_dir=path,
    seed=seeds,
    **work,
    client_states_in_memory=settings.get('client_state_storage') != 'disk',
    evaluation_examples=settings['evaluation_examples'] or None,
    rounds_per_client_evaluation=settings['rounds_per_client_evaluation'] or None,
    stop_on_divergence=settings['stop_on_divergence'] or None,
    **{name: settings[name] for name in _PASSED_ON},
  )


def _check_partition(path, partition_hash):
  """Refuses to go on with other data than a run began with."""
  config = directory.read_config(path)
  if config is not None and 'partition_hash' not in config:
    raise UsageError(
      f'{path / "config.json"} is damaged: it has no partition_hash. Choose another --output_dir.'
    )
  if config is not None and config['partition_hash'] != partition_hash:
    raise UsageError(
      f'{path} was begun on other data (its partition has another hash). '
      'Choose another --output_dir.'
    )


def _is_ours(error, package):
  """Returns whether an error was raised by a line of this package, and not of TensorFlow or TFF."""
  frame = error.__traceback__
  while frame.tb_next is not None:
    frame = frame.tb_next
  return frame.tb_frame.f_globals.get('__name__', '').startswith(package.__name__ + '.')


def _describe(settings, task, round_work, largest_client, num_weights, path, round_num):
  """Returns what a run is, in a few lines for the log."""
  import fednar_tff

  s = settings
  split = [s['partition']] if 'partition' in s else []
  split += [f'alpha {s["alpha"]:g}'] if s.get('alpha') is not None else []
  clients = _count(len(task.partition.client_ids), 'client')
  clients += f' ({", ".join(split)})' if split else ''
  steps, epochs = round_work['local_steps'], round_work['local_epochs']
  work = _count(steps, 'step') if steps is not None else _count(epochs, 'epoch')
  work += f' of {s["batch_size"]:,} examples'
  if s['batch_size'] > largest_client:
    work += f' (a batch is all that a client holds, at most {largest_client:,})'
  work += ' on '
  if s['algorithm'] == 'centralized':
    work += "all clients' data a round"
  else:
    work += f'{_count(s["clients_per_round"], "client")} a round'
  rates = f'learning rate {s["learning_rate"]:g}, weight decay {s["weight_decay"]:g}'
  rates += f', A = {s["max_norm"]:g}' if 'max_norm' in s else ''
  algorithm = f'{catalogue.ALGORITHMS[s["algorithm"]].title} with {s["client_optimizer"]}'
  # The devices that have just done a small product, not those that were asked for.
  runtime = fednar_tff.runtime.describe()
  devices = ', '.join(runtime.get('executes_on') or runtime['devices']) or s.get('workers', '')
  begins = f'resumes after round {round_num}' if round_num else 'starts'
  return '\n'.join([
    f'{s["task"]}: {s.get("model", "its own model")}, {num_weights:,} weights, {clients}',
    f'{algorithm}: {rates}; {work}',
    f'on {s["runtime"]} ({devices})',
    f'in {path}: {begins}, of {_count(s["total_rounds"], "round")}',
  ])  # fmt: skip


def _count(number, noun):
  return f'{number} {noun}' if number == 1 else f'{number} {noun}s'


def _save_result(path, weights, **marks):
  from experiments.reading import figures, runs

  found = runs.read_run(path)
  summary = {**found.summary(), 'weights_sha256': hash_weights(weights), **marks}
  with directory.writing_to(path):
    figures.plot_run(found, path / 'curves.png')
    # Last: its presence says that the run is finished.
    directory.save_json(path / 'result.json', summary)
  return summary


def _describe_environment():
  """Returns the versions and devices of this machine."""
  import tensorflow as tf
  import tensorflow_federated as tff

  import fednar_tff

  return {
    'fednar_tff': fednar_tff.__version__,
    'tensorflow': tf.__version__,
    'tensorflow_federated': tff.__version__,
    'python': platform.python_version(),
    'processor': fednar_tff.processor.describe(),
    'runtime': fednar_tff.runtime.describe(),
  }


def hash_weights(weights):
  """Returns a hash by which two runs can be compared to the bit."""
  import numpy as np
  import tensorflow as tf

  leaves = tf.nest.flatten([list(weights.trainable), list(weights.non_trainable)])
  return hashlib.sha256(b''.join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()
