# SPDX-License-Identifier: Apache-2.0
"""FedExP: federated averaging that lengthens the server's step when the clients' updates disagree.

FedExP: Speeding Up Federated Averaging via Extrapolation
    Divyansh Jhunjhunwala, Shiqiang Wang, Gauri Joshi. ICLR 2023.
    https://arxiv.org/abs/2301.09604, Algorithm 1.
"""

import collections
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import (
  arguments,
  client_data,
  client_work,
  fed_avg,
  local_training,
  server_step,
  structures,
)


def _squared_norm(structure: Any) -> tf.Tensor:
  return tf.add_n(
    [tf.reduce_sum(tf.square(tf.cast(x, tf.float32))) for x in tf.nest.flatten(structure)]
  )


def _with_mean_squared_norm(
  aggregator: tff.templates.AggregationProcess,
  squared_norm_aggregator: tff.aggregators.WeightedAggregationFactory,
  is_weighted: bool,
) -> tff.templates.AggregationProcess:
  """Returns a process that also aggregates the updates' squared norms, with the same weights."""
  _, update_type, weight_type = (t.member for t in aggregator.next.type_signature.parameter)
  norm_type = tff.TensorType(np.float32)
  norm_aggregator = squared_norm_aggregator.create(norm_type, weight_type)

  @tff.tensorflow.computation(update_type)
  def squared_norm(update):
    return _squared_norm(update)

  @tff.tensorflow.computation(weight_type)
  def weight_in_mean(weight):
    # An unweighted mean counts every client, also the one whose update was replaced by zeros.
    return weight if is_weighted else tf.ones_like(weight)

  @tff.federated_computation
  def init_fn():
    return tff.federated_zip((aggregator.initialize(), norm_aggregator.initialize()))

  def next_fn(state, update, weight):
    mean = aggregator.next(state[0], update, weight)
    norm = norm_aggregator.next(
      state[1], tff.federated_map(squared_norm, update), tff.federated_map(weight_in_mean, weight)
    )
    return tff.templates.MeasuredProcessOutput(
      tff.federated_zip((mean.state, norm.state)),
      tff.federated_zip(collections.OrderedDict(mean=mean.result, mean_squared_norm=norm.result)),
      mean.measurements,
    )

  return server_step.wrap_aggregator(aggregator, init_fn, next_fn)


def _with_released_epsilon(
  aggregator: tff.templates.AggregationProcess, epsilon: float, epsilon_decay: float
) -> tff.templates.AggregationProcess:
  """Returns a process whose result also has the decayed `epsilon` times the participants."""
  weight_type = aggregator.next.type_signature.parameter[2].member

  @tff.tensorflow.computation
  def initial_epsilon():
    return tf.constant(epsilon, tf.float32)

  @tff.tensorflow.computation(np.float32)
  def decayed(epsilon):
    return epsilon * epsilon_decay

  @tff.tensorflow.computation(weight_type)
  def participation(weight):
    return tf.cast(weight > 0.0, tf.float32)

  @tff.tensorflow.computation(np.float32, np.float32)
  def product(epsilon, num_participants):
    return epsilon * num_participants

  @tff.federated_computation
  def init_fn():
    return tff.federated_zip(
      (aggregator.initialize(), tff.federated_eval(initial_epsilon, tff.SERVER))
    )

  def next_fn(state, update, weight):
    output = aggregator.next(state[0], update, weight)
    epsilon = tff.federated_map(decayed, state[1])
    num_participants = tff.federated_sum(tff.federated_map(participation, weight))
    result = collections.OrderedDict(
      mean=output.result.mean,
      mean_squared_norm=output.result.mean_squared_norm,
      epsilon=tff.federated_map(product, (epsilon, num_participants)),
    )
    return tff.templates.MeasuredProcessOutput(
      tff.federated_zip((output.state, epsilon)), tff.federated_zip(result), output.measurements
    )

  return server_step.wrap_aggregator(aggregator, init_fn, next_fn)


