# SPDX-License-Identifier: Apache-2.0
"""The server's side of a round: the aggregation of updates, and the step along it."""

import collections
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import client_data, structures, tracing
from fednar_tff.optimizers import tree_math

ModelAggregator: TypeAlias = (
  tff.aggregators.WeightedAggregationFactory | tff.aggregators.UnweightedAggregationFactory
)
# Takes the aggregator's result; returns the update to hand to the server optimizer and the factor
# that is in it.
ExtrapolationFn = Callable[[Any], tuple[Any, tf.Tensor]]

# Of the released code: the square of the learning rate's decay in a round.
DEFAULT_EPSILON_DECAY = 0.998**2


def check_variant(variant: str, epsilon_decay: float | None) -> float:
  """Returns the decay of a server's epsilon in a round, 1 in the paper's variant.

  Raises:
    ValueError: If an argument is out of range, or the variant has no decay.
  """
  if variant not in ('paper', 'reference'):
    raise ValueError(f"`variant` must be one of ['paper', 'reference'], found {variant!r}.")
  if variant == 'paper':
    if epsilon_decay is not None:
      raise ValueError(
        f"`epsilon_decay` must be None if `variant` is 'paper', found {epsilon_decay!r}."
      )
    return 1.0
  if epsilon_decay is None:
    return DEFAULT_EPSILON_DECAY
  if not 0.0 <= epsilon_decay < math.inf:
    raise ValueError(f'`epsilon_decay` must be a nonnegative number, found {epsilon_decay!r}.')
  return epsilon_decay


def wrap_aggregator(
  aggregator: tff.templates.AggregationProcess,
  init_fn: tff.Computation,
  next_fn: Callable[[Any, Any, Any], tff.templates.MeasuredProcessOutput],
) -> tff.templates.AggregationProcess:
  """Returns a process that takes the updates and weights of another one.

  Args:
    aggregator: The other one, weighted.
    init_fn: Returns the first state.
    next_fn: A function of state, updates and weights, written in TFF.
  """
  _, update_type, weight_type = aggregator.next.type_signature.parameter
  next_computation = tff.federated_computation(
    init_fn.type_signature.result, update_type, weight_type
  )(next_fn)
  return tff.templates.AggregationProcess(init_fn, next_computation)


def create_aggregator(
  model_aggregator: ModelAggregator | None,
  update_type: tff.Type,
  client_weighting: client_data.ClientWeighting,
) -> tff.templates.AggregationProcess:
  """Returns the process that aggregates updates; its result is not finite if no client has weight.

  An unweighted factory counts a client whose update was not finite as one with an update of zero.

  Args:
    model_aggregator: A factory of TFF; None means the weighted mean.
    update_type: The type of a client's update.
    client_weighting: The weighting of the clients, to be uniform if the factory is unweighted.

  Raises:
    TypeError: If `model_aggregator` is not a factory.
    ValueError: If it is unweighted and the weighting is not uniform.
  """
  if model_aggregator is None:
    model_aggregator = tff.aggregators.MeanFactory()
  weight_type = tff.TensorType(np.float32)
  if isinstance(model_aggregator, tff.aggregators.WeightedAggregationFactory):
    return model_aggregator.create(update_type, weight_type)
  if not isinstance(model_aggregator, tff.aggregators.UnweightedAggregationFactory):
    raise TypeError(
      f'`model_aggregator` must be a factory of `tff.aggregators`, found {model_aggregator!r}.'
    )
  if client_weighting is not tff.learning.ClientWeighting.UNIFORM:
    raise ValueError(
      '`client_weighting` must be UNIFORM if `model_aggregator` is unweighted, '
      f'found {client_weighting}.'
    )
  aggregator = model_aggregator.create(update_type)
  result_type = aggregator.next.type_signature.result.result.member

  @tff.tensorflow.computation(result_type, weight_type)
  def spoil_if_empty(result, total_weight):
    factor = tf.where(total_weight > 0.0, 1.0, math.nan)
    return tf.nest.map_structure(lambda x: x * tf.cast(factor, x.dtype), result)

  @tff.federated_computation(
    aggregator.initialize.type_signature.result,
    tff.FederatedType(update_type, tff.CLIENTS),
    tff.FederatedType(weight_type, tff.CLIENTS),
  )
  def next_fn(state, update, weight):
    output = aggregator.next(state, update)
    # A weighted mean of nothing is NaN, by which the server knows; an unweighted one would be zero,
    # or noise.
    result = tff.federated_map(spoil_if_empty, (output.result, tff.federated_sum(weight)))
    return tff.templates.MeasuredProcessOutput(output.state, result, output.measurements)

  return tff.templates.AggregationProcess(aggregator.initialize, next_fn)


