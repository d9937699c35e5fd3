# SPDX-License-Identifier: Apache-2.0
"""Models that leave a run: read from its checkpoints, called, and exported."""

import collections
import importlib.util
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import tasks
from fednar_tff.simulation import checkpoints, storage


class TrainedModel:
  """A model as a run has saved it, made by `load_model`. Call it with raw examples.

  Attributes:
    task: The task that it was trained on.
    round_num: After how many rounds.
    weights: Its weights by name, the trainable ones first.
  """

  def __init__(
    self, task: tasks.Task, round_num: int, weights: collections.OrderedDict[str, np.ndarray]
  ):
    self.task, self.round_num, self.weights = task, round_num, weights
    self._model = task.model_fn()
    for variable, value in zip(self.variables, weights.values(), strict=True):
      variable.assign(value)
    self._predict = tf.function(lambda raw: task.predict_raw(self._model, raw), autograph=False)

  @property
  def variables(self) -> list[tf.Variable]:
    """The variables in the order of `weights`."""
    return [*self._model.trainable_variables, *self._model.non_trainable_variables]

  @property
  def model_weights(self) -> tff.learning.models.ModelWeights:
    """The weights as TFF's processes and `build_evaluation` take them."""
    values = list(self.weights.values())
    num_trainable = len(self._model.trainable_variables)
    return tff.learning.models.ModelWeights(values[:num_trainable], values[num_trainable:])

  @property
  def input_spec(self) -> Any:
    """What the model takes: a batch of raw examples, images or text; see `tasks.RawInput`."""
    return self.task.raw_input.spec

  def __call__(self, raw: Any) -> tf.Tensor:
    """Returns the logits of a batch of raw examples."""
    raw = tf.nest.map_structure(
      lambda leaf, spec: tf.convert_to_tensor(leaf, spec.dtype), raw, self.input_spec
    )
    return self._predict(raw)


def load_model(
  directory: str | pathlib.Path, *, round_num: int | None = None, task: tasks.Task | None = None
) -> TrainedModel:
  """Returns the model that a run has saved.

  The task is created again, with its data, from what the run has noted in `task.json`; a task of
  your own has to be registered before. A run of another process may go on meanwhile. Of a run that
  was interrupted (Ctrl-C), the model is that of the server's state, also where the algorithm
  evaluates another one (FedExP's mean of two).

  Args:
    directory: The `output_dir` of the run.
    round_num: After how many rounds; the latest checkpoint unless given. The last three are kept.
    task: The task of the run, if it was not made by `create_task`, or by an earlier version of this
      package.

  Raises:
    RunDirectoryError: If there is no run, or it has no such checkpoint, or none that fits the task.
    ValueError: If the task is not known.
  """
  directory = pathlib.Path(directory)
  found_round, path = _find_checkpoint(directory, round_num)
  try:
    checkpoint = checkpoints.read(path)
  except Exception as e:
    raise storage.RunDirectoryError(f'{path} is damaged ({type(e).__name__}).') from e
  if task is None:
    task = _create_task(directory)
  with tf.Graph().as_default():
    model = task.model_fn()
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    names = checkpoints.variable_names(variables)
    shapes = [tuple(v.shape) for v in variables]
  weights = checkpoint.model()
  if weights is None:  # An earlier version's, whose state begins with the model.
    weights = collections.OrderedDict(zip(names, checkpoint.leaves))
  if [w.shape for w in weights.values()] != shapes:
    raise storage.RunDirectoryError(f'{path} holds another model than that of task {task.name}.')
  return TrainedModel(task, found_round, weights)


