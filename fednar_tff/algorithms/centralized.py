# SPDX-License-Identifier: Apache-2.0
"""Training without federation, as the line that federated curves are held against.

One client that holds everybody's data is plain training: of its update `D = x - y`, the server's
step `x - D` is `y`. So this is FedAvg, given that client: `Task.pooled` has it.
"""

import tensorflow_federated as tff

from fednar_tff.algorithms import arguments, fed_avg, local_training


@arguments.with_arguments_of(fed_avg.build_fed_avg)
def build_centralized(
  model_fn: local_training.ModelFn,
  **fed_avg_arguments: 'arguments.Unpack[arguments.FedAvgArguments]',
) -> tff.learning.templates.LearningProcess:
  """Returns training on the pooled data: each round takes one client, that of `Task.pooled()`.

  Model, optimizer, schedules and metrics are those of `build_fed_avg`, and so is that the
  optimizer's state starts anew in each round. For a fair comparison, let that client process as
  many examples in a round as the clients of a federated round do together
  (`Task.examples_per_round`).

  Args:
    model_fn: As in `build_fed_avg`.
    **fed_avg_arguments: The other arguments of `build_fed_avg`.
  """
  return fed_avg.build_fed_avg(model_fn, **fed_avg_arguments)
