# SPDX-License-Identifier: Apache-2.0
"""Processes on the synthetic task, and runs of a few rounds with them."""

from fednar_tff import algorithms, optimizers, simulation

NUM_CLIENTS = 6
_OWN_ARGUMENTS = {
  'fed_avg': {},
  'fed_adam': {},
  'scaffold': {'num_clients': NUM_CLIENTS},
  'fed_dyn': {'num_clients': NUM_CLIENTS, 'regularization_strength': 0.1},
}
ALGORITHMS = tuple(_OWN_ARGUMENTS)


def build(task, algorithm, loop_implementation=algorithms.PACKED):
  return algorithms.get_builder(algorithm)(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    learning_rate_fn=algorithms.exponential_decay(0.1, 0.9),
    loop_implementation=loop_implementation,
    **_OWN_ARGUMENTS[algorithm],
  )


def start(task, process, output_dir=None, **changes):
  arguments = {
    'total_rounds': 7,
    'clients_per_round': 3,
    'batch_size': 10,
    'local_steps': 2,
    'rounds_per_evaluation': 3,
    'rounds_per_checkpoint': 2,
    'seed': 4,
    **changes,
  }
  return simulation.run(task, process, output_dir=output_dir, **arguments)