def _remember_previous_weights(
  finalizer: tff.learning.templates.FinalizerProcess,
) -> tff.learning.templates.FinalizerProcess:
  """Returns the finalizer with the weights before its last step in its state."""
  inner_type, weights_type, _ = (t.member for t in finalizer.next.type_signature.parameter)
  trainable_type = weights_type.trainable

  @tff.tensorflow.computation(inner_type)
  def initial_state(inner):
    return collections.OrderedDict(
      inner=inner, previous=structures.zeros(trainable_type), num_steps=tf.zeros([], tf.int32)
    )

  state_type = initial_state.type_signature.result

  @tff.tensorflow.computation(state_type, inner_type, trainable_type, np.float32)
  def next_state(state, inner, weights, step_size):
    took_step = tf.not_equal(step_size, 0.0)
    previous = tf.nest.map_structure(
      lambda new, old: tf.where(took_step, new, old), weights, state['previous']
    )
    num_steps = state['num_steps'] + tf.cast(took_step, tf.int32)
    return collections.OrderedDict(inner=inner, previous=previous, num_steps=num_steps)

  @tff.federated_computation
  def init_fn():
    return tff.federated_map(initial_state, finalizer.initialize())

  @tff.federated_computation(
    init_fn.type_signature.result, *finalizer.next.type_signature.parameter[1:]
  )
  def next_fn(state, weights, aggregate):
    output = finalizer.next(state.inner, weights, aggregate)
    state = tff.federated_map(
      next_state,
      (state, output.state, weights.trainable, output.measurements.server_step_size),
    )
    return tff.templates.MeasuredProcessOutput(state, output.result, output.measurements)

  @tff.tensorflow.computation(state_type)
  def get_hparams_fn(state):
    return finalizer.get_hparams(state['inner'])

  @tff.tensorflow.computation(state_type, get_hparams_fn.type_signature.result)
  def set_hparams_fn(state, hparams):
    return collections.OrderedDict(state, inner=finalizer.set_hparams(state['inner'], hparams))

  return tff.learning.templates.FinalizerProcess(
    init_fn, next_fn, get_hparams_fn=get_hparams_fn, set_hparams_fn=set_hparams_fn
  )


def _with_mean_of_last_two_models(
  process: tff.learning.templates.LearningProcess,
) -> tff.learning.templates.LearningProcess:
  """Returns the process whose model weights are the mean of the last two rounds' models."""
  state_type = process.initialize.type_signature.result.member

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    last, finalizer = state.global_model_weights, state.finalizer
    trainable = tf.nest.map_structure(
      lambda x, y: tf.where(finalizer['num_steps'] > 1, (x + y) / 2.0, x),
      last.trainable,
      finalizer['previous'],
    )
    return tff.learning.models.ModelWeights(trainable, last.non_trainable)

  @tff.tensorflow.computation(state_type, get_model_weights.type_signature.result)
  def set_model_weights(state, weights):
    state = process.set_model_weights(state, weights)
    # There is no model before these weights.
    finalizer = collections.OrderedDict(state.finalizer, num_steps=tf.zeros([], tf.int32))
    return tff.learning.templates.LearningAlgorithmState(
      state.global_model_weights,
      state.distributor,
      state.client_work,
      state.aggregator,
      finalizer,
    )

  return tff.learning.templates.LearningProcess(
    process.initialize,
    process.next,
    get_model_weights,
    set_model_weights,
    get_hparams_fn=process.get_hparams,
    set_hparams_fn=process.set_hparams,
  )


