# SPDX-License-Identifier: Apache-2.0
"""Gradient descent with any adaptive learning rate and weight decay (Algorithm 1 of FedNAR).

FedNAR: Federated Optimization with Normalized Annealing Regularization
    Junbo Li, Ang Li, Chong Tian, Qirong Ho, Eric P. Xing, Hongyi Wang. NeurIPS 2023.
    https://arxiv.org/abs/2310.03163
"""

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.optimizers import tree_math

LEARNING_RATE_KEY = tff.learning.optimizers.LEARNING_RATE_KEY
WEIGHT_DECAY_KEY = 'weight_decay'
MAX_NORM_KEY = 'max_norm'

Float: TypeAlias = float | tf.Tensor | np.number
State = collections.OrderedDict[str, Any]
Leaves = Sequence[tf.Tensor]


class ClippingStatistics(NamedTuple):
  """What an optimizer's state has counted since `initialize`.

  Attributes:
    num_steps: The number of steps taken.
    num_clipped_steps: The number of those whose norm was above the bound.
    sum_clipped_norms: The sum of the norms, before clipping, of the clipped steps.
  """

  num_steps: Any
  num_clipped_steps: Any
  sum_clipped_norms: Any


class Rates(NamedTuple):
  """The rates of one step `x <- x - (lam g + mu x)`, and what became of its norm.

  Attributes:
    lam: The learning rate of this step, a scalar.
    mu: The share of the weights that this step takes away, a scalar.
    norm: The norm that was compared with a bound, a scalar.
    clipped: Whether the norm was above the bound, a boolean scalar.
    update: `lam g + mu x`, if it was computed on the way to the rates.
  """

  lam: Any
  mu: Any
  norm: Any = 0.0
  clipped: Any = False
  update: Leaves | None = None


def check_hparam(name: str, value: Float, *, positive: bool = False, finite: bool = True) -> None:
  """Raises a `ValueError` that names the argument if `value` is out of range.

  A symbolic tensor passes: TFF builds optimizers with a scheduled learning rate inside a graph.
  """
  if tf.is_symbolic_tensor(value):
    return
  allowed = 'a positive' if positive else 'a nonnegative'
  allowed += ' finite number' if finite else ' number or infinity'
  try:
    number = float(value)
  except (TypeError, ValueError) as e:
    raise ValueError(f'`{name}` must be {allowed}, found {value!r}.') from e
  if (
    math.isnan(number)
    or number < 0
    or (positive and number == 0)
    or (finite and number == math.inf)
  ):
    raise ValueError(f'`{name}` must be {allowed}, found {value!r}.')


