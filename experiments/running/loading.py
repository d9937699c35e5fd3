# SPDX-License-Identifier: Apache-2.0
"""From a run's directory to its task and trained model. Imports TensorFlow: import it last."""

import json
import pathlib

import fednar_tff
from experiments.definition import identity, parsing
from experiments.definition.settings import UsageError
from experiments.running import building, directory, training
from fednar_tff import simulation


def read_settings(path):
  """Returns a run's settings, resolved, and its seeds.

  Raises:
    UsageError: If the directory holds no run of `train`.
  """
  config = directory.read_run_config(path)
  settings = config['settings']
  if settings.get('task_module') is not None:
    parsing.load_task_module(settings['task_module'])
  return identity.resolve(settings), simulation.Seeds(**config['seeds'])


def load_model(path, round_num=None, data_dir=None):
  """Returns the `TrainedModel` of a run, and its settings.

  Args:
    path: The run's directory.
    round_num: After how many rounds; the latest checkpoint if None.
    data_dir: Where the data is here, if it is not where the run had it.

  Raises:
    UsageError: If there is no run, no such checkpoint, or no data.
  """
  settings, seeds = read_settings(path)
  if data_dir is not None:
    if 'data_dir' not in settings:
      raise UsageError(f'--data_dir means nothing for task {settings["task"]}.')
    settings['data_dir'] = data_dir
  try:
    task = building.create_task(settings, seeds)
    model = simulation.load_model(path, round_num=round_num, task=task)
  except (simulation.RunDirectoryError, fednar_tff.tasks.DataError, ValueError) as e:
    raise UsageError(f'--run={path}: {e}') from e
  _check_is_the_result(pathlib.Path(path), model)
  return model, settings


def _check_is_the_result(path, model):
  """Raises a `UsageError` if the last checkpoint does not hold the weights of the result."""
  try:
    result = json.loads((path / 'result.json').read_text())
  except (OSError, ValueError):
    return  # Not finished.
  if result.get('rounds') != model.round_num or 'weights_sha256' not in result:
    return
  if result['weights_sha256'] != training.hash_weights(model.model_weights):
    raise UsageError(
      f'--run={path}: the checkpoint of round {model.round_num} does not hold the model of '
      'result.json: an earlier version '
      'saved no mean of two models. Train one round more.'
    )
