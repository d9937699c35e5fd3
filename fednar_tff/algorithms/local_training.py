"""The one loop of local training: every algorithm of this package runs it on every client.

An algorithm changes the gradient, or nothing at all. A client's data comes in one of two forms: a
dataset of batches, or *packed*, which is faster: a dataset with one element that holds the arrays
and, for each step, the rows of its batch (see `packed_spec`).
"""

import collections
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import optimizers
from fednar_tff.algorithms import structures


class PackedLoop(enum.Enum):
  """The loop over a packed client, beside the members of `tff.learning.LoopImplementation`."""

  PACKED = 'packed'


PACKED = PackedLoop.PACKED


class DataSizeWeighting(enum.Enum):
  """The weight of a client's data set, beside the members of `tff.learning.ClientWeighting`."""

  DATA_SIZE = 'data_size'


DATA_SIZE = DataSizeWeighting.DATA_SIZE
_SIZE_KEY = 'num_examples'

LoopImplementation = tff.learning.LoopImplementation | PackedLoop
ClientWeighting = tff.learning.ClientWeighting | DataSizeWeighting
ModelFn = Callable[[], tff.learning.models.VariableModel] | tff.learning.models.FunctionalModel
Leaves = Sequence[tf.Tensor | None]
# Takes the leaves of the gradient, of the weights, of the server's weights and of each of the
# `correction_constants`, and returns those of a new gradient. A leaf of the gradient that is None
# has to stay None. It must work entry by entry: on a GPU all leaves are joined into one.
CorrectionFn = Callable[..., Leaves]


class LocalResult(NamedTuple):
  """What a client has after local training.

  Attributes:
    update: The initial weights minus the final ones; zeros if they are not finite.
    update_weight: The client's weight in a mean; zero if the update is not finite.
    metrics: The unfinalized metrics, those of `metric_finalizers`; of a client whose update is not
      finite only that it is one.
    num_steps: The number of steps taken.
    is_finite: Whether the update is finite.
  """

  update: Any
  update_weight: tf.Tensor
  metrics: collections.OrderedDict[str, Any]
  num_steps: tf.Tensor
  is_finite: tf.Tensor


def packed_spec(input_spec: Any, *, with_size: bool = False) -> collections.OrderedDict[str, Any]:
  """Returns the type of a packed client's single element, `OrderedDict(data=..., index=...)`.

  `index` is an integer matrix with one row for each step. In `data`, a leaf of `input_spec` whose
  first dimension is None holds all examples, of which step `k` takes the rows `index[k]`, leaving
  out those that are -1 (a last batch may be short); any other leaf is stacked over the steps, and
  step `k` takes row `k`. With `with_size`, there is a third entry `num_examples`, an int32: how
  many examples the client holds, which `index` does not tell, as a round need not visit all. It is
  what `DATA_SIZE` weights by.

  Args:
    input_spec: The `input_spec` of a model: a structure of `tf.TensorSpec`.
    with_size: Whether the element says how many examples the client holds.
  """
  data = tf.nest.map_structure(
    lambda s: tf.TensorSpec([None, *(s.shape[1:] if _has_examples(s) else s.shape)], s.dtype),
    input_spec,
  )
  size = {_SIZE_KEY: tf.TensorSpec([], tf.int32)} if with_size else {}
  return collections.OrderedDict(data=data, index=tf.TensorSpec([None, None], tf.int32), **size)


def _has_examples(spec: tf.TensorSpec) -> bool:
  return spec.shape.rank > 0 and spec.shape[0] is None


def _single_element(dataset: tf.data.Dataset) -> Any:
  # A loop carries what it reads where that was made. On a GPU, this would copy all examples back in
  # every step.
  with tf.device('CPU:0'):
    return dataset.get_single_element()


def _packed_batch(packed: Mapping[str, Any], input_spec: Any, step: tf.Tensor) -> Any:
  # A gather on the GPU would first copy all examples there; so only the batch travels.
  with tf.device('CPU:0'):
    rows = packed['index'][step]
    rows = tf.boolean_mask(rows, rows >= 0)
    return tf.nest.map_structure(
      lambda spec, x: tf.gather(x, rows) if _has_examples(spec) else x[step],
      input_spec,
      packed['data'],
    )


def client_data_spec(
  input_spec: Any, loop_implementation: LoopImplementation, client_weighting: ClientWeighting
) -> Any:
  """Returns the type of an element of a client's dataset."""
  if loop_implementation is PACKED:
    return packed_spec(input_spec, with_size=client_weighting is DATA_SIZE)
  return input_spec


