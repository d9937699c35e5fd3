# SPDX-License-Identifier: Apache-2.0
"""The runs of the study, docs/study.md, in the order in which they are run.

A stage is a list of runs, seed by seed, so that the first seed alone fills its tables. A run that
two stages ask for is the same run.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from experiments.definition import paper, presets

VARIANT = 'study'
SEEDS = (0, 1, 2)
# The algorithms whose weight decay is varied with all seeds; the others with the first one.
DECAY_ALGORITHMS = ('fed_avg', 'scaffold', 'fed_avgm')
# (alpha, local steps) of the weight decays, and of FedAvg alone.
MAIN_SETTING, *OTHER_SETTINGS = paper.SWEEP_SETTINGS
# What is run in both precisions: algorithm, alpha, local steps, weight decay.
PRECISION_CELL = ('fed_avg', *MAIN_SETTING, paper.CIFAR10_WEIGHT_DECAYS['fed_avg'])
# The pilot decides on rates and bound, before the first run that counts: without weight decay, on
# held-out training examples, with a seed that no other run has.
PILOT_SEED = 100
PILOT_SHARE = 0.1
PILOT_BOUND_ROUNDS = 20
# A bound is large enough if it clips at most this share of the steps of these rounds.
PILOT_CLIPPED_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Pilot:
  """What is tried on a task.

  Attributes:
    task: The task.
    prefix: What its stages, and the names of its runs, begin with.
    cell: A function from algorithm and client optimizer to the cell without weight decay.
    rates: The clients' learning rates, by FedAvg.
    server_rates: The server's, by algorithm.
    bounds: The bounds A.
    evaluation: How often a run of it is evaluated, and on what.
    extra: What else is run: the settings that differ from those of FedAvg's cell, by name.
  """

  task: str
  prefix: str
  cell: Callable[[str, str], dict[str, Any]]
  rates: tuple[float, ...]
  server_rates: Mapping[str, tuple[float, ...]]
  bounds: tuple[float, ...]
  evaluation: Mapping[str, int]
  extra: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

  def stages(self) -> dict[str, Callable]:
    """Returns its stages by name, in the order in which they are run."""
    return {
      f'{self.prefix}_rates': self._rates,
      f'{self.prefix}_server_rates': self._server_rates,
      f'{self.prefix}_bounds': self._bounds,
    }

  def _rates(self):
    """The clients' rate, by FedAvg."""
    for rate in self.rates:
      yield self._run(f'fed_avg_lr{rate:g}', 'fed_avg', learning_rate=rate)
    for name, settings in self.extra.items():
      yield self._run(name, 'fed_avg', **settings)

  def _server_rates(self):
    """The server's rates of the algorithms that are not plain averaging, at the clients' rate."""
    for algorithm, rates in self.server_rates.items():
      for rate in rates:
        yield self._run(f'{algorithm}_server{rate:g}', algorithm, server_learning_rate=rate)

  def _bounds(self):
    """How much a bound clips in the first rounds."""
    for bound in self.bounds:
      yield self._run(
        f'bound{bound:g}', 'fed_avg', 'clip', max_norm=bound, total_rounds=PILOT_BOUND_ROUNDS,
        rounds_per_evaluation=PILOT_BOUND_ROUNDS,
      )  # fmt: skip

  def _run(self, name, algorithm, optimizer='sgd', **settings):
    found = presets.cell_settings(VARIANT, self.cell(algorithm, optimizer))
    found = {**found, **self.evaluation, **settings}
    if optimizer == 'sgd':
      del found['max_norm']
    return f'{VARIANT}/{self.prefix}_{name}', {
      **found,
      'validation_share': PILOT_SHARE,
      'seed': PILOT_SEED,
    }


PILOTS = {
  pilot.task: pilot
  for pilot in (
    Pilot(
      'cifar10',
      'pilot',
      functools.partial(presets.cifar10_cell, alpha=MAIN_SETTING[0], weight_decay=0.0),
      rates=(0.03, 0.1, 0.3),
      server_rates={'fed_adam': (0.01, 0.03, 0.1), 'fed_avgm': (0.1, 0.3, 1.0)},
      bounds=(1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0),
      evaluation={'rounds_per_evaluation': 25},
      # The chosen rate once more, on balanced data.
      extra={'fed_avg_alpha10': {'alpha': 10.0}},
    ),
    Pilot(
      'shakespeare',
      'pilot_shakespeare',
      functools.partial(presets.shakespeare_cell, weight_decay=0.0),
      rates=(0.3, 1.0, 3.0),
      server_rates={'fed_adam': (0.01, 0.03, 0.1), 'fed_avgm': (0.1, 0.3, 1.0)},
      bounds=(0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0),
      evaluation={'rounds_per_evaluation': 20},
    ),
  )
}


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


def _table2():
  for seed in SEEDS:
    for algorithm, by_decay in paper.SHAKESPEARE.items():
      cells = (
        presets.shakespeare_cell(algorithm, optimizer, decay)
        for decay in by_decay
        for optimizer in presets.OPTIMIZERS
      )
      yield from _with_seed(cells, seed)


def _precision():
  """FedAvg of Table 1 at the first alpha once more, in bfloat16."""
  algorithm, alpha, steps, decay = PRECISION_CELL
  for seed in SEEDS:
    cells = _cifar10_cells(algorithm, [(alpha, steps)], [decay])
    for name, settings in _with_seed(cells, seed):
      yield f'{name}_bfloat16', {**settings, 'precision': 'bfloat16'}


def _with_seed(cells, seed):
  for cell in cells:
    yield (
      f'{presets.cell_name(VARIANT, cell)}_seed{seed}',
      {
        **presets.cell_settings(VARIANT, cell),
        'seed': seed,
      },
    )


PILOT_STAGES = {name: make for pilot in PILOTS.values() for name, make in pilot.stages().items()}
STAGES = {
  'table1': _table1,
  'weight_decay': _weight_decays,
  'other_settings': _other_settings,
  'table2': _table2,
}
# Beside the paper's claims: what the other precision changes.
EXTRA_STAGES = {'precision': _precision}
ALL_STAGES = {**PILOT_STAGES, **STAGES, **EXTRA_STAGES}


def runs(stages: Iterable[str]) -> dict[str, dict[str, Any]]:
  """Returns the settings of the runs of some stages by name, in order."""
  return {name: settings for stage in stages for name, settings in ALL_STAGES[stage]()}


def tasks(stages: Iterable[str]) -> list[str]:
  """Returns the tasks of those of the stages that count, whose pilots have to be finished."""
  found = runs(stage for stage in stages if stage not in PILOT_STAGES)
  return list(dict.fromkeys(settings['task'] for settings in found.values()))


def chosen_settings(task: str) -> dict[str, float]:
  """Returns the settings that the pilot on a task decides on, as the runs have them."""
  cell = presets.cell_settings(VARIANT, PILOTS[task].cell('fed_avg', 'nar'))
  rates = {name: cell[name] for name in ('learning_rate', 'max_norm')}
  return {**rates, **presets.STUDY_SERVER_RATES[task]}