def build_finalizer(
  server_optimizer: tff.learning.optimizers.Optimizer | None,
  weights_type: tff.Type,
  aggregate_type: tff.Type,
  extrapolation_fn: ExtrapolationFn | None = None,
) -> tff.learning.templates.FinalizerProcess:
  """Returns the process in which a server optimizer descends along the mean update.

  If the update or the new weights are not finite, weights and optimizer stay as they were. The
  measurements are `server_step_size`, the factor in front of the mean update: the optimizer's
  learning rate (NaN if it has none) times that of `extrapolation_fn`, and 0 if no step was taken;
  and `model_norm`, the norm of the trainable weights after the step.

  Args:
    server_optimizer: Takes the step; None means gradient descent with learning rate 1.
    weights_type: The type of the model's weights.
    aggregate_type: The type of the aggregator's result.
    extrapolation_fn: Makes an update of the aggregator's result; None if that is an update already.

  Raises:
    TypeError: If `server_optimizer` is not an optimizer, or the aggregator's result does not fit
      the weights.
  """
  if server_optimizer is None:
    server_optimizer = tff.learning.optimizers.build_sgdm(1.0)
  if not isinstance(server_optimizer, tff.learning.optimizers.Optimizer):
    raise TypeError(
      '`server_optimizer_fn` must be a `tff.learning.optimizers.Optimizer`, '
      f'found {server_optimizer!r}.'
    )

  @tff.tensorflow.computation
  def init_tf():
    return server_optimizer.initialize(tff.types.type_to_tf_tensor_specs(weights_type.trainable))

  state_type = init_tf.type_signature.result

  @tff.tensorflow.computation(state_type, weights_type.trainable, aggregate_type)
  @tracing.function
  def next_tf(state, weights, aggregate):
    if extrapolation_fn is None:
      update, factor = aggregate, 1.0
    else:
      update, factor = extrapolation_fn(aggregate)
    new_state, new_weights = server_optimizer.next(state, weights, update)
    is_finite = structures.all_finite((update, new_weights))
    new_state, new_weights = tf.nest.map_structure(
      lambda new, old: tf.where(is_finite, new, old), (new_state, new_weights), (state, weights)
    )
    learning_rate = server_optimizer.get_hparams(state).get(
      tff.learning.optimizers.LEARNING_RATE_KEY, math.nan
    )
    measurements = collections.OrderedDict(
      server_step_size=tf.where(is_finite, tf.cast(learning_rate * factor, tf.float32), 0.0),
      model_norm=tf.cast(tree_math.global_norm(tf.nest.flatten(new_weights)), tf.float32),
    )
    return new_state, new_weights, measurements

  @tff.federated_computation
  def init_fn():
    return tff.federated_eval(init_tf, tff.SERVER)

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(aggregate_type, tff.SERVER),
  )
  def next_fn(state, weights, aggregate):
    state, trainable, measurements = tff.federated_map(
      next_tf, (state, weights.trainable, aggregate)
    )
    new_weights = tff.federated_zip(
      tff.learning.models.ModelWeights(trainable, weights.non_trainable)
    )
    return tff.templates.MeasuredProcessOutput(state, new_weights, measurements)

  @tff.tensorflow.computation(state_type)
  def get_hparams_fn(state):
    return server_optimizer.get_hparams(state)

  @tff.tensorflow.computation(state_type, get_hparams_fn.type_signature.result)
  def set_hparams_fn(state, hparams):
    return server_optimizer.set_hparams(state, hparams)

  return tff.learning.templates.FinalizerProcess(
    init_fn, next_fn, get_hparams_fn=get_hparams_fn, set_hparams_fn=set_hparams_fn
  )
