"""A task: a `tff.simulation.baselines.BaselineTask` that also hands out packed clients."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import resident
from fednar_tff.tasks import batches
from fednar_tff.tasks import partition as partition_lib

# The leaf of `x` that holds a step's random seed, in models that draw random numbers.
SEED_KEY = 'seed'
_NO_SEED = np.zeros([2], np.int32)


@attrs.frozen(eq=False)
class RawInput:
  """What a model takes outside of training, and how that becomes the model's `x`.

  Attributes:
    spec: The `tf.TensorSpec` of a batch of raw examples, such as images as they are stored, or text.
    to_x: A function, in TensorFlow, from such a batch to the model's `x`; a leaf `seed` is left out.
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
    keras_model_fn: A function from the model's weights by name to a `tf.keras.Model` of stock layers
      that takes raw examples, or None.
    arguments: What `create_task` made it with, defaults included, or None if it was made in another
      way.
  """

  name: str
  partition: partition_lib.Partition
  functional_model_fn: Callable[[], tff.learning.models.FunctionalModel] | None
  raw_input: RawInput
  keras_model_fn: Callable[[Mapping[str, np.ndarray]], tf.keras.Model] | None = None
  arguments: Mapping[str, Any] | None = None
  _arrays: Any = attrs.field(alias='arrays', repr=False, kw_only=True)
  _position: dict = attrs.field(init=False, repr=False)

  def __attrs_post_init__(self):
    super().__attrs_post_init__()
    ids = self.partition.client_ids
    object.__setattr__(self, '_position', {client_id: i for i, client_id in enumerate(ids)})

  def check_batches(
    self, *, batch_size: int, local_steps: int | None = None, local_epochs: int | None = None
  ) -> None:
    """Raises a `ValueError` if `packed_client` would not make such batches for the client with the most examples.

    Args:
      batch_size: Examples per batch.
      local_steps: The number of batches; this or `local_epochs`.
      local_epochs: The number of epochs; this or `local_steps`.
    """
    batches.check_size(
      max(map(len, self.partition.rows)),
      batch_size=batch_size,
      local_steps=local_steps,
      local_epochs=local_epochs,
    )

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
    rows, index = self._round(client_id, round_num, batch_size, local_steps, local_epochs, seed)
    if own_rows_only:
      data = self._gather(rows)
    else:
      data = self._arrays
      index = np.where(index < 0, -1, rows[index])
    seeds = batches.make_step_seeds(len(index), client_id, round_num, seed=seed)
    size = {'num_examples': np.int32(len(rows))} if with_size else {}
    with tf.device('CPU:0'):
      return resident.make_dataset(
        collections.OrderedDict(data=self._with_seed(data, seeds), index=index, **size),
        resident=() if own_rows_only else tf.nest.flatten(self._arrays),
      )

  def client_batches(
    self,
    client_id: str,
    round_num: int,
    *,
    batch_size: int,
    local_steps: int | None = None,
    local_epochs: int | None = None,
    seed: int,
  ) -> tf.data.Dataset:
    """Returns the same batches as `packed_client`, in the same order, as an ordinary dataset.

    Args:
      client_id: The client's name.
      round_num: The round, from 0.
      batch_size: Examples per batch; the last batch of an epoch may be short.
      local_steps: The number of batches; this or `local_epochs`.
      local_epochs: The number of epochs; this or `local_steps`.
      seed: The run's seed for batches.

    Returns:
      A dataset of batches of the model's `input_spec`.

    Raises:
      ValueError: If the client is unknown or a number is out of range.
    """
    rows, index = self._round(client_id, round_num, batch_size, local_steps, local_epochs, seed)
    own = self._gather(rows)
    seeds = batches.make_step_seeds(len(index), client_id, round_num, seed=seed)

    def batch_of(positions, length, step_seed):
      batch = tf.nest.map_structure(lambda leaf: tf.gather(leaf, positions[:length]), own)
      return self._with_seed(batch, step_seed)

    lengths = np.sum(index >= 0, axis=1)
    with tf.device('CPU:0'):
      return tf.data.Dataset.from_tensor_slices((index, lengths, seeds)).map(batch_of)

  def with_partition(self, partition: partition_lib.Partition) -> 'Task':
    """Returns this task with its examples divided in another way; they stay in memory once."""
    datasets = tff.simulation.baselines.BaselineTaskDatasets(
      train_data=_ResidentClientData(self._arrays, partition),
      test_data=self.datasets.test_data,
      train_preprocess_fn=self.datasets.train_preprocess_fn,
      eval_preprocess_fn=self.datasets.eval_preprocess_fn,
    )
    return attrs.evolve(self, partition=partition, datasets=datasets)

  def pooled(self) -> 'Task':
    """Returns this task with one client, `everyone`, that holds what all clients hold."""
    rows = np.concatenate(self.partition.rows)
    return self.with_partition(partition_lib.Partition(['everyone'], [rows], self.partition.labels))

  def with_validation(self, share: float, seed: int = 0) -> 'Task':
    """Returns this task with a part of each client's training examples as its test set.

    Choose settings by it: what is chosen by the test set itself looks better than it is. The real
    test set is not in the result.

    Args:
      share: The share of each client's examples that is held out, rounded down.
      seed: Decides which.

    Raises:
      ValueError: If the share is not between 0 and 1, or too small to hold out a single example.
    """
    if not 0 < share < 1:
      raise ValueError(f'`share` must be between 0 and 1, found {share}.')
    kept, held_out = [], []
    for number, rows in enumerate(self.partition.rows):
      mixed = np.random.default_rng([seed, number]).permutation(rows)
      count = int(share * len(rows))
      held_out.append(mixed[:count])
      kept.append(mixed[count:])
    held_out = np.sort(np.concatenate(held_out))
    if not held_out.size:
      raise ValueError(f'`share` must hold out at least one example, found {share}.')
    partition = partition_lib.Partition(self.partition.client_ids, kept, self.partition.labels)
    with tf.device('CPU:0'):
      test_data = tf.data.Dataset.from_tensor_slices(self._gather(held_out))
    task = self.with_partition(partition)
    datasets = tff.simulation.baselines.BaselineTaskDatasets(
      train_data=task.datasets.train_data,
      test_data=test_data,
      train_preprocess_fn=self.datasets.train_preprocess_fn,
      eval_preprocess_fn=self.datasets.eval_preprocess_fn,
    )
    return attrs.evolve(task, datasets=datasets)

  def examples_per_round(
    self,
    clients_per_round: int,
    *,
    batch_size: int,
    local_steps: int | None = None,
    local_epochs: int | None = None,
  ) -> float:
    """Returns how many examples a round's clients process together, in the mean over the choice of clients.

    Args:
      clients_per_round: How many clients take part.
      batch_size: Examples per batch.
      local_steps: The number of batches; this or `local_epochs`.
      local_epochs: The number of epochs; this or `local_steps`.
    """
    counts = [
      batches.count_examples(
        len(rows), batch_size=batch_size, local_steps=local_steps, local_epochs=local_epochs
      )
      for rows in self.partition.rows
    ]
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
          tf.nest.map_structure(lambda leaf: tf.gather(leaf, chosen), self._arrays), _NO_SEED
        )
      )

  def predict_raw(self, model: tff.learning.models.VariableModel, raw: Any) -> tf.Tensor:
    """Returns what a model of `model_fn` says of raw examples, see `raw_input`."""
    x = self.raw_input.to_x(raw)
    if _has_seed(model.input_spec):
      x = collections.OrderedDict(x, **{SEED_KEY: tf.constant(_NO_SEED)})
    return model.predict_on_batch(x, training=False)

  def _round(self, client_id, round_num, batch_size, local_steps, local_epochs, seed):
    """Returns the client's rows and the batches as positions among them."""
    if client_id not in self._position:
      raise ValueError(
        f'Unknown client {client_id!r}: task {self.name} has {len(self._position)} clients, '
        f'{self.partition.client_ids[0]!r} to {self.partition.client_ids[-1]!r}.'
      )
    rows = self.partition.rows[self._position[client_id]]
    index = batches.make_index(
      len(rows),
      client_id,
      round_num,
      batch_size=batch_size,
      local_steps=local_steps,
      local_epochs=local_epochs,
      seed=seed,
    )
    return rows, index

  def _gather(self, rows):
    with tf.device('CPU:0'):
      return tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), self._arrays)

  def _with_seed(self, batch, seed):
    return _with_seed(batch, seed) if _has_seed(self.datasets.element_type_structure) else batch


