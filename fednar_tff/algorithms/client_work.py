# SPDX-License-Identifier: Apache-2.0
"""The clients' side of a round: local training on every client, with the hparams of the round."""

import collections
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import client_data, local_models, local_training, schedules


class ClientSide(NamedTuple):
  """What the algorithms share of the clients' part of a round.

  Attributes:
    initial_weights_fn: A TFF computation that returns the model's initial weights.
    weights_type: The type of these.
    data_type: The type of a client's dataset.
    schedule: The optimizer's hparams over the rounds.
    train_fn: `train_fn(hparams, weights, dataset, correction_fn=None, correction_constants=())`
      returns a `LocalResult`.
    aggregate_metrics: A TFF computation from the clients' unfinalized metrics to the finalized
      ones.
  """

  initial_weights_fn: tff.Computation
  weights_type: tff.Type
  data_type: tff.SequenceType
  schedule: schedules.HparamsSchedule
  train_fn: Callable[..., local_training.LocalResult]
  aggregate_metrics: tff.Computation


def build_client_side(
  model_fn: local_training.ModelFn,
  *,
  client_optimizer_fn: tff.learning.optimizers.Optimizer,
  learning_rate_fn: schedules.ScheduleFn | None = None,
  weight_decay_fn: schedules.ScheduleFn | None = None,
  client_weighting: client_data.ClientWeighting = tff.learning.ClientWeighting.UNIFORM,
  metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
  loop_implementation: client_data.LoopImplementation = (
    tff.learning.LoopImplementation.DATASET_ITERATOR
  ),
  jit_compile: bool = False,
) -> ClientSide:
  """Returns the clients' part of an algorithm; the arguments are those of `build_fed_avg`.

  Raises:
    TypeError: If an argument is of the wrong type.
    ValueError: If a hparam that the optimizer does not have is scheduled, or a step is to be
      compiled that cannot be.
  """
  if not isinstance(client_optimizer_fn, tff.learning.optimizers.Optimizer):
    raise TypeError(
      '`client_optimizer_fn` must be a `tff.learning.optimizers.Optimizer`, '
      f'found {client_optimizer_fn!r}.'
    )
  if not isinstance(
    client_weighting, (tff.learning.ClientWeighting, client_data.DataSizeWeighting)
  ):
    raise TypeError(
      '`client_weighting` must be a `tff.learning.ClientWeighting` or `algorithms.DATA_SIZE`, '
      f'found {client_weighting!r}.'
    )
  if not isinstance(loop_implementation, (tff.learning.LoopImplementation, client_data.PackedLoop)):
    raise TypeError(
      '`loop_implementation` must be a `tff.learning.LoopImplementation` or `algorithms.PACKED`, '
      f'found {loop_implementation!r}.'
    )
  if jit_compile and not isinstance(model_fn, tff.learning.models.FunctionalModel):
    raise ValueError(f'`jit_compile` needs a `FunctionalModel`, found {model_fn!r}.')
  if jit_compile and loop_implementation is tff.learning.LoopImplementation.DATASET_REDUCE:
    raise ValueError(
      f'`jit_compile` needs another `loop_implementation`, found {loop_implementation!r}.'
    )
  if metrics_aggregator is None:
    metrics_aggregator = tff.learning.metrics.sum_then_finalize

  if isinstance(model_fn, tff.learning.models.FunctionalModel):
    model = model_fn
  else:
    # In a graph of its own, so that the variables of this model stay nowhere.
    with tf.Graph().as_default():
      model = model_fn()
    if not isinstance(model, tff.learning.models.VariableModel):
      raise TypeError(
        f'`model_fn` must be a FunctionalModel or return a VariableModel, found {model!r}.'
      )

  @tff.tensorflow.computation
  def initial_weights_fn():
    if model is model_fn:
      return tff.learning.models.ModelWeights(
        *(tuple(tf.convert_to_tensor(w) for w in tf.nest.flatten(p)) for p in model.initial_weights)
      )
    return tff.learning.models.ModelWeights.from_model(model_fn())

  def train_fn(hparams, weights, dataset, correction_fn=None, correction_constants=()):
    return local_training.train(
      model_fn,
      client_optimizer_fn,
      hparams,
      weights,
      dataset,
      client_weighting=client_weighting,
      loop_implementation=loop_implementation,
      correction_fn=correction_fn,
      correction_constants=correction_constants,
      jit_compile=jit_compile,
    )

  element_spec = client_data.client_data_spec(
    model.input_spec, loop_implementation, client_weighting
  )
  return ClientSide(
    initial_weights_fn=initial_weights_fn,
    weights_type=initial_weights_fn.type_signature.result,
    data_type=tff.SequenceType(tff.types.tensorflow_to_type(element_spec)),
    schedule=schedules.build_hparams_schedule(
      client_optimizer_fn, learning_rate_fn, weight_decay_fn
    ),
    train_fn=train_fn,
    aggregate_metrics=metrics_aggregator(local_models.metric_finalizers(model)),
  )