def _find_checkpoint(directory, round_num):
  """Returns the number of a checkpoint and its folder."""
  prefix = 'program_state_'
  found = {
    int(path.name.removeprefix(prefix)): path
    for path in (directory / 'checkpoints').glob(f'{prefix}*')
    if path.name.removeprefix(prefix).isdecimal()
  }
  if not (directory / 'checkpoints').is_dir():
    raise storage.RunDirectoryError(f'{directory} is no directory of a run: it has no checkpoints.')
  if not found:
    raise storage.RunDirectoryError(f'{directory} has no checkpoint yet.')
  if round_num is None:
    round_num = max(found)
  if round_num not in found:
    saved = ', '.join(map(str, sorted(found)))
    raise storage.RunDirectoryError(
      f'Round {round_num} of {directory} is not saved; saved are {saved}.'
    )
  return round_num, found[round_num]


def _create_task(directory):
  try:
    arguments = json.loads((directory / storage.TASK).read_text())
    return tasks.create_task(**arguments)
  except FileNotFoundError as e:
    raise storage.RunDirectoryError(
      f'{directory} does not say how its task is created: pass `task`.'
    ) from e
  except (OSError, TypeError, json.JSONDecodeError) as e:
    raise storage.RunDirectoryError(f'{directory / storage.TASK} is damaged: pass `task`.') from e


def _save_npz(model, path):
  with open(path, 'wb') as file:  # Of a name alone, NumPy would add a suffix.
    np.savez(file, **model.weights)


def _save_keras(model, path):
  keras_model_fn = getattr(model.task, 'keras_model_fn', None)
  if keras_model_fn is None:
    raise ValueError(
      f'Task {model.task.name} has no form of stock Keras layers (`keras_model_fn` of '
      '`build_task`); other formats are npz and saved_model.'
    )
  if importlib.util.find_spec('h5py') is None:
    raise ValueError('Format keras needs a package that is missing: pip install h5py.')
  keras_model_fn(model.weights).save(path, save_format='keras')


def _save_saved_model(model, path):
  module = tf.Module()
  module.weights = dict(zip(model.weights, model.variables))
  module.__call__ = tf.function(lambda inputs: model(inputs), input_signature=[model.input_spec])

  def serve(inputs):
    return {'logits': module.__call__(inputs)}

  signature = tf.function(serve, input_signature=[model.input_spec])
  tf.saved_model.save(module, str(path), signatures=signature)


# How a format is written, and how its files end; a SavedModel is a folder.
_FORMATS: dict[str, tuple[Callable[[TrainedModel, pathlib.Path], None], str]] = {
  'npz': (_save_npz, '.npz'),
  'keras': (_save_keras, '.keras'),
  'saved_model': (_save_saved_model, ''),
}
EXPORT_FORMATS = {name: suffix for name, (_, suffix) in _FORMATS.items()}


def export_model(model: TrainedModel, path: str | pathlib.Path, format: str) -> None:
  """Writes a model for use without this package.

  Args:
    model: From `load_model`.
    path: Where to; nothing may be there. It is there whole afterwards, or not at all.
    format: 'npz' are the weights by name, for NumPy. 'keras' is a file for
      `tf.keras.models.load_model`, of stock layers only. 'saved_model' is a folder for
      `tf.saved_model.load`, a callable that takes raw images or text and returns logits. The last
      two need only TensorFlow.

  Raises:
    RunDirectoryError: If something is at `path`, or it cannot be written.
    ValueError: If the format is unknown, or the model has none such.
  """
  path = pathlib.Path(path)
  if format not in _FORMATS:
    raise ValueError(f'`format` must be one of {", ".join(_FORMATS)}, found {format!r}.')
  if os.path.lexists(path):
    raise storage.RunDirectoryError(f'{path} exists already; choose another place.')
  save, suffix = _FORMATS[format]
  if suffix and path.suffix != suffix:
    raise ValueError(f'A file of format {format} must end in {suffix}, found {path}.')
  storage.check_output_dir(path.parent)
  folder = pathlib.Path(tempfile.mkdtemp(prefix='.export_', dir=path.parent))
  try:
    with storage.writing_to(path):
      save(model, folder / path.name)
      (folder / path.name).rename(path)
  finally:
    shutil.rmtree(folder, ignore_errors=True)
