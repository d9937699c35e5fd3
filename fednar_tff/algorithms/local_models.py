# SPDX-License-Identifier: Apache-2.0
"""TFF's two kinds of models as the local loop trains them, and the metrics of local training."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import optimizers
from fednar_tff.algorithms import tracing

Leaves = Sequence[tf.Tensor | None]


class VariableModel:
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

    def reset():
      self._model.reset_metrics()
      return True

    tf.cond(is_finite, lambda: False, reset)
    return self._model.report_local_unfinalized_metrics()


class FunctionalModel:
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


def clipping_metrics(
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
# The metrics that local training adds to those of the model.
TRAINING_METRICS = tuple(_CLIPPING_FINALIZERS)


def metric_finalizers(
  model: tff.learning.models.VariableModel | tff.learning.models.FunctionalModel,
) -> Any:
  """Returns the finalizers of the model's metrics and of those that local training adds.

  They are in one structure so that whatever aggregates a model's metrics (securely, for example)
  aggregates all of them.
  """
  if isinstance(model, tff.learning.models.VariableModel):
    return collections.OrderedDict(**model.metric_finalizers(), **_CLIPPING_FINALIZERS)

  @tracing.function
  def finalize(unfinalized):
    own = collections.OrderedDict((k, f(unfinalized[k])) for k, f in _CLIPPING_FINALIZERS.items())
    of_model = collections.OrderedDict((k, v) for k, v in unfinalized.items() if k not in own)
    return collections.OrderedDict(**model.finalize_metrics(of_model), **own)

  return finalize
