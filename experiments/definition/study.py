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
# On CIFAR-10 once more, with a network that has norms, as the paper's has.
RESNET = 'study_resnet18'
SEEDS = (0, 1, 2)
# The algorithms that decide on the claims about weight decay.
DECAY_ALGORITHMS = ('fed_avg', 'scaffold', 'fed_avgm')
# (alpha, local steps) of the weight decays, and of FedAvg alone.
MAIN_SETTING, *OTHER_SETTINGS = paper.SWEEP_SETTINGS
# What is run in both precisions: algorithm, alpha, local steps, weight decay.
PRECISION_CELL = ('fed_avg', *MAIN_SETTING, paper.CIFAR10_WEIGHT_DECAYS['fed_avg'])
# Bounds below the one that the pilot chose, at which clipping is common from the start.
SMALL_BOUNDS = (1.0, 2.0, 3.0)
# By bound and weight decay: what NAR's weight decay comes to on average, to three digits. First as
# the mean norms of its finished runs give it (tests/docs/test_study_page.py), which is too small;
# then as it was measured where all steps are clipped, see docs/study.md.
MATCHED_DECAYS = {
  (1.0, 0.01): (0.00169, 0.00194),
  (1.0, 0.05): (0.0094, 0.0109),
  (1.0, 0.1): (0.0207, 0.0241),
  (6.0, 0.05): (0.0492,),
}
# The pilot decides on rates and bound, before the first run that counts: without weight decay, on
# held-out training examples, with a seed that no other run has.
PILOT_SEED = 100
PILOT_SHARE = 0.1
PILOT_BOUND_ROUNDS = 20
# A bound is large enough if it clips at most this share of the steps of these rounds.
PILOT_CLIPPED_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Pilot:
  """What is tried on a task with a model.

  Attributes:
    variant: What the names of the runs that it chooses for begin with, see `presets`.
    task: The task.
    prefix: What its stages, and the names of its runs, begin with.
    cell: A function from algorithm and client optimizer to the cell without weight decay.
    rates: The clients' learning rates, by FedAvg.
    server_rates: The server's, by algorithm.
    bounds: The bounds A.
    evaluation: How often a run of it is evaluated, and on what.
    extra: What else is run: the settings that differ from those of FedAvg's cell, by name.
  """

  variant: str
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
    found = presets.cell_settings(self.variant, self.cell(algorithm, optimizer))
    found = {**found, **self.evaluation, **settings}
    if optimizer == 'sgd':
      del found['max_norm']
    return f'{self.variant}/{self.prefix}_{name}', {
      **found,
      'validation_share': PILOT_SHARE,
      'seed': PILOT_SEED,
    }


_cifar10_pilot_cell = functools.partial(
  presets.cifar10_cell, alpha=MAIN_SETTING[0], weight_decay=0.0
)
_SERVER_RATES = {'fed_adam': (0.01, 0.03, 0.1), 'fed_avgm': (0.1, 0.3, 1.0)}
PILOTS = {
  'cifar10': Pilot(
    VARIANT,
    'cifar10',
    'pilot',
    _cifar10_pilot_cell,
    rates=(0.03, 0.1, 0.3),
    server_rates=_SERVER_RATES,
    bounds=(1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0),
    evaluation={'rounds_per_evaluation': 25},
    # The chosen rate once more, on balanced data.
    extra={'fed_avg_alpha10': {'alpha': 10.0}},
  ),
  'shakespeare': Pilot(
    VARIANT,
    'shakespeare',
    'pilot_shakespeare',
    functools.partial(presets.shakespeare_cell, weight_decay=0.0),
    rates=(0.3, 1.0, 3.0),
    server_rates=_SERVER_RATES,
    bounds=(0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0),
    evaluation={'rounds_per_evaluation': 20},
  ),
  'resnet18': Pilot(
    RESNET,
    'cifar10',
    'pilot_resnet18',
    _cifar10_pilot_cell,
    rates=(0.03, 0.1, 0.3),
    server_rates=_SERVER_RATES,
    bounds=(0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0),
    evaluation={'rounds_per_evaluation': 25},
  ),
}


def _cifar10_cells(algorithm, settings, weight_decays):
  for (alpha, steps), decay, optimizer in itertools.product(
    settings, weight_decays, presets.OPTIMIZERS
  ):
    yield presets.cifar10_cell(algorithm, optimizer, alpha, decay, steps)


