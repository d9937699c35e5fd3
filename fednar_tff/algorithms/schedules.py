# SPDX-License-Identifier: Apache-2.0
"""Schedules over rounds: the learning rate and weight decay of every client in a round.

A schedule is any function from the round, an integer tensor that starts at 0, to a float, written
in TensorFlow.
"""

import collections
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

ScheduleFn = Callable[[tf.Tensor], Any]

_LEARNING_RATE_KEY = tff.learning.optimizers.LEARNING_RATE_KEY
_WEIGHT_DECAY_KEY = 'weight_decay'


def constant(value: float) -> ScheduleFn:
  """Returns the schedule that is `value` in every round.

  >>> float(constant(0.25)(7))
  0.25

  Args:
    value: A nonnegative float.

  Raises:
    ValueError: If the number is out of range.
  """
  _check_initial_value('value', value)
  return lambda round_num: tf.constant(value, tf.float32)


def exponential_decay(
  initial_value: float, decay_rate: float = 0.998, *, first_round_decays: bool = False
) -> ScheduleFn:
  """Returns the schedule `initial_value * decay_rate ** t`, the paper's for the learning rate.

  >>> schedule = exponential_decay(0.01)
  >>> [round(float(schedule(t)), 8) for t in (0, 1, 2)]
  [0.01, 0.00998, 0.00996004]

  Args:
    initial_value: A nonnegative float, the value of round 0.
    decay_rate: A positive float; 1 gives a constant.
    first_round_decays: Whether round 0 is decayed already, as in the paper's released code: `t + 1`
      in place of `t`.

  Raises:
    ValueError: If a number is out of range.
  """
  _check_initial_value('initial_value', initial_value)
  if not 0.0 < decay_rate < math.inf:
    raise ValueError(f'`decay_rate` must be a positive number, found {decay_rate!r}.')
  offset = 1.0 if first_round_decays else 0.0

  def schedule_fn(round_num):
    return initial_value * tf.pow(decay_rate, tf.cast(round_num, tf.float32) + offset)

  return schedule_fn


def cosine_decay(
  initial_value: float, decay_rounds: int, final_fraction: float = 0.0
) -> ScheduleFn:
  """Returns half a cosine from `initial_value` down to a fraction of it, where it stays.

  With `N` (`decay_rounds`) and `f` (`final_fraction`), round `t` has

  ```
  initial_value * (f + (1 - f) * (1 + cos(pi * min(t, N) / N)) / 2)
  ```

  `N` is a number of its own and not that of the run's rounds, so that a longer run begins as a
  shorter one does.

  >>> schedule = cosine_decay(1.0, 4)
  >>> [round(float(schedule(t)), 4) for t in (0, 1, 2, 4, 9)]
  [1.0, 0.8536, 0.5, 0.0, 0.0]

  Args:
    initial_value: A nonnegative float, the value of round 0.
    decay_rounds: The round that has the last value, a positive integer.
    final_fraction: What is left of the value then, a float in [0, 1].

  Raises:
    ValueError: If a number is out of range.
  """
  _check_initial_value('initial_value', initial_value)
  _check_rounds('decay_rounds', decay_rounds, 1)
  if not 0.0 <= final_fraction <= 1.0:
    raise ValueError(f'`final_fraction` must be a number in [0, 1], found {final_fraction!r}.')

  def schedule_fn(round_num):
    done = tf.cast(tf.minimum(round_num, decay_rounds), tf.float32) / float(decay_rounds)
    half_cosine = 0.5 * (1.0 + tf.cos(math.pi * done))
    return initial_value * (final_fraction + (1.0 - final_fraction) * half_cosine)

  return schedule_fn


def step_decay(initial_value: float, decay_rounds: int, decay_rate: float = 0.1) -> ScheduleFn:
  """Returns the schedule `initial_value * decay_rate ** floor(t / decay_rounds)`.

  >>> schedule = step_decay(1.0, 10, 0.5)
  >>> [float(schedule(t)) for t in (0, 9, 10, 29)]
  [1.0, 1.0, 0.5, 0.25]

  Args:
    initial_value: A nonnegative float, the value of round 0.
    decay_rounds: How many rounds have the same value, a positive integer.
    decay_rate: The factor from step to step, a positive float.

  Raises:
    ValueError: If a number is out of range.
  """
  _check_initial_value('initial_value', initial_value)
  _check_rounds('decay_rounds', decay_rounds, 1)
  if not 0.0 < decay_rate < math.inf:
    raise ValueError(f'`decay_rate` must be a positive number, found {decay_rate!r}.')

  def schedule_fn(round_num):
    steps = tf.cast(tf.math.floordiv(round_num, decay_rounds), tf.float32)
    return initial_value * tf.pow(decay_rate, steps)

  return schedule_fn