class _ResidentClientData(tff.simulation.datasets.ClientData):
  """The clients of a partition over arrays that are in memory once."""

  def __init__(self, arrays, partition):
    self._arrays = arrays
    self._partition = partition
    self._client_ids = list(partition.client_ids)

  @property
  def client_ids(self):
    return self._client_ids

  @property
  def element_type_structure(self):
    return tf.nest.map_structure(
      lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), self._arrays
    )

  def create_tf_dataset_for_client(self, client_id):
    if client_id not in self._client_ids:
      raise ValueError(f'Unknown client {client_id!r}: there are {len(self._client_ids)} clients.')
    return self._dataset_of_rows(self._partition.rows[self._client_ids.index(client_id)])

  def create_tf_dataset_from_all_clients(self, seed=None):
    order = self._client_ids.copy()
    np.random.RandomState(seed=seed).shuffle(order)
    rows = [self._partition.rows[self._client_ids.index(client_id)] for client_id in order]
    return self._dataset_of_rows(np.concatenate(rows))

  @property
  def serializable_dataset_fn(self):
    return self._dataset_of_symbolic_id

  def _dataset_of_rows(self, rows):
    with tf.device('CPU:0'):
      return tf.data.Dataset.from_tensor_slices(
        tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), self._arrays)
      )

  def _dataset_of_symbolic_id(self, client_id):
    # The arrays become constants of the graph: the only way to serialise data held in memory.
    rows = np.concatenate(self._partition.rows)
    ends = np.cumsum([len(r) for r in self._partition.rows])
    position = tf.argmax(tf.cast(tf.equal(client_id, self._client_ids), tf.int32))
    starts = np.concatenate([[0], ends[:-1]])
    own = tf.constant(rows)[tf.gather(starts, position) : tf.gather(ends, position)]
    return tf.data.Dataset.from_tensor_slices(
      tf.nest.map_structure(lambda leaf: tf.gather(leaf.numpy(), own), self._arrays)
    )