def takes_data_size(process: tff.templates.IterativeProcess) -> bool:
  """Returns whether a process takes packed clients that say how many examples they hold.

  Such is any algorithm of this package with `client_weighting=DATA_SIZE` on packed clients; see
  `packed_spec`.

  Args:
    process: An algorithm, whose `next` takes the clients' datasets last.
  """
  *_, data_type = process.next.type_signature.parameter
  element = data_type.member.element
  names = tff.structure.name_list(element) if isinstance(element, tff.StructType) else ()
  return _SIZE_KEY in names and 'index' in names


def _run_loop(
  step_fn: Callable[[Any, Any], Any],
  state: Any,
  data: Any,
  input_spec: Any,
  loop_implementation: LoopImplementation,
) -> Any:
  """Returns the state after `state = step_fn(state, batch)` for all batches of a client.

  `data` is the dataset of batches, or the single element of a packed client.
  """
  if loop_implementation is PACKED:
    for k in tf.range(tf.shape(data['index'])[0]):
      state = step_fn(state, _packed_batch(data, input_spec, k))
    return state
  if loop_implementation is tff.learning.LoopImplementation.DATASET_ITERATOR:
    # Without `iter`, this would become a reduce, which keeps the step on the CPU.
    for batch in iter(data):
      state = step_fn(state, batch)
    return state
  return data.reduce(state, step_fn)


def _has_gpu() -> bool:
  return bool(tf.config.list_physical_devices('GPU'))


class _Joiner:
  """Joins all leaves into one vector where a GPU would otherwise start a kernel for each leaf and operation.

  On a CPU, the copying costs more than it saves. Only what works entry by entry, or by norms over
  all leaves, may be given such a vector in place of the leaves.
  """

  def __init__(self, leaves: Leaves, optimizer: tff.learning.optimizers.Optimizer):
    self._shapes = [x.shape for x in leaves]
    self.is_active = (
      _has_gpu()
      and optimizers.may_join_leaves(optimizer)
      and len(leaves) > 1
      and len({x.dtype for x in leaves}) == 1
      and all(shape.is_fully_defined() for shape in self._shapes)
    )

  def join(self, *structures: Leaves) -> tuple[Leaves, ...]:
    """Returns all arguments joined, or none of them: if a leaf is None, as one without a gradient, they stay leaves."""
    if not self.is_active or any(x is None for leaves in structures for x in leaves):
      return structures
    return tuple([tf.concat([tf.reshape(x, [-1]) for x in leaves], 0)] for leaves in structures)

  def split(self, leaves: Leaves) -> Leaves:
    """Undoes `join`."""
    if len(leaves) == len(self._shapes):
      return leaves
    parts = tf.split(leaves[0], [shape.num_elements() for shape in self._shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes)]


class _VariableModel:
  """Trains a `VariableModel`: weights and metrics are variables, the loop carries nothing."""

  def __init__(self, model_fn: Callable[[], tff.learning.models.VariableModel]):
    self._model = model_fn()
    self._weights = tff.learning.models.ModelWeights.from_model(self._model)
    self.input_spec = self._model.input_spec

  def start(self, weights: tff.learning.models.ModelWeights) -> Any:
    tf.nest.map_structure(lambda v, w: v.assign(w), self._weights, weights)
    return ()

  def trainable(self, carry: Any) -> Leaves:
    del carry
    return [v.read_value() for v in tf.nest.flatten(self._weights.trainable)]

  def gradient(self, carry: Any, batch: Any) -> tuple[Any, Leaves, tf.Tensor]:
    with tf.GradientTape() as tape:
      output = self._model.forward_pass(batch, training=True)
    gradient = tape.gradient(output.loss, tf.nest.flatten(self._weights.trainable))
    num_examples = output.num_examples
    if num_examples is None:
      num_examples = tf.shape(output.predictions)[0]
    return carry, gradient, num_examples

  def assign(self, carry: Any, trainable: Leaves) -> Any:
    for v, w in zip(tf.nest.flatten(self._weights.trainable), trainable):
      v.assign(w)
    return carry

  def metrics(self, carry: Any, is_finite: tf.Tensor) -> Any:
    del carry
    if not is_finite:
      self._model.reset_metrics()
    return self._model.report_local_unfinalized_metrics()


