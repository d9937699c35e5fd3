# SPDX-License-Identifier: Apache-2.0
"""The runs of the study, docs/study.md, in the order in which they are run.

A stage is a list of runs, seed by seed, so that the first seed alone fills its tables. A run that
two stages ask for is the same run.
"""

import itertools
from collections.abc import Iterable
from typing import Any

from experiments.definition import paper, presets

VARIANT = 'study'
SEEDS = (0, 1, 2)
# The algorithms whose weight decay is varied with all seeds; the others with the first one.
DECAY_ALGORITHMS = ('fed_avg', 'scaffold', 'fed_avgm')
# (alpha, local steps) of the weight decays, and of FedAvg alone.
MAIN_SETTING, *OTHER_SETTINGS = paper.SWEEP_SETTINGS
# The pilot decides on rates and bound, before the first run that counts: without weight decay, on
# held-out training examples, with a seed that no other run has.
PILOT_SEED = 100
PILOT_SHARE = 0.1
PILOT_RATES = (0.03, 0.1, 0.3)
PILOT_SERVER_RATES = {'fed_adam': (0.01, 0.03, 0.1), 'fed_avgm': (0.1, 0.3, 1.0)}
PILOT_BOUNDS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
PILOT_BOUND_ROUNDS = 20
# A bound is large enough if it clips at most this share of the steps of these rounds.
PILOT_CLIPPED_SHARE = 0.1


def _cifar10_cells(algorithm, settings, weight_decays):
  for (alpha, steps), decay, optimizer in itertools.product(
    settings, weight_decays, presets.OPTIMIZERS
  ):
    yield presets.cifar10_cell(algorithm, optimizer, alpha, decay, steps)


def _table1():
  for seed in SEEDS:
    for algorithm, by_alpha in paper.CIFAR10.items():
      settings = [(alpha, paper.LOCAL_STEPS) for alpha in by_alpha]
      decays = [paper.CIFAR10_WEIGHT_DECAYS[algorithm]]
      yield from _with_seed(_cifar10_cells(algorithm, settings, decays), seed)


def _weight_decays():
  for seed in SEEDS:
    for algorithm in (*DECAY_ALGORITHMS, *(a for a in paper.CIFAR10 if a not in DECAY_ALGORITHMS)):
      if seed == SEEDS[0] or algorithm in DECAY_ALGORITHMS:
        cells = _cifar10_cells(algorithm, [MAIN_SETTING], paper.SWEEP_WEIGHT_DECAYS)
        yield from _with_seed(cells, seed)


def _other_settings():
  for seed in SEEDS:
    cells = _cifar10_cells('fed_avg', OTHER_SETTINGS, paper.SWEEP_WEIGHT_DECAYS)
    yield from _with_seed(cells, seed)


def _with_seed(cells, seed):
  for cell in cells:
    yield (
      f'{presets.cell_name(VARIANT, cell)}_seed{seed}',
      {
        **presets.cell_settings(VARIANT, cell),
        'seed': seed,
      },
    )


def _pilot_run(name, cell, **settings):
  found = {**presets.cell_settings(VARIANT, cell), 'rounds_per_evaluation': 25, **settings}
  if cell['client_optimizer'] == 'sgd':
    del found['max_norm']
  return f'{VARIANT}/pilot_{name}', {
    **found,
    'validation_share': PILOT_SHARE,
    'seed': PILOT_SEED,
  }


def _pilot_rates():
  """The clients' rate, by FedAvg, and that rate once more on balanced data."""
  alpha, _ = MAIN_SETTING
  cell = presets.cifar10_cell('fed_avg', 'sgd', alpha, 0.0)
  for rate in PILOT_RATES:
    yield _pilot_run(f'fed_avg_lr{rate:g}', cell, learning_rate=rate)
  yield _pilot_run('fed_avg_alpha10', presets.cifar10_cell('fed_avg', 'sgd', 10.0, 0.0))


def _pilot_server_rates():
  """The server's rates of the algorithms that are not plain averaging, at the clients' rate."""
  alpha, _ = MAIN_SETTING
  for algorithm, rates in PILOT_SERVER_RATES.items():
    cell = presets.cifar10_cell(algorithm, 'sgd', alpha, 0.0)
    for rate in rates:
      yield _pilot_run(f'{algorithm}_server{rate:g}', cell, server_learning_rate=rate)


def _pilot_bounds():
  """How much a bound clips in the first rounds."""
  alpha, _ = MAIN_SETTING
  cell = presets.cifar10_cell('fed_avg', 'clip', alpha, 0.0)
  for bound in PILOT_BOUNDS:
    yield _pilot_run(
      f'bound{bound:g}', cell, max_norm=bound, total_rounds=PILOT_BOUND_ROUNDS,
      rounds_per_evaluation=PILOT_BOUND_ROUNDS,
    )  # fmt: skip


PILOT_STAGES = {
  'pilot_rates': _pilot_rates,
  'pilot_server_rates': _pilot_server_rates,
  'pilot_bounds': _pilot_bounds,
}
STAGES = {'table1': _table1, 'weight_decay': _weight_decays, 'other_settings': _other_settings}


def runs(stages: Iterable[str]) -> dict[str, dict[str, Any]]:
  """Returns the settings of the runs of some stages by name, in order."""
  every = {**PILOT_STAGES, **STAGES}
  return {name: settings for stage in stages for name, settings in every[stage]()}


def chosen_settings() -> dict[str, float]:
  """Returns the settings that the pilot decides on, as the runs have them."""
  alpha, _ = MAIN_SETTING
  cell = presets.cell_settings(VARIANT, presets.cifar10_cell('fed_avg', 'nar', alpha, 0.0))
  rates = {name: cell[name] for name in ('learning_rate', 'max_norm')}
  return {**rates, **presets.STUDY_SERVER_RATES}