@arguments.with_arguments_of(fed_avg.build_fed_avg)
def build_fed_exp(
  model_fn: local_training.ModelFn,
  *,
  epsilon: float = 0.0,
  variant: str = 'paper',
  epsilon_decay: float | None = None,
  average_last_two: bool = False,
  server_optimizer_fn: tff.learning.optimizers.Optimizer | None = None,
  client_weighting: client_data.ClientWeighting = tff.learning.ClientWeighting.UNIFORM,
  model_aggregator: server_step.ModelAggregator | None = None,
  squared_norm_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
  **fed_avg_arguments: 'arguments.Unpack[arguments.ClientArguments]',
) -> tff.learning.templates.LearningProcess:
  """Returns FedExP: FedAvg whose server steps `eta_g >= 1` times as far.

  With server weights `x`, the clients' updates `D_i`, their mean `D` and `eps` (`epsilon`), the
  server's step is

  ```
  eta_g = max(1, mean ||D_i||^2 / (2 (||D||^2 + eps)))
  x <- x - eta_g D
  ```

  Both means have the same clients and weights. Where the quotient is 0 / 0, `eta_g` is 1. The
  metric `server_step_size` is `eta_g`, times the server optimizer's learning rate.

  Args:
    model_fn: As in `build_fed_avg`.
    epsilon: A nonnegative float; 0 in all scripts of the paper's released code.
    variant: `'paper'` for the above. `'reference'`, as in the released code, multiplies `eps` by
      the number of participants (those with a finite update, whom it counts in a sum of its own)
      and by `epsilon_decay` in each round, the first one included.
    epsilon_decay: A nonnegative float, only for the variant `'reference'`: the square of the
      learning rate's decay. None means 0.998^2, which fits `exponential_decay`'s default.
    average_last_two: Whether `get_model_weights` returns the mean of the models after the last two
      rounds, which the released code evaluates; training goes on from the last one in any case.
    server_optimizer_fn: Descends along `eta_g D`; None means gradient descent with learning rate 1.
    client_weighting: As in `build_fed_avg`.
    model_aggregator: As in `build_fed_avg`.
    squared_norm_aggregator: Aggregates the squared norms, one number a client; None means a plain
      mean. Where the server must not see them, pass for example a `tff.aggregators.MeanFactory` of
      secure sums.
    **fed_avg_arguments: The other arguments of `build_fed_avg`.

  Raises:
    TypeError: If an aggregator is of the wrong type.
    ValueError: If `epsilon`, `variant` or `epsilon_decay` is out of range.
  """
  epsilon_decay = server_step.check_variant(variant, epsilon_decay)
  if not 0.0 <= epsilon < math.inf:
    raise ValueError(f'`epsilon` must be a nonnegative number, found {epsilon!r}.')
  if squared_norm_aggregator is None:
    squared_norm_aggregator = tff.aggregators.MeanFactory()
  if not isinstance(squared_norm_aggregator, tff.aggregators.WeightedAggregationFactory):
    raise TypeError(
      '`squared_norm_aggregator` must be a weighted factory of `tff.aggregators`, '
      f'found {squared_norm_aggregator!r}.'
    )

  def extrapolate(aggregate):
    added = aggregate['epsilon'] if variant == 'reference' else epsilon
    ratio = tf.math.divide_no_nan(
      aggregate['mean_squared_norm'], 2.0 * (_squared_norm(aggregate['mean']) + added)
    )
    eta_g = tf.maximum(1.0, ratio)
    update = tf.nest.map_structure(lambda d: tf.cast(eta_g, d.dtype) * d, aggregate['mean'])
    return update, eta_g

  client_side = client_work.build_client_side(
    model_fn, client_weighting=client_weighting, **fed_avg_arguments
  )
  aggregator = _with_mean_squared_norm(
    server_step.create_aggregator(
      model_aggregator, client_side.weights_type.trainable, client_weighting
    ),
    squared_norm_aggregator,
    is_weighted=not isinstance(model_aggregator, tff.aggregators.UnweightedAggregationFactory),
  )
  if variant == 'reference':
    aggregator = _with_released_epsilon(aggregator, epsilon, epsilon_decay)
  finalizer = server_step.build_finalizer(
    server_optimizer_fn,
    client_side.weights_type,
    aggregator.next.type_signature.result.result.member,
    extrapolate,
  )
  if not average_last_two:
    return fed_avg.compose(client_side, aggregator, finalizer)
  process = fed_avg.compose(client_side, aggregator, _remember_previous_weights(finalizer))
  return _with_mean_of_last_two_models(process)