def _table1(variant=VARIANT):
  for seed in SEEDS:
    for algorithm, by_alpha in paper.CIFAR10.items():
      settings = [(alpha, paper.LOCAL_STEPS) for alpha in by_alpha]
      decays = [paper.CIFAR10_WEIGHT_DECAYS[algorithm]]
      yield from _with_seed(_cifar10_cells(algorithm, settings, decays), seed, variant)


def _all_weight_decays():
  others = (algorithm for algorithm in paper.CIFAR10 if algorithm not in DECAY_ALGORITHMS)
  return _weight_decays((*DECAY_ALGORITHMS, *others))


def _weight_decays(algorithms, variant=VARIANT):
  for seed in SEEDS:
    for algorithm in algorithms:
      cells = _cifar10_cells(algorithm, [MAIN_SETTING], paper.SWEEP_WEIGHT_DECAYS)
      yield from _with_seed(cells, seed, variant)


def _other_settings(variant=VARIANT):
  for seed in SEEDS:
    cells = _cifar10_cells('fed_avg', OTHER_SETTINGS, paper.SWEEP_WEIGHT_DECAYS)
    yield from _with_seed(cells, seed, variant)


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


def _bounds():
  """FedAvg by weight decay, with the chosen bound and smaller ones."""
  for seed in SEEDS:
    cells = _cifar10_cells('fed_avg', [MAIN_SETTING], paper.SWEEP_WEIGHT_DECAYS)
    found = list(_with_seed(cells, seed))
    yield from found
    for bound, (name, settings) in itertools.product(SMALL_BOUNDS, found):
      yield f'{name}_bound{bound:g}', {**settings, 'max_norm': bound}


def _matched_decays():
  """FedAvg's baseline with the weight decay that NAR's comes to."""
  for seed in SEEDS:
    for bound, matched in ((b, d) for (b, _), found in MATCHED_DECAYS.items() for d in found):
      cell = presets.cifar10_cell('fed_avg', 'clip', MAIN_SETTING[0], matched, MAIN_SETTING[1])
      ((name, settings),) = _with_seed([cell], seed)
      yield f'{name}_bound{bound:g}', {**settings, 'max_norm': bound}


def _with_seed(cells, seed, variant=VARIANT):
  for cell in cells:
    name, settings = presets.cell_name(variant, cell), presets.cell_settings(variant, cell)
    yield f'{name}_seed{seed}', {**settings, 'seed': seed}


PILOT_STAGES = {name: make for pilot in PILOTS.values() for name, make in pilot.stages().items()}
STAGES = {
  'table1': _table1,
  'weight_decay': _all_weight_decays,
  'other_settings': _other_settings,
  'table2': _table2,
}
# What decides on the claims about CIFAR-10 with the network that has norms.
RESNET_STAGES = {
  'resnet18_weight_decay': functools.partial(_weight_decays, DECAY_ALGORITHMS, RESNET),
  'resnet18_table1': functools.partial(_table1, RESNET),
  'resnet18_other_settings': functools.partial(_other_settings, RESNET),
}
# Beside the paper's claims: what the other precision and smaller bounds change, and what a smaller
# weight decay does without NAR.
EXTRA_STAGES = {'precision': _precision, 'bounds': _bounds, 'matched_decays': _matched_decays}
COUNTING_STAGES = {**STAGES, **RESNET_STAGES, **EXTRA_STAGES}
ALL_STAGES = {**PILOT_STAGES, **COUNTING_STAGES}


def runs(stages: Iterable[str]) -> dict[str, dict[str, Any]]:
  """Returns the settings of the runs of some stages by name, in order."""
  return {name: settings for stage in stages for name, settings in ALL_STAGES[stage]()}


def pilots(stages: Iterable[str]) -> list[str]:
  """Returns the pilots that have to be finished before those of the stages that count."""
  found = runs(stage for stage in stages if stage not in PILOT_STAGES)
  needed = {(name.partition('/')[0], settings['task']) for name, settings in found.items()}
  return [name for name, pilot in PILOTS.items() if (pilot.variant, pilot.task) in needed]


def chosen_settings(pilot_name: str) -> dict[str, float]:
  """Returns the settings that a pilot decides on, as the runs have them."""
  pilot = PILOTS[pilot_name]
  cell = presets.cell_settings(pilot.variant, pilot.cell('fed_avg', 'nar'))
  rates = {name: cell[name] for name in ('learning_rate', 'max_norm')}
  return {**rates, **presets.STUDY_SERVER_RATES[pilot.variant, pilot.task]}
