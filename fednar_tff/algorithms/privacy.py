# SPDX-License-Identifier: Apache-2.0
"""What NAR gives to differential privacy: a bound on the norm of a client's update."""

import math


def nar_update_bound(num_steps: int, learning_rate: float, max_norm: float) -> float:
  """Returns `K l A`, the largest norm that a client's update can have when it trains with NAR.

  No step of `optimizers.build_nar` is longer than `l A`, the learning rate times `max_norm`,
  whatever the data, the weight decay, or the term of FedProx or SCAFFOLD is; so `K` steps are never
  longer than `K l A`. A differentially private mechanism has to clip each update to a norm: at this
  one, it changes none, up to the rounding of floats. Where these depend on the round, pass the
  largest learning rate; where clients differ, the largest number of steps. The baseline
  `build_clipped_sgd` has no such bound, because its weight decay is not clipped.

  >>> nar_update_bound(num_steps=20, learning_rate=0.01, max_norm=10.0)
  2.0

  Args:
    num_steps: `K`, a nonnegative integer.
    learning_rate: `l`, a nonnegative float.
    max_norm: `A`, a positive float.

  Raises:
    ValueError: If a number is out of range.
  """
  for name, value in (
    ('num_steps', num_steps),
    ('learning_rate', learning_rate),
    ('max_norm', max_norm),
  ):
    if not 0 <= value < math.inf or (name == 'max_norm' and value == 0):
      allowed = 'positive' if name == 'max_norm' else 'nonnegative'
      raise ValueError(f'`{name}` must be a {allowed} finite number, found {value!r}.')
  return num_steps * learning_rate * max_norm
