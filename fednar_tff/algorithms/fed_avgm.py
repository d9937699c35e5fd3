# SPDX-License-Identifier: Apache-2.0
"""FedAvgM: federated averaging with momentum at the server.

Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification
    Tzu-Ming Harry Hsu, Hang Qi, Matthew Brown. 2019.
    https://arxiv.org/abs/1909.06335, Section 4.
"""

import tensorflow_federated as tff

from fednar_tff.algorithms import arguments, fed_avg, local_training


@arguments.with_arguments_of(fed_avg.build_fed_avg)
def build_fed_avgm(
  model_fn: local_training.ModelFn,
  *,
  server_optimizer_fn: tff.learning.optimizers.Optimizer | None = None,
  server_learning_rate: float = 1.0,
  server_momentum: float = 0.9,
  **fed_avg_arguments: 'arguments.Unpack[arguments.MeanArguments]',
) -> tff.learning.templates.LearningProcess:
  """Returns FedAvgM: FedAvg whose server descends with momentum.

  With server weights `x`, mean update `D`, momentum `m` (0 at first), `eta`
  (`server_learning_rate`) and `beta` (`server_momentum`), the server's step is

  ```
  m <- beta m + D
  x <- x - eta m
  ```

  Args:
    model_fn: As in `build_fed_avg`.
    server_optimizer_fn: Takes the step in place of the above, and then its two numbers are not
      used.
    server_learning_rate: A nonnegative float.
    server_momentum: A float from 0 to below 1; at 0 this is `build_fed_avg` to the bit.
    **fed_avg_arguments: The other arguments of `build_fed_avg`.

  Raises:
    ValueError: If a number is out of range.
  """
  if server_optimizer_fn is None:
    if not 0.0 <= server_momentum < 1.0:
      raise ValueError(f'`server_momentum` must be in [0, 1), found {server_momentum!r}.')
    # TFF's SGD keeps no momentum at all when it is None.
    server_optimizer_fn = tff.learning.optimizers.build_sgdm(
      server_learning_rate, server_momentum or None
    )
  return fed_avg.build_fed_avg(
    model_fn, server_optimizer_fn=server_optimizer_fn, **fed_avg_arguments
  )