def clip_scale(norm: tf.Tensor, max_norm: Any, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns `min(1, max_norm / (norm + epsilon))` and whether it is below one.

  For a norm that is not finite the scale is NaN and nothing counts as clipped, so that every weight
  shows that the gradient was bad, not only those leaves where it was.
  """
  max_norm = tf.cast(max_norm, norm.dtype)
  padded = norm + epsilon
  clipped = tf.math.is_finite(norm) & (padded > max_norm)
  scale = tf.where(clipped, max_norm / padded, tf.ones_like(norm))
  return tf.where(tf.math.is_finite(norm), scale, tf.constant(math.nan, norm.dtype)), clipped


def initial_statistics() -> State:
  """Returns the entries of a state that count steps and clipping, at zero."""
  zeros = ClippingStatistics(
    tf.zeros([], tf.int64), tf.zeros([], tf.int64), tf.zeros([], tf.float32)
  )
  return collections.OrderedDict(zeros._asdict())


def updated_statistics(state: Mapping[str, Any], norm: Any, clipped: Any) -> State:
  """Returns the entries of `initial_statistics` after one more step."""
  clipped = tf.convert_to_tensor(clipped)
  clipped_norm = tf.where(clipped, tf.cast(norm, tf.float32), 0.0)
  return collections.OrderedDict(
    num_steps=state['num_steps'] + 1,
    num_clipped_steps=state['num_clipped_steps'] + tf.cast(clipped, tf.int64),
    sum_clipped_norms=state['sum_clipped_norms'] + clipped_norm,
  )


def get_clipping_statistics(state: Any) -> ClippingStatistics | None:
  """Returns what an optimizer of this package has counted; None for another one's state."""
  if not isinstance(state, Mapping) or any(k not in state for k in ClippingStatistics._fields):
    return None
  return ClippingStatistics(*(state[k] for k in ClippingStatistics._fields))


def may_join_leaves(optimizer: tff.learning.optimizers.Optimizer) -> bool:
  """Returns whether joining all leaves into one changes nothing but the rounding of a step."""
  return getattr(optimizer, 'may_join_leaves', False)


def replace(state: Mapping[str, Any], entries: Mapping[str, Any]) -> State:
  """Returns a copy of `state`, in its order, with some of its entries replaced."""
  return collections.OrderedDict((k, entries.get(k, v)) for k, v in state.items())


def hparam_entries(hparams: Mapping[str, Float]) -> State:
  """Returns the hparams as they stand in a new state.

  Numbers stay Python numbers: TFF reads them outside of any graph, where it takes no tensors.
  """
  return collections.OrderedDict(
    (k, v if tf.is_symbolic_tensor(v) else float(v)) for k, v in hparams.items()
  )


def flatten_with_gradients(
  weights: Any, gradients: Any
) -> tuple[list[Any], list[int], list[Any], list[Any]]:
  """Checks that gradients match weights, and returns the leaves in the type they are computed in.

  Returns:
    All leaves of the weights; the positions of those that have a gradient; and, for these,
    gradients and weights.
  """
  gradients = tff.learning.optimizers.handle_indexed_slices_gradients(gradients)
  tff.learning.optimizers.check_weights_gradients_match(weights, gradients)
  all_weights, all_gradients = tf.nest.flatten(weights), tf.nest.flatten(gradients)
  positions = [i for i, g in enumerate(all_gradients) if g is not None]

  def to_compute_dtype(leaves):
    return [tf.cast(leaves[i], tree_math.compute_dtype(leaves[i])) for i in positions]

  return all_weights, positions, to_compute_dtype(all_gradients), to_compute_dtype(all_weights)


class _AdaptiveSGD(tff.learning.optimizers.Optimizer):
  """Algorithm 1 of FedNAR, see `build_adaptive_sgd`; NAR and the baseline are instances of it."""

  def __init__(
    self,
    rates_fn: Callable[[Leaves, Leaves, Mapping[str, tf.Tensor]], Rates],
    hparams: Mapping[str, Float],
    may_join_leaves: bool = False,
  ):
    self._rates_fn = rates_fn
    self._hparams = hparams
    self.may_join_leaves = may_join_leaves

  def initialize(self, specs: Any) -> State:
    del specs  # Neither hparams nor statistics depend on the weights.
    return collections.OrderedDict(**hparam_entries(self._hparams), **initial_statistics())

  def next(self, state: State, weights: Any, gradients: Any) -> tuple[State, Any]:
    leaves, positions, g, x = flatten_with_gradients(weights, gradients)
    rates = self._rates_fn(g, x, self.get_hparams(state))
    update = rates.update
    if update is None:
      update = [
        tf.cast(rates.lam, d.dtype) * d + tf.cast(rates.mu, d.dtype) * w for d, w in zip(g, x)
      ]
    for i, w, u in zip(positions, x, update):
      leaves[i] = tf.cast(w - u, leaves[i].dtype)
    new_state = replace(state, updated_statistics(state, rates.norm, rates.clipped))
    return new_state, tf.nest.pack_sequence_as(weights, leaves)

  def get_hparams(self, state: State) -> State:
    return collections.OrderedDict((k, state[k]) for k in self._hparams)

  def set_hparams(self, state: State, hparams: Mapping[str, Any]) -> State:
    return replace(state, hparams)


def build_adaptive_sgd(
  rates_fn: Callable[[Leaves, Leaves, tf.Tensor, tf.Tensor], Rates | tuple[Any, Any]],
  learning_rate: Float,
  weight_decay: Float,
) -> tff.learning.optimizers.Optimizer:
  """Returns gradient descent with any adaptive learning rate and weight decay.

  With weights `x`, gradient `g`, learning rate `l`, weight decay `wd` and the two rates `lam` and
  `mu`, any functions of these four, a step is

  ```
  lam, mu = rates_fn(g, x, l, wd)
  x <- (1 - mu) x - lam g
  ```

  The round enters through `l` and `wd`, which a federated algorithm can set in each round. Plain
  gradient descent with weight decay, for example, whose `mu` in the paper's tables is `l * wd`:

  >>> rates_fn = lambda g, x, l, wd: (l, l * wd)
  >>> sgd = build_adaptive_sgd(rates_fn, learning_rate=0.5, weight_decay=0.25)
  >>> weights = tf.constant([8.0, -8.0])
  >>> state = sgd.initialize(tf.TensorSpec([2]))
  >>> _, weights = sgd.next(state, weights, tf.constant([2.0, 4.0]))
  >>> weights.numpy()
  array([ 6., -9.], dtype=float32)

  Weights whose gradient is None stay, and are not in `g` and `x`. Half precision is computed in
  float32.

  Args:
    rates_fn: Takes the leaves of gradient and weights as two lists of tensors, the learning rate
      and the weight decay, and returns the scalars `(lam, mu)`, or `Rates` to have the state count
      clipped steps as well.
    learning_rate: A nonnegative float, settable as a hparam.
    weight_decay: A nonnegative float, settable as a hparam.

  Raises:
    ValueError: If an argument is out of range.
  """
  check_hparam(LEARNING_RATE_KEY, learning_rate)
  check_hparam(WEIGHT_DECAY_KEY, weight_decay)

  def rates_of_hparams(g, x, hparams):
    dtype = tree_math.scalar_dtype(g)
    l, wd = (tf.cast(hparams[k], dtype) for k in (LEARNING_RATE_KEY, WEIGHT_DECAY_KEY))
    return Rates(*rates_fn(g, x, l, wd))

  return _AdaptiveSGD(
    rates_of_hparams, {LEARNING_RATE_KEY: learning_rate, WEIGHT_DECAY_KEY: weight_decay}
  )


def build_clipping_optimizer(
  rates_fn: Callable[[Leaves, Leaves, Mapping[str, tf.Tensor]], Rates],
  *,
  learning_rate: Float,
  weight_decay: Float,
  max_norm: Float,
  **more_bounds: Float,
) -> tff.learning.optimizers.Optimizer:
  """Returns an instance of Algorithm 1 whose rates depend on norms that hparams bound."""
  check_hparam(LEARNING_RATE_KEY, learning_rate)
  check_hparam(WEIGHT_DECAY_KEY, weight_decay)
  bounds = {MAX_NORM_KEY: max_norm, **more_bounds}
  for name, value in bounds.items():
    check_hparam(name, value, positive=True, finite=False)
  hparams = {LEARNING_RATE_KEY: learning_rate, WEIGHT_DECAY_KEY: weight_decay, **bounds}
  return _AdaptiveSGD(rates_fn, hparams, may_join_leaves=True)