class _FunctionalModel:
  """Trains a `FunctionalModel`: trainable weights and metrics are tensors that the loop carries."""

  def __init__(self, model: tff.learning.models.FunctionalModel, inline: bool):
    self._model = model
    self._non_trainable = None
    self.input_spec = model.input_spec
    self._predict, self._update_metrics = model.predict_on_batch, model.update_metrics_state
    if inline:
      # XLA takes what a function inside of its own is given for constants, and compiles anew in
      # every step.
      self._predict = self._predict.python_function
      self._update_metrics = self._update_metrics.python_function

  def start(self, weights: tff.learning.models.ModelWeights) -> Any:
    self._non_trainable = self._pack(1, weights.non_trainable)
    return tuple(weights.trainable), self._model.initialize_metrics_state()

  def _pack(self, part: int, leaves: Leaves) -> Any:
    return tf.nest.pack_sequence_as(self._model.initial_weights[part], list(leaves))

  def trainable(self, carry: Any) -> Leaves:
    return carry[0]

  def gradient(self, carry: Any, batch: Any) -> tuple[Any, Leaves, tf.Tensor]:
    trainable, metrics = carry
    x, y = (batch['x'], batch['y']) if isinstance(batch, Mapping) else batch
    with tf.GradientTape() as tape:
      tape.watch(trainable)
      weights = (self._pack(0, trainable), self._non_trainable)
      predictions = self._predict(weights, x, training=True)
      loss = self._model.loss(output=predictions, label=y)
    gradient = tape.gradient(loss, trainable)
    num_examples = tf.shape(tf.nest.flatten(predictions)[0])[0]
    output = tff.learning.models.BatchOutput(loss, predictions, num_examples)
    metrics = self._update_metrics(metrics, labels=y, batch_output=output)
    return (trainable, metrics), gradient, num_examples

  def assign(self, carry: Any, trainable: Leaves) -> Any:
    return tuple(trainable), carry[1]

  def metrics(self, carry: Any, is_finite: tf.Tensor) -> Any:
    return tf.nest.map_structure(
      lambda final, initial: tf.where(is_finite, final, initial),
      carry[1],
      self._model.initialize_metrics_state(),
    )


def _clipping_metrics(
  optimizer_state: Any, num_steps: tf.Tensor, is_finite: tf.Tensor
) -> collections.OrderedDict[str, Any]:
  """Returns the unfinalized metrics that this package adds to those of the model."""
  statistics = optimizers.get_clipping_statistics(optimizer_state)
  if statistics is None:
    clipped_steps, sum_clipped_norms = tf.zeros([], tf.int64), tf.zeros([])
  else:
    _, clipped_steps, sum_clipped_norms = statistics
  clipped_steps, num_steps, sum_clipped_norms = (
    tf.where(is_finite, x, tf.zeros_like(x)) for x in (clipped_steps, num_steps, sum_clipped_norms)
  )
  return collections.OrderedDict(
    clipped_steps=clipped_steps,
    total_steps=num_steps,
    mean_clipped_norm=collections.OrderedDict(
      sum=sum_clipped_norms, count=tf.cast(clipped_steps, tf.float32)
    ),
    num_non_finite_clients=tf.cast(~is_finite, tf.int32),
  )


_CLIPPING_FINALIZERS = collections.OrderedDict(
  clipped_steps=tf.identity,
  total_steps=tf.identity,
  mean_clipped_norm=lambda mean: tf.math.divide_no_nan(mean['sum'], mean['count']),
  num_non_finite_clients=tf.identity,
)


def metric_finalizers(
  model: tff.learning.models.VariableModel | tff.learning.models.FunctionalModel,
) -> Any:
  """Returns the finalizers of the model's metrics and of those that local training adds.

  They are in one structure so that whatever aggregates a model's metrics (securely, for example)
  aggregates all of them.
  """
  if isinstance(model, tff.learning.models.VariableModel):
    return collections.OrderedDict(**model.metric_finalizers(), **_CLIPPING_FINALIZERS)

  @tf.function
  def finalize(unfinalized):
    own = collections.OrderedDict((k, f(unfinalized[k])) for k, f in _CLIPPING_FINALIZERS.items())
    of_model = collections.OrderedDict((k, v) for k, v in unfinalized.items() if k not in own)
    return collections.OrderedDict(**model.finalize_metrics(of_model), **own)

  return finalize


