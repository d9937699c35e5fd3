# SPDX-License-Identifier: Apache-2.0
"""Co-clipping in front of any optimizer, which FedNAR leaves to future work.

FedNAR: Federated Optimization with Normalized Annealing Regularization
    Junbo Li, Ang Li, Chong Tian, Qirong Ho, Eric P. Xing, Hongyi Wang. NeurIPS 2023.
    https://arxiv.org/abs/2310.03163, "Conclusion".
"""

import collections
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.optimizers import adaptive_sgd, nar, tree_math

_INNER_KEY = 'inner'


class _CoClip(tff.learning.optimizers.Optimizer):
  """Hands the co-clipped gradient to another optimizer, see `co_clip`."""

  def __init__(
    self, optimizer: tff.learning.optimizers.Optimizer, hparams: Mapping[str, adaptive_sgd.Float]
  ):
    self._optimizer = optimizer
    self._hparams = hparams

  def initialize(self, specs: Any) -> adaptive_sgd.State:
    inner = self._optimizer.initialize(specs)
    inner_hparams = self._optimizer.get_hparams(inner)
    _check_inner_hparams(inner_hparams)
    inner_hparams = {k: inner_hparams[k] for k in self._inner_names(inner)}
    # The hparams of both stand at the top, where TFF's learning-rate schedules look for them;
    # `next` hands them on.
    return collections.OrderedDict(
      **inner_hparams,
      **adaptive_sgd.hparam_entries(self._hparams),
      **adaptive_sgd.initial_statistics(),
      **{_INNER_KEY: inner},
    )

  def next(
    self, state: adaptive_sgd.State, weights: Any, gradients: Any
  ) -> tuple[adaptive_sgd.State, Any]:
    all_weights, positions, g, x = adaptive_sgd.flatten_with_gradients(weights, gradients)
    d = nar.decayed_gradient(g, x, state[adaptive_sgd.WEIGHT_DECAY_KEY])
    norm = tree_math.global_norm(d)
    s, clipped = adaptive_sgd.clip_scale(norm, state[adaptive_sgd.MAX_NORM_KEY], epsilon=0.0)
    co_clipped = [None] * len(all_weights)
    for i, v in zip(positions, d):
      co_clipped[i] = tf.cast(tf.cast(s, v.dtype) * v, all_weights[i].dtype)
    inner = state[_INNER_KEY]
    inner_hparams = collections.OrderedDict(self._optimizer.get_hparams(inner))
    inner_hparams.update((k, state[k]) for k in self._inner_names(inner))
    inner, new_weights = self._optimizer.next(
      self._optimizer.set_hparams(inner, inner_hparams),
      weights,
      tf.nest.pack_sequence_as(weights, co_clipped),
    )
    statistics = adaptive_sgd.updated_statistics(state, norm, clipped)
    return adaptive_sgd.replace(state, {**statistics, _INNER_KEY: inner}), new_weights

  def get_hparams(self, state: adaptive_sgd.State) -> adaptive_sgd.State:
    names = [*self._inner_names(state[_INNER_KEY]), *self._hparams]
    return collections.OrderedDict((k, state[k]) for k in names)

  def set_hparams(
    self, state: adaptive_sgd.State, hparams: Mapping[str, Any]
  ) -> adaptive_sgd.State:
    return adaptive_sgd.replace(state, hparams)

  def _inner_names(self, inner: Any) -> list[str]:
    """Returns the hparams of the other optimizer, but for a weight decay, which stays 0."""
    return [k for k in self._optimizer.get_hparams(inner) if k not in self._hparams]


def _check_inner_hparams(hparams: Mapping[str, Any]) -> None:
  if adaptive_sgd.MAX_NORM_KEY in hparams:
    raise ValueError(
      '`optimizer` must not clip by itself: leave the bound to the `max_norm` of `co_clip`, '
      f'found one with the hparams {list(hparams)}.'
    )
  if adaptive_sgd.WEIGHT_DECAY_KEY in hparams:
    value = tf.get_static_value(tf.convert_to_tensor(hparams[adaptive_sgd.WEIGHT_DECAY_KEY]))
    if value != 0.0:
      raise ValueError(
        '`optimizer` must have a weight decay of 0: build it with `weight_decay=0.0` and give the '
        'weight decay to `co_clip`, which clips it together with the gradient; '
        f'found {"a tensor" if value is None else value}.'
      )


def co_clip(
  optimizer: tff.learning.optimizers.Optimizer,
  weight_decay: adaptive_sgd.Float,
  max_norm: adaptive_sgd.Float,
) -> tff.learning.optimizers.Optimizer:
  """Returns `optimizer` with gradient and weight decay clipped together before it sees them.

  With weights `x`, gradient `g`, weight decay `wd` and bound `A` (`max_norm`), the optimizer is
  given, in place of `g`,

  ```
  min(1, A / ||g + wd x||) (g + wd x)
  ```

  In front of SGD this is `build_nar`. The conventions are those of `build_nar`; the hparams are
  those of `optimizer` and the two of this function.

  >>> adam = co_clip(tff.learning.optimizers.build_adam(0.001), weight_decay=0.01, max_norm=1.0)
  >>> list(adam.get_hparams(adam.initialize(tf.TensorSpec([2]))))
  ['learning_rate', 'beta_1', 'beta_2', 'epsilon', 'weight_decay', 'max_norm']

  Args:
    optimizer: Any `tff.learning.optimizers.Optimizer` without a hparam named `max_norm`. One that
      has a `weight_decay` of its own, as AdamW, must be built with 0 there: it stays 0, and the
      hparam `weight_decay` is that of this function.
    weight_decay: A nonnegative float, settable as a hparam in each round.
    max_norm: A positive float or infinity, settable as a hparam.

  Raises:
    TypeError: If `optimizer` is not an optimizer.
    ValueError: If a number is out of range, or, from `initialize`, if `optimizer` clips or decays
      weights by itself.
  """
  if not isinstance(optimizer, tff.learning.optimizers.Optimizer):
    raise TypeError(
      f'`optimizer` must be a `tff.learning.optimizers.Optimizer`, found {optimizer!r}.'
    )
  adaptive_sgd.check_hparam(adaptive_sgd.WEIGHT_DECAY_KEY, weight_decay)
  adaptive_sgd.check_hparam(adaptive_sgd.MAX_NORM_KEY, max_norm, positive=True, finite=False)
  return _CoClip(
    optimizer, {adaptive_sgd.WEIGHT_DECAY_KEY: weight_decay, adaptive_sgd.MAX_NORM_KEY: max_norm}
  )