def linear_warm_up(schedule_fn: ScheduleFn, warm_up_rounds: int) -> ScheduleFn:
  """Returns a schedule whose first rounds rise to another one in equal steps.

  With `W` (`warm_up_rounds`), round `t` has

  ```
  min(1, (t + 1) / (W + 1)) * schedule_fn(t)
  ```

  so that `W` rounds are below `schedule_fn` and none is 0. The other schedule counts the rounds of
  the warm-up, too.

  >>> schedule = linear_warm_up(constant(1.0), 3)
  >>> [float(schedule(t)) for t in range(5)]
  [0.25, 0.5, 0.75, 1.0, 1.0]

  Args:
    schedule_fn: A schedule.
    warm_up_rounds: A nonnegative integer; 0 gives `schedule_fn`.

  Raises:
    ValueError: If the number is out of range.
  """
  _check_rounds('warm_up_rounds', warm_up_rounds, 0)

  def warmed_up_fn(round_num):
    rounds = tf.cast(tf.minimum(round_num, warm_up_rounds), tf.float32) + 1.0
    value = tf.convert_to_tensor(schedule_fn(round_num))
    return value * tf.cast(rounds / float(warm_up_rounds + 1), value.dtype)

  return warmed_up_fn


def _check_initial_value(name, value):
  if not 0.0 <= value < math.inf:
    raise ValueError(f'`{name}` must be a nonnegative number, found {value!r}.')


def _check_rounds(name, value, least):
  if not isinstance(value, int) or isinstance(value, bool) or value < least:
    allowed = 'a positive' if least else 'a nonnegative'
    raise ValueError(f'`{name}` must be {allowed} integer, found {value!r}.')


class HparamsSchedule(NamedTuple):
  """The client optimizer's hparams over the rounds, as TFF computations without placement.

  Attributes:
    initialize: Returns the state: the number of the next round, and the hparams.
    advance: Takes the state; returns the next state, whose hparams are those of this round.
    get_hparams: Takes the state and returns its hparams.
    set_hparams: Takes the state and hparams and returns a state with these.
    get_rates: Takes the hparams and returns the metrics `learning_rate` and `weight_decay`.
  """

  initialize: tff.Computation
  advance: tff.Computation
  get_hparams: tff.Computation
  set_hparams: tff.Computation
  get_rates: tff.Computation


def build_hparams_schedule(
  optimizer: tff.learning.optimizers.Optimizer,
  learning_rate_fn: ScheduleFn | None,
  weight_decay_fn: ScheduleFn | None,
) -> HparamsSchedule:
  """Returns the schedule of an optimizer's hparams; None leaves a hparam as it is.

  Raises:
    TypeError: If a schedule is not a function.
    ValueError: If the optimizer does not have a hparam that is scheduled.
  """

  @tff.tensorflow.computation
  def initial_hparams():
    # The hparams of a TFF optimizer do not depend on the weights.
    return optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([], tf.float32)))

  hparams_type = initial_hparams.type_signature.result
  known = tff.structure.name_list(hparams_type)
  schedules = {
    k: f
    for k, f in ((_LEARNING_RATE_KEY, learning_rate_fn), (_WEIGHT_DECAY_KEY, weight_decay_fn))
    if f is not None
  }
  for name, schedule_fn in schedules.items():
    if not callable(schedule_fn):
      raise TypeError(f'`{name}_fn` must be a function of the round, found {schedule_fn!r}.')
    if name not in known:
      raise ValueError(
        f'`{name}_fn` needs a client optimizer with the hparam `{name}`, found one with {known}.'
      )

  @tff.tensorflow.computation
  def initialize():
    return collections.OrderedDict(round_num=tf.zeros([], tf.int32), hparams=initial_hparams())

  state_type = initialize.type_signature.result

  @tff.tensorflow.computation(state_type)
  def advance(state):
    hparams = collections.OrderedDict(state['hparams'])
    for name, schedule_fn in schedules.items():
      hparams[name] = tf.cast(schedule_fn(state['round_num']), hparams[name].dtype)
    return collections.OrderedDict(round_num=state['round_num'] + 1, hparams=hparams)

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return state['hparams']

  @tff.tensorflow.computation(state_type, hparams_type)
  def set_hparams(state, hparams):
    return collections.OrderedDict(round_num=state['round_num'], hparams=hparams)

  @tff.tensorflow.computation(hparams_type)
  def get_rates(hparams):
    return collections.OrderedDict(
      learning_rate=tf.cast(hparams.get(_LEARNING_RATE_KEY, math.nan), tf.float32),
      weight_decay=tf.cast(hparams.get(_WEIGHT_DECAY_KEY, 0.0), tf.float32),
    )

  return HparamsSchedule(initialize, advance, get_hparams, set_hparams, get_rates)