def _blank_without_clients(metrics_type: tff.Type) -> tff.Computation:
  """Returns a computation that makes each mean NaN if no client's update was finite.

  A mean over no client is 0 by TFF's finalizers, which would pass for a perfect loss.
  """

  @tff.tensorflow.computation(metrics_type)
  def blank(metrics):
    nobody = tf.equal(metrics['total_steps'], 0)
    return tf.nest.map_structure(
      lambda x: tf.where(nobody, tf.constant(math.nan, x.dtype), x) if x.dtype.is_floating else x,
      metrics,
    )

  return blank


def measurements(client_side: ClientSide, metrics: Any, hparams: Any) -> Any:
  """Returns a round's metrics at the server; to be called in a federated computation.

  Args:
    client_side: The clients' part of the algorithm.
    metrics: The clients' unfinalized metrics.
    hparams: The hparams of the round, at the server.
  """
  rates = tff.federated_map(client_side.schedule.get_rates, hparams)
  train = client_side.aggregate_metrics(metrics)
  if 'total_steps' in tff.structure.name_list(train.type_signature.member):
    train = tff.federated_map(_blank_without_clients(train.type_signature.member), train)
  return tff.federated_zip(
    collections.OrderedDict(
      train=train,
      learning_rate=rates.learning_rate,
      weight_decay=rates.weight_decay,
    )
  )


def build_client_work(
  client_side: ClientSide, correction_fn: local_training.CorrectionFn | None = None
) -> tff.learning.templates.ClientWorkProcess:
  """Returns the client work of an algorithm whose clients carry no state.

  Args:
    client_side: The clients' part of the algorithm.
    correction_fn: Changes each gradient; see `local_training.CorrectionFn`.
  """
  schedule = client_side.schedule
  weights_type, data_type = client_side.weights_type, client_side.data_type

  @tff.tensorflow.computation(schedule.get_hparams.type_signature.result, weights_type, data_type)
  def client_update(hparams, weights, dataset):
    result = client_side.train_fn(hparams, weights, dataset, correction_fn)
    return (
      tff.learning.templates.ClientResult(result.update, result.update_weight),
      result.metrics,
    )

  @tff.federated_computation
  def init_fn():
    return tff.federated_eval(schedule.initialize, tff.SERVER)

  @tff.federated_computation(
    init_fn.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, client_data):
    state = tff.federated_map(schedule.advance, state)
    client_result, metrics = tff.federated_map(
      client_update, (tff.federated_broadcast(state.hparams), weights, client_data)
    )
    return tff.templates.MeasuredProcessOutput(
      state, client_result, measurements(client_side, metrics, state.hparams)
    )

  return tff.learning.templates.ClientWorkProcess(
    init_fn,
    next_fn,
    get_hparams_fn=schedule.get_hparams,
    set_hparams_fn=schedule.set_hparams,
  )
