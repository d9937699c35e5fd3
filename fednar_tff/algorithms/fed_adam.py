# SPDX-License-Identifier: Apache-2.0
"""FedAdam: federated averaging with Adam at the server.

Adaptive Federated Optimization
    Sashank Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konecny,
    Sanjiv Kumar, H. Brendan McMahan. ICLR 2021.
    https://arxiv.org/abs/2003.00295, Algorithm 2.
"""

import collections
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import arguments, fed_avg, local_training, server_step

_HPARAMS = (tff.learning.optimizers.LEARNING_RATE_KEY, 'beta_1', 'beta_2', 'epsilon')


class _ReferenceAdam(tff.learning.optimizers.Optimizer):
  """The Adam of the released code of FedNAR, see `build_reference_adam`."""

  def __init__(self, hparams: Mapping[str, float], epsilon_decay: float):
    self._hparams = hparams
    self._epsilon_decay = epsilon_decay

  def initialize(self, specs: Any) -> Any:
    def zeros():
      return tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)

    hparams = {k: tf.constant(v, tf.float32) for k, v in self._hparams.items()}
    return collections.OrderedDict(**hparams, momentum=zeros(), second_moment=zeros())

  def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
    epsilon = state['epsilon'] * self._epsilon_decay

    def step(x, m, v, g):
      lr, beta_1, beta_2, eps = (
        tf.cast(h, x.dtype)
        for h in (state['learning_rate'], state['beta_1'], state['beta_2'], epsilon)
      )
      m = beta_1 * m + (1.0 - beta_1) * g
      v = beta_2 * v + (1.0 - beta_2) * tf.square(m)
      return x - lr * (m / (1.0 - beta_1)) / tf.sqrt(v / (1.0 - beta_2) + eps), m, v

    leaves = [
      step(*xmvg)
      for xmvg in zip(
        *map(tf.nest.flatten, (weights, state['momentum'], state['second_moment'], gradients))
      )
    ]
    weights, momentum, second_moment = (
      tf.nest.pack_sequence_as(weights, list(part)) for part in zip(*leaves)
    )
    hparams = self.get_hparams(state)
    hparams['epsilon'] = epsilon
    new_state = collections.OrderedDict(**hparams, momentum=momentum, second_moment=second_moment)
    return new_state, weights

  def get_hparams(self, state: Any) -> Any:
    return collections.OrderedDict((k, state[k]) for k in _HPARAMS)

  def set_hparams(self, state: Any, hparams: Mapping[str, Any]) -> Any:
    return collections.OrderedDict((k, hparams.get(k, v)) for k, v in state.items())


def build_reference_adam(
  learning_rate: float = 0.1,
  beta_1: float = 0.9,
  beta_2: float = 0.99,
  epsilon: float = 0.01,
  epsilon_decay: float = server_step.DEFAULT_EPSILON_DECAY,
) -> tff.learning.optimizers.Optimizer:
  """Returns the server optimizer that FedNAR's released code calls FedAdam.

  With weights `x`, mean update `D`, and the moments `m` and `v` (0 at first), a step is

  ```
  eps <- epsilon_decay eps
  m <- beta_1 m + (1 - beta_1) D
  v <- beta_2 v + (1 - beta_2) m^2
  x <- x - learning_rate (m / (1 - beta_1)) / sqrt(v / (1 - beta_2) + eps)
  ```

  It differs from Adam in four places: the second moment is that of `m`, not of `D`; constants take
  the place of the bias correction; `eps` is inside the root; and it decays, in the first round
  already.

  Args:
    learning_rate: A nonnegative float, settable as a hparam.
    beta_1: A float in [0, 1), settable as a hparam.
    beta_2: A float in [0, 1), settable as a hparam.
    epsilon: A nonnegative float; the hparam of this name is its value after the last round.
    epsilon_decay: A nonnegative float: in the released code, the square of the factor by which the
      clients' learning rate decays in a round.

  Raises:
    ValueError: If an argument is out of range.
  """
  hparams = dict(zip(_HPARAMS, (learning_rate, beta_1, beta_2, epsilon)))
  for name, value in (*hparams.items(), ('epsilon_decay', epsilon_decay)):
    if not 0.0 <= value < (1.0 if name.startswith('beta') else math.inf):
      allowed = 'in [0, 1)' if name.startswith('beta') else 'a nonnegative number'
      raise ValueError(f'`{name}` must be {allowed}, found {value!r}.')
  return _ReferenceAdam(hparams, epsilon_decay)


@arguments.with_arguments_of(fed_avg.build_fed_avg)
def build_fed_adam(
  model_fn: local_training.ModelFn,
  *,
  server_optimizer_fn: tff.learning.optimizers.Optimizer | None = None,
  server_learning_rate: float = 0.1,
  beta_1: float = 0.9,
  beta_2: float = 0.99,
  epsilon: float = 0.01,
  variant: str = 'paper',
  epsilon_decay: float | None = None,
  **fed_avg_arguments: 'arguments.Unpack[arguments.MeanArguments]',
) -> tff.learning.templates.LearningProcess:
  """Returns FedAdam: FedAvg whose server descends with Adam.

  With server weights `x`, mean update `D`, the moments `m` and `v` (0 at first), the round `t = 1,
  2, ...` and `eta` (`server_learning_rate`), the server's step is

  ```
  m <- beta_1 m + (1 - beta_1) D
  v <- beta_2 v + (1 - beta_2) D^2
  x <- x - eta sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)
  ```

  Args:
    model_fn: As in `build_fed_avg`.
    server_optimizer_fn: Takes the step in place of the above, and then the arguments down to
      `epsilon_decay` are not used.
    server_learning_rate: A nonnegative float. The paper does not state it; 0.1 is that of its
      released code.
    beta_1: A float in [0, 1).
    beta_2: A float in [0, 1).
    epsilon: A nonnegative float. As for the learning rate, the default is the released code's.
    variant: `'paper'` for the above, which is `tff.learning.optimizers.build_adam`; `'reference'`
      for `build_reference_adam`.
    epsilon_decay: That of `build_reference_adam`, only for the variant `'reference'`: the square of
      the learning rate's decay. None means 0.998^2, which fits `exponential_decay`'s default.
    **fed_avg_arguments: The other arguments of `build_fed_avg`.

  Raises:
    ValueError: If an argument is out of range.
  """
  epsilon_decay = server_step.check_variant(variant, epsilon_decay)
  if server_optimizer_fn is None:
    hparams = (server_learning_rate, beta_1, beta_2, epsilon)
    if variant == 'paper':
      server_optimizer_fn = tff.learning.optimizers.build_adam(*hparams)
    else:
      server_optimizer_fn = build_reference_adam(*hparams, epsilon_decay)
  return fed_avg.build_fed_avg(
    model_fn, server_optimizer_fn=server_optimizer_fn, **fed_avg_arguments
  )
