# SPDX-License-Identifier: Apache-2.0
"""Normalized annealing regularization: gradient and weight decay are clipped together.

FedNAR: Federated Optimization with Normalized Annealing Regularization
    Junbo Li, Ang Li, Chong Tian, Qirong Ho, Eric P. Xing, Hongyi Wang. NeurIPS 2023.
    https://arxiv.org/abs/2310.03163, the functions lambda and mu after Condition 1.
"""

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.optimizers import adaptive_sgd, tree_math


def decayed_gradient(
  g: adaptive_sgd.Leaves, x: adaptive_sgd.Leaves, weight_decay: tf.Tensor
) -> list[tf.Tensor]:
  """Returns `g + wd x`, whose norm co-clipping bounds."""
  return [d + tf.cast(weight_decay, w.dtype) * w for d, w in zip(g, x)]


def build_nar(
  learning_rate: adaptive_sgd.Float,
  weight_decay: adaptive_sgd.Float,
  max_norm: adaptive_sgd.Float = 10.0,
  *,
  epsilon: float = 0.0,
) -> tff.learning.optimizers.Optimizer:
  """Returns gradient descent in which gradient and weight decay are clipped together.

  With weights `x`, gradient `g`, learning rate `l`, weight decay `wd` and bound `A` (`max_norm`), a
  step is

  ```
  s = min(1, A / ||g + wd x||)
  x <- (1 - l wd s) x - l s g
  ```

  so that no step is longer than `l A`. The norm is over all leaves together; the decay is
  multiplied by the learning rate (the paper's `u_t` is `l wd`). Here `||g + wd x|| = ||(3, 4)|| =
  5` is clipped to 1:

  >>> nar = build_nar(learning_rate=0.5, weight_decay=0.25, max_norm=1.0)
  >>> weights = tf.constant([8.0, -8.0])
  >>> state = nar.initialize(tf.TensorSpec([2]))
  >>> state, weights = nar.next(state, weights, tf.constant([1.0, 6.0]))
  >>> weights.numpy()
  array([ 7.7, -8.4], dtype=float32)
  >>> int(state['num_clipped_steps']), float(state['sum_clipped_norms'])
  (1, 5.0)

  A zero norm takes no step; a norm up to 1e35 is clipped without overflow; a gradient that is not
  finite makes all weights NaN, so that a federated algorithm can see it and drop the client.
  Weights whose gradient is None stay, and are not in the norm. Half precision is computed in
  float32. With `max_norm=inf` and `weight_decay=0` this is SGD to the bit.

  Args:
    learning_rate: A nonnegative float, settable as a hparam in each round.
    weight_decay: A nonnegative float, settable as a hparam in each round.
    max_norm: A positive float or infinity, settable as a hparam.
    epsilon: Added to the norm. 0 is the paper; 1e-6 is its released code, which in float32 also
      counts a norm of just `A` as clipped.

  Raises:
    ValueError: If an argument is out of range.
  """
  adaptive_sgd.check_hparam('epsilon', epsilon)

  def rates_fn(g, x, hparams):
    d = decayed_gradient(g, x, hparams['weight_decay'])
    norm = tree_math.global_norm(d)
    s, clipped = adaptive_sgd.clip_scale(norm, hparams['max_norm'], epsilon)
    lam = tf.cast(hparams['learning_rate'], s.dtype) * s
    mu = lam * tf.cast(hparams['weight_decay'], s.dtype)
    return adaptive_sgd.Rates(lam, mu, norm, clipped, update=[tf.cast(lam, v.dtype) * v for v in d])

  return adaptive_sgd.build_clipping_optimizer(
    rates_fn, learning_rate=learning_rate, weight_decay=weight_decay, max_norm=max_norm
  )
