# SPDX-License-Identifier: Apache-2.0
"""The one loop of local training: every algorithm of this package runs it on every client.

An algorithm changes the gradient, or nothing at all.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import optimizers
from fednar_tff.algorithms import client_data, local_models, structures, tracing

ModelFn: TypeAlias = (
  Callable[[], tff.learning.models.VariableModel] | tff.learning.models.FunctionalModel
)
# Takes the leaves of the gradient, of the weights, of the server's weights and of each of the
# `correction_constants`, and returns those of a new gradient. A leaf of the gradient that is None
# has to stay None. It must work entry by entry: on a GPU all leaves are joined into one.
CorrectionFn = Callable[..., local_models.Leaves]


class LocalResult(NamedTuple):
  """What a client has after local training.

  Attributes:
    update: The initial weights minus the final ones; zeros if they are not finite.
    update_weight: The client's weight in a mean; zero if the update is not finite.
    metrics: The unfinalized metrics, those of `metric_finalizers`. A client whose update is not
      finite reports nothing but that.
    num_steps: The number of steps taken.
    is_finite: Whether the update is finite.
  """

  update: Any
  update_weight: tf.Tensor
  metrics: collections.OrderedDict[str, Any]
  num_steps: tf.Tensor
  is_finite: tf.Tensor


def _has_gpu() -> bool:
  return bool(tf.config.list_physical_devices('GPU'))


class _Joiner:
  """Joins all leaves into one vector, so that a GPU does not start a kernel for each leaf.

  On a CPU, the copying costs more than it saves. Only what works entry by entry, or by norms over
  all leaves, may be given such a vector in place of the leaves.
  """

  def __init__(self, leaves: Sequence[tf.Tensor], optimizer: tff.learning.optimizers.Optimizer):
    self._shapes = [x.shape for x in leaves]
    self.is_active = (
      _has_gpu()
      and optimizers.may_join_leaves(optimizer)
      and len(leaves) > 1
      and len({x.dtype for x in leaves}) == 1
      and all(shape.is_fully_defined() for shape in self._shapes)
    )

  def join(self, *structures: local_models.Leaves) -> tuple[local_models.Leaves, ...]:
    """Returns all arguments joined; or, if a leaf is None (no gradient), all as they were."""
    if not self.is_active or any(x is None for leaves in structures for x in leaves):
      return structures
    return tuple([tf.concat([tf.reshape(x, [-1]) for x in leaves], 0)] for leaves in structures)

  def split(self, leaves: local_models.Leaves) -> local_models.Leaves:
    """Undoes `join`."""
    if len(leaves) == len(self._shapes):
      return leaves
    parts = tf.split(leaves[0], [shape.num_elements() for shape in self._shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, self._shapes)]


def train(
  model_fn: ModelFn,
  optimizer: tff.learning.optimizers.Optimizer,
  hparams: Mapping[str, Any],
  initial_weights: tff.learning.models.ModelWeights,
  dataset: tf.data.Dataset,
  *,
  client_weighting: client_data.ClientWeighting,
  loop_implementation: client_data.LoopImplementation,
  correction_fn: CorrectionFn | None = None,
  correction_constants: Sequence[local_models.Leaves] = (),
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
    model: Any = local_models.FunctionalModel(model_fn, inline=jit_compile)
  else:
    model = local_models.VariableModel(model_fn)

  @tracing.function
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
    data = (
      client_data.single_element(dataset) if loop_implementation is client_data.PACKED else dataset
    )
    step = take_step
    if jit_compile:
      step = tf.function(take_step, jit_compile=True, autograph=False)
    state = client_data.run_loop(step, state, data, model.input_spec, loop_implementation)
    carry, optimizer_state, num_steps, num_examples = state

    update = [x - y for x, y in zip(initial, model.trainable(carry))]
    is_finite = structures.all_finite(update)
    # Zeros in place of the update, too: zero times NaN is NaN. With `tf.where`, every client would
    # pay for them.
    update = tf.cond(is_finite, lambda: update, lambda: [tf.zeros_like(x) for x in update])
    if client_weighting is tff.learning.ClientWeighting.UNIFORM:
      weight = tf.ones([])
    elif client_weighting is client_data.DATA_SIZE and loop_implementation is client_data.PACKED:
      weight = tf.cast(data[client_data.SIZE_KEY], tf.float32)
    else:
      weight = tf.cast(num_examples, tf.float32)
    return LocalResult(
      update=tf.nest.pack_sequence_as(initial_weights.trainable, update),
      update_weight=tf.where(is_finite, weight, 0.0),
      metrics=collections.OrderedDict(
        **model.metrics(carry, is_finite),
        **local_models.clipping_metrics(optimizer_state, num_steps, is_finite),
      ),
      num_steps=num_steps,
      is_finite=is_finite,
    )

  return run(hparams, initial_weights, dataset)
