# SPDX-License-Identifier: Apache-2.0
"""A task of arrays, a partition and a model."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.tasks import partition as partition_lib
from fednar_tff.tasks import resident_data, step_seeds, task


def build_task(
  name: str,
  *,
  train: Any,
  test: Any,
  partition: partition_lib.Partition,
  model_fn: Callable[[], tff.learning.models.VariableModel],
  functional_model_fn: Callable[[], tff.learning.models.FunctionalModel] | None = None,
  raw_input: task.RawInput | None = None,
  keras_model_fn: Callable[[Mapping[str, np.ndarray]], tf.keras.Model] | None = None,
  train_client_spec: tff.simulation.baselines.ClientSpec | None = None,
  eval_batch_size: int = 500,
  seed: int = 0,
  precision: str = 'float32',
) -> task.Task:
  """Builds a task from arrays, a partition and a model.

  Args:
    name: The task's name.
    train: The training examples, `OrderedDict(x=..., y=...)` of arrays (or structures of arrays)
      whose first dimension counts the examples. If the model's `x` has a leaf `seed` it is left out
      here: each batch gets its own.
    test: The test examples, alike.
    partition: Who holds which rows of `train`.
    model_fn: A no-argument function returning a `tff.learning.models.VariableModel`.
    functional_model_fn: The same model as a `tff.learning.models.FunctionalModel`.
    raw_input: What the trained model takes; batches of `x` as they are in `train` unless given.
    keras_model_fn: A function from the trained weights by name to a `tf.keras.Model` of stock
      layers that takes raw examples.
    train_client_spec: Epochs and batches of `datasets.train_preprocess_fn`, for stock pipelines;
      one epoch of batches of 32 by default. `Task.packed_client` and `Task.client_batches` take
      their own numbers.
    eval_batch_size: The batch size of `datasets.get_centralized_test_data()`.
    seed: The seed of `datasets.train_preprocess_fn`.
    precision: The type in which the model multiplies, which is a part of a run's identity.

  Returns:
    A `Task`.

  Raises:
    ValueError: If the data does not fit the partition or the model.
  """
  train, test = resident_data.resident(train), resident_data.resident(test)
  num_examples = {int(leaf.shape[0]) for leaf in tf.nest.flatten(train)}
  if num_examples != {len(partition.labels)}:
    raise ValueError(
      f'The arrays of `train` must have {len(partition.labels)} rows, as the partition has, '
      f'found {sorted(num_examples)}.'
    )
  with tf.Graph().as_default():
    input_spec = model_fn().input_spec
  has_seed = step_seeds.has_seed(input_spec)
  spec = train_client_spec or tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=32)
  longest = max(len(rows) for rows in partition.rows)

  def train_preprocess_fn(dataset):
    dataset = dataset.shuffle(spec.shuffle_buffer_size or longest, seed=seed)
    dataset = dataset.repeat(spec.num_epochs).take(spec.max_elements or -1).batch(spec.batch_size)
    if not has_seed:
      return dataset
    return dataset.enumerate().map(
      lambda step, batch: step_seeds.with_seed(
        batch, tf.stack([seed % 2**31, tf.cast(step, tf.int32)])
      )
    )

  def eval_preprocess_fn(dataset):
    dataset = dataset.batch(eval_batch_size)
    return (
      dataset.map(lambda batch: step_seeds.with_seed(batch, step_seeds.NO_SEED))
      if has_seed
      else dataset
    )

  with tf.device('CPU:0'):
    test_data = tf.data.Dataset.from_tensor_slices(test)
  datasets = tff.simulation.baselines.BaselineTaskDatasets(
    train_data=resident_data.ResidentClientData(train, partition),
    test_data=test_data,
    train_preprocess_fn=train_preprocess_fn,
    eval_preprocess_fn=eval_preprocess_fn,
  )
  return task.Task(  # type: ignore[call-arg] # The fields of TFF's class, which has no types.
    datasets=datasets,
    model_fn=model_fn,
    name=name,
    partition=partition,
    functional_model_fn=functional_model_fn,
    raw_input=raw_input
    or task.RawInput(step_seeds.without_seed(step_seeds.x_of(input_spec)), lambda raw: raw),
    keras_model_fn=keras_model_fn,
    precision=precision,
    arrays=train,
  )
