# SPDX-License-Identifier: Apache-2.0
"""What the built-in tasks share: choosing a partition, a network and their seeds by name."""

import collections
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from fednar_tff.tasks import models, step_seeds, task, task_builder
from fednar_tff.tasks import partition as partition_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonArguments:
  """The arguments of `create_task` that every built-in task takes and none looks at.

  Attributes:
    seed: The seed of the task.
    model_seed: The seed of the initial weights.
    train_client_spec: Epochs and batches of `datasets.train_preprocess_fn`.
    precision: The type in which the model multiplies.
  """

  seed: int = 0
  model_seed: int = 0
  train_client_spec: Any = None
  precision: str = 'float32'


def choose(kind: str, name: str, choices: dict[str, Any]) -> Any:
  """Returns `choices[name]`, or raises a ValueError that lists the choices."""
  if name not in choices:
    argument, *more = kind.split(' ', 1)
    label = ' '.join([f'`{argument}`', *more])
    raise ValueError(f'{label} must be one of {", ".join(choices)}, found {name!r}.')
  return choices[name]


def make_partition(
  kind: str,
  labels: np.ndarray,
  num_clients: int,
  alpha: float | None,
  *,
  default_alpha: float,
  seed: int,
) -> partition_lib.Partition:
  """Makes a partition of the named kind; `alpha` is an error for a kind that has none."""
  builder = choose(
    'partition',
    kind,
    {
      'dirichlet': partition_lib.build_dirichlet,
      'dirichlet_unequal': partition_lib.build_dirichlet_unequal,
      'iid': partition_lib.build_iid,
    },
  )
  if kind == 'iid':
    if alpha is not None:
      raise ValueError(f'`alpha` must be None in an iid partition, found {alpha}.')
    return builder(labels, num_clients, seed=seed)
  return builder(labels, num_clients, default_alpha if alpha is None else alpha, seed=seed)


def check_dropout(dropout: float) -> None:
  """Raises a `ValueError` if a share of dropped values is out of range."""
  if not 0 <= dropout < 1:
    raise ValueError(f'`dropout` must be at least 0 and less than 1, found {dropout}.')


def assemble(
  name: str,
  common: CommonArguments,
  *,
  train: collections.OrderedDict,
  test: collections.OrderedDict,
  partition: partition_lib.Partition,
  network: Any,
  needs_seed: bool = False,
  **outside_of_training: Any,
) -> task.Task:
  """Builds a task whose input spec follows from its arrays.

  Args:
    name: The task's name.
    common: The arguments of all tasks.
    train: The training examples.
    test: The test examples.
    partition: How the training examples are divided.
    network: The model, see `build_model_fns`.
    needs_seed: Whether the model takes a seed in each step.
    **outside_of_training: `raw_input` and `keras_model_fn`, as in `build_task`.
  """

  def spec_of(leaf):
    return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)

  input_spec = tf.nest.map_structure(spec_of, train)
  if needs_seed:
    input_spec['x'][step_seeds.SEED_KEY] = tf.TensorSpec([2], tf.int32)
  model_fn, functional_model_fn = models.build_model_fns(
    network, input_spec, common.model_seed, common.precision
  )
  return task_builder.build_task(
    name,
    train=train,
    test=test,
    partition=partition,
    model_fn=model_fn,
    functional_model_fn=functional_model_fn,
    train_client_spec=common.train_client_spec,
    seed=common.seed,
    precision=common.precision,
    **outside_of_training,
  )
