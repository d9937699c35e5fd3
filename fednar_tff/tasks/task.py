# SPDX-License-Identifier: Apache-2.0
"""A task: a `tff.simulation.baselines.BaselineTask` that also hands out packed clients."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import resident, signatures
from fednar_tff.tasks import batches, client_datasets, resident_data, step_seeds
from fednar_tff.tasks import partition as partition_lib


@attrs.frozen(eq=False)
class RawInput:
  """What a model takes outside of training, and how that becomes the model's `x`.

  Attributes:
    spec: The `tf.TensorSpec` of a batch of raw examples, such as images as they are stored, or
      text.
    to_x: A function, in TensorFlow, from such a batch to the model's `x`; a leaf `seed` is left
      out.
  """

  spec: Any
  to_x: Callable[[Any], Any]


@attrs.frozen(eq=False)
class Task(tff.simulation.baselines.BaselineTask):
  """A `BaselineTask` with its data in memory once, and batches that are pure functions.

  Attributes:
    datasets: See `tff.simulation.baselines.BaselineTask`.
    model_fn: A no-argument function returning a `tff.learning.models.VariableModel`.
    name: The task's name.
    partition: The `Partition` of the training examples.
    functional_model_fn: A no-argument function returning the same model, with the same initial
      weights, as a `tff.learning.models.FunctionalModel`, or None.
    raw_input: The `RawInput` of the trained model.
    keras_model_fn: A function from the model's weights by name to a `tf.keras.Model` of stock
      layers that takes raw examples, or None.
    arguments: What `create_task` made it with, defaults included, or None if it was made in another
      way.
    precision: The type in which the model multiplies; see `build_model_fns`.
    examples_overlap: Whether examples of a client share data with those beside them, as the windows
      of a text do; see `with_validation`.
  """

  name: str
  partition: partition_lib.Partition
  functional_model_fn: Callable[[], tff.learning.models.FunctionalModel] | None
  raw_input: RawInput
  keras_model_fn: Callable[[Mapping[str, np.ndarray]], tf.keras.Model] | None = None
  arguments: Mapping[str, Any] | None = None
  precision: str = 'float32'
  examples_overlap: bool = False
  _arrays: Any = attrs.field(alias='arrays', repr=False, kw_only=True)
  _checked: Any = attrs.field(alias='checked', default=None, repr=False, kw_only=True)
  _position: dict = attrs.field(init=False, repr=False)
  _needs_seed: bool = attrs.field(init=False, repr=False)
  _batch_maker: client_datasets.BatchMaker = attrs.field(init=False, repr=False)
  _element_makers: tuple = attrs.field(init=False, repr=False)

  def __attrs_post_init__(self):
    # TFF builds the model to compare it with the data. A task that is made of another one, with a
    # validation set for example, takes over that it was done.
    model_and_data = (self.model_fn, self.datasets.element_type_structure)
    if self._checked != model_and_data:
      super().__attrs_post_init__()
      object.__setattr__(self, '_checked', model_and_data)
    ids = self.partition.client_ids
    needs_seed = step_seeds.has_seed(self.datasets.element_type_structure)
    for name, value in {
      '_position': {client_id: i for i, client_id in enumerate(ids)},
      '_needs_seed': needs_seed,
      '_batch_maker': client_datasets.BatchMaker(
        self._arrays, step_seeds.with_seed if needs_seed else None
      ),
      # Without and with the number of examples.
      '_element_makers': (client_datasets.ElementMaker(), client_datasets.ElementMaker()),
    }.items():
      object.__setattr__(self, name, value)

  @signatures.with_arguments_of(batches.check_size)
  def check_batches(self, **size: 'batches.Unpack[batches.RoundSize]') -> None:
    """Raises a `ValueError` if `packed_client` would not make such batches for some client.

    Args:
      **size: `batch_size`, and `local_steps` or `local_epochs`, as in `packed_client`.
    """
    batches.check_size(max(map(len, self.partition.rows)), **size)

  def packed_client(
    self,
    client_id: str,
    round_num: int,
    *,
    batch_size: int,
    local_steps: int | None = None,
    local_epochs: int | None = None,
    seed: int,
    own_rows_only: bool = False,
    with_size: bool = False,
  ) -> tf.data.Dataset:
    """Returns a client's round as one element: resident arrays and the index of each batch.

    Args:
      client_id: The client's name.
      round_num: The round, from 0.
      batch_size: Examples per batch; the last batch of an epoch may be short (-1 in the index).
      local_steps: The number of batches; this or `local_epochs`.
      local_epochs: The number of epochs; this or `local_steps`.
      seed: The run's seed for batches.
      own_rows_only: If True, `data` holds the client's own examples, for runtimes that serialise
        a dataset. If False, `data` is the whole training set, shared and never copied.
      with_size: If True, the element also says how many examples the client holds, for algorithms
        that weight by them (`client_weighting=algorithms.DATA_SIZE`).

    Returns:
      A dataset of one element, `OrderedDict(data=..., index=int32 [steps, batch_size])`, and with
      `with_size` a third entry, `num_examples`. The index is narrower if the client has fewer
      examples than a batch.

    Raises:
      ValueError: If the client is unknown or a number is out of range.
    """
    rows, index = self._round(
      client_id,
      round_num,
      batch_size=batch_size,
      local_steps=local_steps,
      local_epochs=local_epochs,
      seed=seed,
    )
    if own_rows_only:
      data = self._gather(rows)
    else:
      data = self._arrays
      index = np.where(index < 0, -1, rows[index])
    if self._needs_seed:
      data = step_seeds.with_seed(data, self._step_seeds(index, client_id, round_num, seed))
    size = {'num_examples': np.int32(len(rows))} if with_size else {}
    element = collections.OrderedDict(data=data, index=index.astype(np.int32, copy=False), **size)
    shared = () if own_rows_only else tf.nest.flatten(self._arrays)
    return resident.remember(self._element_makers[with_size](element), element, shared)

  @signatures.with_arguments_of(packed_client, without=('own_rows_only', 'with_size'))
  def client_batches(
    self, client_id: str, round_num: int, **arguments: 'batches.Unpack[batches.RoundArguments]'
  ) -> tf.data.Dataset:
    """Returns the same batches as `packed_client`, in the same order, as an ordinary dataset.

    Args:
      client_id: The client's name.
      round_num: The round, from 0.
      **arguments: Those of `packed_client` that say what the batches are.

    Returns:
      A dataset of batches of the model's `input_spec`; the last batch of an epoch may be short.

    Raises:
      ValueError: As from `packed_client`.
    """
    rows, index = self._round(client_id, round_num, **arguments)
    seeds = self._step_seeds(index, client_id, round_num, arguments['seed'])
    return self._batch_maker(self._gather(rows), index, seeds)

  def with_partition(self, partition: partition_lib.Partition) -> 'Task':
    """Returns this task with its examples divided in another way; they stay in memory once."""
    datasets = tff.simulation.baselines.BaselineTaskDatasets(
      train_data=resident_data.ResidentClientData(self._arrays, partition),
      test_data=self.datasets.test_data,
      train_preprocess_fn=self.datasets.train_preprocess_fn,
      eval_preprocess_fn=self.datasets.eval_preprocess_fn,
    )
    return attrs.evolve(self, partition=partition, datasets=datasets)  # type: ignore[call-arg]

  def pooled(self) -> 'Task':
    """Returns this task with one client, `everyone`, that holds what all clients hold."""
    rows = np.concatenate(self.partition.rows)
    return self.with_partition(partition_lib.Partition(['everyone'], [rows], self.partition.labels))

  def with_validation(self, share: float, seed: int = 0) -> 'Task':
    """Returns this task with a part of each client's training examples as its test set.

    Choose settings by it: what is chosen by the test set itself looks better than it is. The real
    test set is not in the result.

    Of windows of a text (`examples_overlap`), the last ones of each client are held out: what they
    ask for stands behind all windows that are trained on. Any other examples are drawn.

    Args:
      share: The share of each client's examples that is held out, rounded down.
      seed: Decides which, where they are drawn.

    Raises:
      ValueError: If the share is not between 0 and 1, or too small to hold out a single example.
    """
    if not 0 < share < 1:
      raise ValueError(f'`share` must be between 0 and 1, found {share}.')
    kept, held_out = [], []
    for number, rows in enumerate(self.partition.rows):
      if self.examples_overlap:
        ordered = np.sort(rows)[::-1]
      else:
        ordered = np.random.default_rng([seed, number]).permutation(rows)
      count = int(share * len(rows))
      held_out.append(ordered[:count])
      kept.append(ordered[count:])
    test_rows = np.sort(np.concatenate(held_out))
    if not test_rows.size:
      raise ValueError(f'`share` must hold out at least one example, found {share}.')
    partition = partition_lib.Partition(self.partition.client_ids, kept, self.partition.labels)
    with tf.device('CPU:0'):
      test_data = tf.data.Dataset.from_tensor_slices(self._gather(test_rows))
    task = self.with_partition(partition)
    datasets = tff.simulation.baselines.BaselineTaskDatasets(
      train_data=task.datasets.train_data,
      test_data=test_data,
      train_preprocess_fn=self.datasets.train_preprocess_fn,
      eval_preprocess_fn=self.datasets.eval_preprocess_fn,
    )
    return attrs.evolve(task, datasets=datasets)  # type: ignore[call-arg]

  @signatures.with_arguments_of(batches.check_size)
  def examples_per_round(
    self, clients_per_round: int, **size: 'batches.Unpack[batches.RoundSize]'
  ) -> float:
    """Returns how many examples the clients of a round process together, on average.

    Args:
      clients_per_round: How many clients take part.
      **size: `batch_size`, and `local_steps` or `local_epochs`, as in `packed_client`.
    """
    counts = [batches.count_examples(len(rows), **size) for rows in self.partition.rows]
    return clients_per_round * float(np.mean(counts))

  def evaluation_batches(self, rows: np.ndarray, batch_size: int = 500) -> tf.data.Dataset:
    """Returns training examples in batches of the model's `input_spec`, for evaluation.

    Args:
      rows: The row numbers of the examples, as in `partition.rows`.
      batch_size: Examples per batch; the last one may be short.
    """
    with tf.device('CPU:0'):
      positions = tf.data.Dataset.from_tensor_slices(np.asarray(rows, np.int32)).batch(batch_size)
      return positions.map(
        lambda chosen: self._with_seed(
          tf.nest.map_structure(lambda leaf: tf.gather(leaf, chosen), self._arrays),
          step_seeds.NO_SEED,
        )
      )

  def predict_raw(self, model: tff.learning.models.VariableModel, raw: Any) -> tf.Tensor:
    """Returns what a model of `model_fn` says of raw examples, see `raw_input`."""
    x = self.raw_input.to_x(raw)
    if step_seeds.has_seed(model.input_spec):
      x = collections.OrderedDict(x, **{step_seeds.SEED_KEY: tf.constant(step_seeds.NO_SEED)})
    return model.predict_on_batch(x, training=False)

  def _round(self, client_id, round_num, **arguments):
    """Returns the client's rows and the batches as positions among them."""
    if client_id not in self._position:
      raise ValueError(
        f'`client_id` must be one of the {len(self._position)} clients of task {self.name}, '
        f'{self.partition.client_ids[0]!r} to {self.partition.client_ids[-1]!r}, '
        f'found {client_id!r}.'
      )
    rows = self.partition.rows[self._position[client_id]]
    return rows, batches.make_index(len(rows), client_id, round_num, **arguments)

  def _step_seeds(self, index, client_id, round_num, seed):
    return batches.make_step_seeds(len(index), client_id, round_num, seed=seed)

  def _gather(self, rows):
    with tf.device('CPU:0'):
      return tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), self._arrays)

  def _with_seed(self, batch, seed):
    return step_seeds.with_seed(batch, seed) if self._needs_seed else batch
