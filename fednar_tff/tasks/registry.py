# SPDX-License-Identifier: Apache-2.0
"""The names under which tasks are created."""

import inspect
from collections.abc import Callable
from typing import Any

import attrs
import tensorflow_federated as tff

from fednar_tff.tasks import cifar, shakespeare, small_tasks, task

_BUILDERS = {
  'cifar10': cifar.build_cifar10,
  'cifar100': cifar.build_cifar100,
  'digits': small_tasks.build_digits,
  'shakespeare': shakespeare.build_shakespeare,
  'synthetic': small_tasks.build_synthetic,
}


def task_names() -> list[str]:
  """Returns the names that `create_task` knows."""
  return sorted(_BUILDERS)


def task_arguments(name: str) -> dict[str, Any]:
  """Returns the arguments of `create_task` that a task takes, with their defaults.

  >>> task_arguments('synthetic')['num_clients']
  10

  Args:
    name: One of `task_names()`.

  Raises:
    ValueError: If the name is not known.
  """
  own = {k: p.default for k, p in inspect.signature(_builder(name)).parameters.items()}
  return {**own, 'validation_share': 0.0}


def register_task(name: str, builder: Callable[..., task.Task]) -> None:
  """Makes a task available to `create_task` under a name.

  Args:
    name: A name that is not taken.
    builder: A function that returns a task and takes, as keyword arguments with defaults, those
      arguments of `create_task` that mean something to it.

  Raises:
    ValueError: If the name is taken.
  """
  if name in _BUILDERS:
    raise ValueError(f'`name` must be a new one, found {name!r}; taken: {", ".join(task_names())}.')
  _BUILDERS[name] = builder


def create_task(
  name: str,
  *,
  model: str | None = None,
  seed: int = 0,
  data_dir: str | None = None,
  num_clients: int | None = None,
  alpha: float | None = None,
  partition: str | None = None,
  partition_seed: int | None = None,
  model_seed: int | None = None,
  train_client_spec: tff.simulation.baselines.ClientSpec | None = None,
  precision: str | None = None,
  validation_share: float | None = None,
  **options: Any,
) -> task.Task:
  """Creates a task by name.

  None means the task's own default. An argument that the task would ignore is an error.

  Args:
    name: One of `task_names()`.
    model: 'resnet18', 'small_resnet18', 'cnn', 'small_cnn', 'mlp', 'transformer' or
      'small_transformer', as far as it fits the data.
    seed: The default of every seed below.
    data_dir: Where the data is, instead of the default folder of tfds or TFF.
    num_clients: The number of clients.
    alpha: The concentration of a Dirichlet partition.
    partition: 'dirichlet' (equal sizes, the paper's), 'dirichlet_unequal' or 'iid'; cifar100 and
      shakespeare come divided and take none.
    partition_seed: The seed of the partition.
    model_seed: The seed of the initial weights.
    train_client_spec: Epochs and batches of `datasets.train_preprocess_fn`, for stock pipelines.
    precision: 'float32', 'bfloat16' or 'float16', the type in which the model multiplies; weights,
      optimizer, norms, softmax, loss and metrics are float32 in any case. See `build_model_fns`.
    validation_share: The share of each client's training examples that becomes the test set, in
      place of the real one; see `Task.with_validation`. 0 is the default.
    **options: Switches of single tasks and models, and whatever a registered task takes. For CIFAR
      `augmentation` ('per_image', 'per_batch' or 'none'), `padding` ('mean' or 'black') and, of
      resnet18, `pooling` ('global' or 'top_left'); for Shakespeare `crop_windows`, `text` ('tff' or
      'leaf') and those of its model: `dropout`, `input_dropout`, `initialization` ('released' or
      'uniform'), `identical_layers` and `prediction` ('last' or 'every'); for synthetic `dropout`.

  Returns:
    A `Task`, which is a `tff.simulation.baselines.BaselineTask`.

  Raises:
    ValueError: If a name is unknown or an argument does not fit the task.
  """
  builder = _builder(name)
  given = dict(
    options,
    model=model,
    data_dir=data_dir,
    num_clients=num_clients,
    alpha=alpha,
    partition=partition,
    partition_seed=partition_seed,
    model_seed=model_seed,
    train_client_spec=train_client_spec,
    precision=precision,
  )
  given = {key: value for key, value in given.items() if value is not None}
  taken = task_arguments(name)
  ignored = sorted(set(given) - set(taken))
  if ignored:
    raise ValueError(
      f'Task {name!r} does not take {", ".join(ignored)}; it takes {", ".join(sorted(taken))}.'
    )
  for key in ('seed', 'partition_seed', 'model_seed'):
    if key in taken:
      given.setdefault(key, seed)
  made = builder(**given)
  if not isinstance(made, task.Task):  # Any `BaselineTask` can be registered.
    if validation_share:
      raise ValueError(
        f'`validation_share` must be 0 for task {name!r}, which is no `Task` of this package, '
        f'found {validation_share}.'
      )
    return made
  if validation_share:
    made = made.with_validation(validation_share, seed=given.get('partition_seed', seed))
    given['validation_share'] = validation_share
  arguments = {'name': name, **taken, **given}
  arguments.pop('train_client_spec', None)  # Of stock pipelines; it changes neither data nor model.
  return attrs.evolve(made, arguments=arguments)


def _builder(name):
  if name not in _BUILDERS:
    raise ValueError(f'`name` must be one of {", ".join(task_names())}, found {name!r}.')
  return _BUILDERS[name]