def train(
  model_fn: ModelFn,
  optimizer: tff.learning.optimizers.Optimizer,
  hparams: Mapping[str, Any],
  initial_weights: tff.learning.models.ModelWeights,
  dataset: tf.data.Dataset,
  *,
  client_weighting: ClientWeighting,
  loop_implementation: LoopImplementation,
  correction_fn: CorrectionFn | None = None,
  correction_constants: Sequence[Leaves] = (),
  jit_compile: bool = False,
) -> LocalResult:
  """Trains a model on a client's data; to be called while a TFF computation is traced.

  Args:
    model_fn: A function that returns a new `VariableModel`, or a `FunctionalModel`.
    optimizer: Takes the steps; its state starts anew.
    hparams: The optimizer's hparams in this round.
    initial_weights: The weights to start from.
    dataset: The batches, or the packed client.
    client_weighting: What `update_weight` is. With `DATA_SIZE`, a packed client says it; a dataset
      of batches does not, and its examples are counted as for `NUM_EXAMPLES`.
    loop_implementation: How the loop runs, and so what `dataset` is.
    correction_fn: Changes each gradient before the optimizer sees it; see `CorrectionFn`.
    correction_constants: What it takes besides; each has a leaf for each of the trainable weights.
    jit_compile: Whether XLA compiles the step; only for a `FunctionalModel`, and not in a dataset's
      reduce.
  """
  # Variables have to be made outside of the `tf.function`.
  if isinstance(model_fn, tff.learning.models.FunctionalModel):
    model = _FunctionalModel(model_fn, inline=jit_compile)
  else:
    model = _VariableModel(model_fn)

  @tf.function
  def run(hparams, initial_weights, dataset):
    initial = tf.nest.flatten(initial_weights.trainable)
    joiner = _Joiner(initial, optimizer)
    constants = (initial, *correction_constants) if correction_fn is not None else ()
    joined_constants = joiner.join(*constants)  # Once, not in every step.

    def take_step(state, batch):
      carry, optimizer_state, num_steps, num_examples = state
      weights = model.trainable(carry)
      carry, gradient, batch_size = model.gradient(carry, batch)
      if correction_fn is not None or joiner.is_active:
        gradient = tff.learning.optimizers.handle_indexed_slices_gradients(gradient)
      gradient, weights = joiner.join(gradient, weights)
      if correction_fn is not None:
        is_joined = len(weights) < len(initial)
        gradient = correction_fn(gradient, weights, *(joined_constants if is_joined else constants))
      optimizer_state, weights = optimizer.next(optimizer_state, tuple(weights), tuple(gradient))
      carry = model.assign(carry, joiner.split(weights))
      return carry, optimizer_state, num_steps + 1, num_examples + tf.cast(batch_size, tf.int64)

    specs = tuple(tf.TensorSpec(x.shape, x.dtype) for x in initial)
    optimizer_state = optimizer.set_hparams(optimizer.initialize(specs), hparams)
    state = (
      model.start(initial_weights),
      tf.nest.map_structure(tf.convert_to_tensor, optimizer_state),
      tf.zeros([], tf.int64),
      tf.zeros([], tf.int64),
    )
    data = _single_element(dataset) if loop_implementation is PACKED else dataset
    step = take_step
    if jit_compile:
      step = tf.function(take_step, jit_compile=True, autograph=False)
    state = _run_loop(step, state, data, model.input_spec, loop_implementation)
    carry, optimizer_state, num_steps, num_examples = state

    update = [x - y for x, y in zip(initial, model.trainable(carry))]
    is_finite = structures.all_finite(update)
    # Zeros in place of the update, too: zero times NaN is NaN. With `tf.where`, every client would
    # pay for them.
    update = tf.cond(is_finite, lambda: update, lambda: [tf.zeros_like(x) for x in update])
    if client_weighting is tff.learning.ClientWeighting.UNIFORM:
      weight = tf.ones([])
    elif client_weighting is DATA_SIZE and loop_implementation is PACKED:
      weight = tf.cast(data[_SIZE_KEY], tf.float32)
    else:
      weight = tf.cast(num_examples, tf.float32)
    return LocalResult(
      update=tf.nest.pack_sequence_as(initial_weights.trainable, update),
      update_weight=tf.where(is_finite, weight, 0.0),
      metrics=collections.OrderedDict(
        **model.metrics(carry, is_finite),
        **_clipping_metrics(optimizer_state, num_steps, is_finite),
      ),
      num_steps=num_steps,
      is_finite=is_finite,
    )

  return run(hparams, initial_weights, dataset)
