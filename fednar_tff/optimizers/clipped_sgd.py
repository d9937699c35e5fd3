# SPDX-License-Identifier: Apache-2.0
"""The baselines of NAR: clipping and weight decay that do not know of each other.

FedNAR: Federated Optimization with Normalized Annealing Regularization
    Junbo Li, Ang Li, Chong Tian, Qirong Ho, Eric P. Xing, Hongyi Wang. NeurIPS 2023.
    https://arxiv.org/abs/2310.03163, "Comparison with gradient clipping" and Theorem 1.
"""

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.optimizers import adaptive_sgd, tree_math


def build_clipped_sgd(
  learning_rate: adaptive_sgd.Float,
  weight_decay: adaptive_sgd.Float = 0.0,
  max_norm: adaptive_sgd.Float = 10.0,
  *,
  epsilon: float = 0.0,
) -> tff.learning.optimizers.Optimizer:
  """Returns the paper's baseline: clipped gradient descent, and weight decay apart from it.

  In the symbols of `build_nar`, a step is

  ```
  s = min(1, A / ||g||)
  x <- (1 - l wd) x - l s g
  ```

  so that the decay is outside of the norm, and not clipped. When nothing is clipped, the step is
  that of `build_nar`, to the bit. All other conventions of `build_nar` hold here, too.

  Args:
    learning_rate: As in `build_nar`.
    weight_decay: As in `build_nar`; not clipped.
    max_norm: As in `build_nar`.
    epsilon: As in `build_nar`.

  Raises:
    ValueError: If an argument is out of range.
  """
  adaptive_sgd.check_hparam('epsilon', epsilon)

  def rates_fn(g, x, hparams):
    norm = tree_math.global_norm(g)
    s, clipped = adaptive_sgd.clip_scale(norm, hparams['max_norm'], epsilon)
    lr, wd = (tf.cast(hparams[k], s.dtype) for k in ('learning_rate', 'weight_decay'))
    # In the same order of operations as NAR's, so that the two agree to the bit when nothing is
    # clipped.
    update = [
      tf.cast(lr, d.dtype) * (tf.cast(s, d.dtype) * d + tf.cast(wd, d.dtype) * w)
      for d, w in zip(g, x)
    ]
    return adaptive_sgd.Rates(lr * s, lr * wd, norm, clipped, update)

  return adaptive_sgd.build_clipping_optimizer(
    rates_fn, learning_rate=learning_rate, weight_decay=weight_decay, max_norm=max_norm
  )


def build_bounded_decay_sgd(
  learning_rate: adaptive_sgd.Float,
  weight_decay: adaptive_sgd.Float,
  max_norm: adaptive_sgd.Float = 10.0,
  max_weight_norm: adaptive_sgd.Float = 10.0,
) -> tff.learning.optimizers.Optimizer:
  """Returns gradient descent that bounds gradient and weight decay apart (after Theorem 1).

  With weights `x`, gradient `g`, learning rate `l`, weight decay `wd` and the bounds `A`
  (`max_norm`) and `c` (`max_weight_norm`), a step is

  ```
  lam = l min(1, A / ||g||)
  mu = l wd min(1, c / ||x||)
  x <- (1 - mu) x - lam g
  ```

  so that no step is longer than `l (A + wd c)`, the condition of Theorem 1. The state counts the
  steps whose gradient was clipped.

  Args:
    learning_rate: A nonnegative float, settable as a hparam in each round.
    weight_decay: A nonnegative float, settable as a hparam in each round.
    max_norm: A positive float or infinity, settable as a hparam.
    max_weight_norm: A positive float or infinity, settable as a hparam.

  Raises:
    ValueError: If an argument is out of range.
  """

  def rates_fn(g, x, hparams):
    norm = tree_math.global_norm(g)
    s, clipped = adaptive_sgd.clip_scale(norm, hparams['max_norm'], epsilon=0.0)
    decay_scale, _ = adaptive_sgd.clip_scale(
      tree_math.global_norm(x), hparams['max_weight_norm'], epsilon=0.0
    )
    lr, wd = (tf.cast(hparams[k], s.dtype) for k in ('learning_rate', 'weight_decay'))
    return adaptive_sgd.Rates(lr * s, lr * wd * decay_scale, norm, clipped)

  return adaptive_sgd.build_clipping_optimizer(
    rates_fn,
    learning_rate=learning_rate,
    weight_decay=weight_decay,
    max_norm=max_norm,
    max_weight_norm=max_weight_norm,
  )