def build_task(
  name: str,
  *,
  train,
  test,
  partition: partition_lib.Partition,
  model_fn: Callable[[], tff.learning.models.VariableModel],
  functional_model_fn: Callable[[], tff.learning.models.FunctionalModel] | None = None,
  raw_input: RawInput | None = None,
  keras_model_fn: Callable[[Mapping[str, np.ndarray]], tf.keras.Model] | None = None,
  train_client_spec: tff.simulation.baselines.ClientSpec | None = None,
  eval_batch_size: int = 500,
  seed: int = 0,
) -> Task:
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
    keras_model_fn: A function from the trained weights by name to a `tf.keras.Model` of stock layers
      that takes raw examples.
    train_client_spec: Epochs and batches of `datasets.train_preprocess_fn`, for stock pipelines;
      one epoch of batches of 32 by default. `Task.packed_client` and `Task.client_batches` take
      their own numbers.
    eval_batch_size: The batch size of `datasets.get_centralized_test_data()`.
    seed: The seed of `datasets.train_preprocess_fn`.

  Returns:
    A `Task`.

  Raises:
    ValueError: If the data does not fit the partition or the model.
  """
  train, test = _resident(train), _resident(test)
  num_examples = {int(leaf.shape[0]) for leaf in tf.nest.flatten(train)}
  if num_examples != {len(partition.labels)}:
    raise ValueError(
      f'The arrays of train must have {len(partition.labels)} rows, as the partition has, '
      f'found {sorted(num_examples)}.'
    )
  with tf.Graph().as_default():
    input_spec = model_fn().input_spec
  has_seed = _has_seed(input_spec)
  spec = train_client_spec or tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=32)
  longest = max(len(rows) for rows in partition.rows)

  def train_preprocess_fn(dataset):
    dataset = dataset.shuffle(spec.shuffle_buffer_size or longest, seed=seed)
    dataset = dataset.repeat(spec.num_epochs).take(spec.max_elements or -1).batch(spec.batch_size)
    if not has_seed:
      return dataset
    return dataset.enumerate().map(
      lambda step, batch: _with_seed(batch, tf.stack([seed % 2**31, tf.cast(step, tf.int32)]))
    )

  def eval_preprocess_fn(dataset):
    dataset = dataset.batch(eval_batch_size)
    return dataset.map(lambda batch: _with_seed(batch, _NO_SEED)) if has_seed else dataset

  with tf.device('CPU:0'):
    test_data = tf.data.Dataset.from_tensor_slices(test)
  datasets = tff.simulation.baselines.BaselineTaskDatasets(
    train_data=_ResidentClientData(train, partition),
    test_data=test_data,
    train_preprocess_fn=train_preprocess_fn,
    eval_preprocess_fn=eval_preprocess_fn,
  )
  return Task(
    datasets=datasets,
    model_fn=model_fn,
    name=name,
    partition=partition,
    functional_model_fn=functional_model_fn,
    raw_input=raw_input or RawInput(_without_seed(_x_of(input_spec)), lambda raw: raw),
    keras_model_fn=keras_model_fn,
    arrays=train,
  )


def _resident(structure):
  # In host memory even where there is a GPU: datasets live there, and a batch is what travels.
  with tf.device('CPU:0'):
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def _x_of(input_spec):
  return input_spec['x'] if isinstance(input_spec, Mapping) else input_spec[0]


def _has_seed(input_spec):
  x = _x_of(input_spec)
  return isinstance(x, Mapping) and SEED_KEY in x


def _without_seed(x):
  if not isinstance(x, Mapping):
    return x
  return collections.OrderedDict((key, leaf) for key, leaf in x.items() if key != SEED_KEY)


def _with_seed(batch, seed):
  x = collections.OrderedDict(batch['x'])
  x[SEED_KEY] = seed
  return collections.OrderedDict(x=x, y=batch['y'])
