# SPDX-License-Identifier: Apache-2.0
"""The cells of the paper's tables and figures by name, and the settings of each in three variants.

`paper` follows the paper's text, `reference` its released code (the numbers D1 to D17 and F1 to F9
are those of docs/paper.md, which lists where the two differ), and `cpu` is reduced to minutes on
two cores. The runs of the study (docs/study.md), reduced as well, have settings here and names in
`definition/study.py`. D1 and D16 are the same in both, D9 is how SCAFFOLD is built, and D17 is the
task's default.
"""

import difflib
import fnmatch
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.definition import catalogue, identity, paper
from experiments.definition.settings import SETTINGS, UsageError

OPTIMIZERS = ('clip', 'nar')

_SAVED = {'rounds_per_evaluation': 10, 'rounds_per_checkpoint': 50}
_STUDY_ROUNDS = {'cifar10': 150, 'shakespeare': 80}
# Chosen by the study's pilots, as its learning rates and bounds are (docs/study.md).
STUDY_SERVER_RATES = {
  ('study', 'cifar10'): {'fed_adam': 0.1, 'fed_avgm': 0.3},
  ('study', 'shakespeare'): {'fed_adam': 0.03, 'fed_avgm': 0.3},
  ('study_resnet18', 'cifar10'): {'fed_adam': 0.03, 'fed_avgm': 0.3},
}


def _annealed(task):
  rounds, full = _STUDY_ROUNDS[task], paper.SIZES[task]
  decay = full['learning_rate_decay'] ** (full['total_rounds'] / rounds)
  return {'total_rounds': rounds, 'learning_rate_decay': decay}


# What each variant changes of the paper's sizes.
_CHANGES = {
  'paper': {
    'cifar10': {'augmentation': 'per_image', 'pooling': 'global'},  # D15, D7
    'shakespeare': {'local_epochs': 5},  # D12
  },
  'reference': {
    'cifar10': {
      'augmentation': 'per_batch', 'pooling': 'top_left',  # D15, D7
      'first_round_decays': True, 'norm_epsilon': 1e-6, 'total_rounds': 1001,  # D4, D10, D3
    },
    'shakespeare': {
      'local_steps': 100, 'first_round_decays': True, 'norm_epsilon': 1e-6,  # D12, D4, D10
      'total_rounds': 1001,  # D3
      'sampling_seed': 0, 'partition_seed': 0, 'text': 'leaf',  # D14, F5, F4
      'identical_layers': True,  # F1
    },
  },
  # Small models have small norms, so the bound is scaled with them: at 10 nothing would ever be
  # clipped.
  'cpu': {
    'cifar10': {
      'model': 'cnn', 'clients_per_round': 5, 'batch_size': 20, 'learning_rate': 0.05,
      'max_norm': 1.0, 'total_rounds': 50,
      'augmentation': 'per_image', 'rounds_per_checkpoint': 25,
    },
    'shakespeare': {
      'clients_per_round': 5, 'batch_size': 50, 'local_steps': 10, 'max_norm': 1.0,
      'total_rounds': 60,
      'rounds_per_checkpoint': 10,
    },
  },
  # The rates fall over the rounds as far as they do over the paper's 1,000 and 300.
  'study': {
    'cifar10': {
      'model': 'small_cnn', 'clients_per_round': 10, 'batch_size': 20, 'learning_rate': 0.1,
      'max_norm': 6.0, 'augmentation': 'per_image', 'rounds_per_evaluation': 5,
      **_annealed('cifar10'),
    },
    'shakespeare': {
      'model': 'small_transformer', 'clients_per_round': 5, 'batch_size': 5, 'local_steps': 20,
      'learning_rate': 1.0, 'max_norm': 1.5,
      'prediction': 'every', 'initialization': 'uniform', 'dropout': 0.0,
      'rounds_per_evaluation': 2, 'evaluation_examples': 4000,
      **_annealed('shakespeare'),
    },
  },
}  # fmt: skip
_CHANGES['study_resnet18'] = {
  'cifar10': {
    **_CHANGES['study']['cifar10'],
    'model': 'small_resnet18', 'learning_rate': 0.1, 'max_norm': 6.0,
  },
}  # fmt: skip
# What an algorithm adds in all variants, and in the released code.
_ALGORITHMS = {
  'fed_prox': {'proximal_strength': 0.001},
  'fed_avgm': {'server_momentum': 0.9},
}  # D11
_RELEASED = {
  # D5, D6
  'fed_adam': {'server_learning_rate': 0.1, 'server_epsilon': 0.01, 'server_variant': 'reference'},
  # D8, F8
  'fed_exp': {
    'extrapolation_epsilon': 0.0, 'average_last_two': True, 'server_variant': 'reference',
  },
}  # fmt: skip
_RELEASED_ON_TASK = {
  ('cifar10', 'fed_adam'): {'total_rounds': 301},  # D3
  ('shakespeare', 'fed_prox'): {'local_steps': 20, 'batch_size': 500},  # D12
  # D13
  **{('shakespeare', a): {'learning_rate': 0.01} for a in ('fed_exp', 'fed_adam', 'fed_avgm')},
}  # fmt: skip

VARIANTS = tuple(variant for variant in _CHANGES if not variant.startswith('study'))


def _cifar10_table(optimizers: Sequence[str] = OPTIMIZERS) -> Iterator[dict]:
  for algorithm, by_alpha in paper.CIFAR10.items():
    for optimizer in optimizers:
      for alpha in by_alpha:
        yield cifar10_cell(algorithm, optimizer, alpha, paper.CIFAR10_WEIGHT_DECAYS[algorithm])


def _shakespeare_table() -> Iterator[dict]:
  for algorithm, by_decay in paper.SHAKESPEARE.items():
    for optimizer in OPTIMIZERS:
      for weight_decay in by_decay:
        yield shakespeare_cell(algorithm, optimizer, weight_decay)


def _weight_decay_figure() -> Iterator[dict]:
  for algorithm in paper.CIFAR10:
    for alpha, local_steps in paper.SWEEP_SETTINGS:
      for weight_decay in paper.SWEEP_WEIGHT_DECAYS:
        yield cifar10_cell(algorithm, 'clip', alpha, weight_decay, local_steps)


def _robustness_figure() -> Iterator[dict]:
  for algorithm in paper.ROBUSTNESS_ALGORITHMS:
    for optimizer in OPTIMIZERS:
      for weight_decay in paper.ROBUSTNESS_WEIGHT_DECAYS:
        yield cifar10_cell(algorithm, optimizer, paper.SWEEP_SETTINGS[0][0], weight_decay)


def cifar10_cell(
  algorithm: str,
  optimizer: str,
  alpha: float,
  weight_decay: float,
  local_steps: int = paper.LOCAL_STEPS,
) -> dict[str, Any]:
  """Returns what tells a cell on CIFAR-10 apart from the others."""
  return {
    'task': 'cifar10',
    'algorithm': algorithm,
    'client_optimizer': optimizer,
    'alpha': alpha,
    'local_steps': local_steps,
    'weight_decay': weight_decay,
  }


def shakespeare_cell(algorithm: str, optimizer: str, weight_decay: float) -> dict[str, Any]:
  """Returns what tells a cell on Shakespeare apart from the others."""
  return {
    'task': 'shakespeare',
    'algorithm': algorithm,
    'client_optimizer': optimizer,
    'weight_decay': weight_decay,
  }


TABLES = {'cifar10': _cifar10_table, 'shakespeare': _shakespeare_table}
# The paper draws curves, and counts what NAR clips, of the runs of its table on CIFAR-10.
FIGURES = {
  'weight_decay': _weight_decay_figure,
  'robustness': _robustness_figure,
  'clipping': lambda: _cifar10_table(('nar',)),
  'curves': _cifar10_table,
}


def cells(
  table: str | None = None, figure: str | None = None, variant: str = 'paper'
) -> dict[str, dict[str, Any]]:
  """Returns the settings of the cells of a table or figure, or of all, by preset name.

  Raises:
    UsageError: If a name is not known.
  """
  _look_up('variant', variant, VARIANTS)
  wanted = []
  if table is not None:
    wanted.append(_look_up('table', table, TABLES))
  if figure is not None:
    wanted.append(_look_up('figure', figure, FIGURES))
  wanted = wanted or [*TABLES.values(), *FIGURES.values()]
  found = {}
  for cell in (cell for make in wanted for cell in make()):
    found.setdefault(cell_name(variant, cell), cell_settings(variant, cell))
  return found


def preset(name: str) -> dict[str, Any]:
  """Returns the settings of a cell by its name, `paper/shakespeare_fed_avg_nar_wd0.001`.

  Raises:
    UsageError: If the name is not known.
  """
  found = _all_cells()
  if name not in found:
    near = difflib.get_close_matches(name, found, 1)
    hint = f'did you mean {near[0]}?' if near else f'a name begins with {_listed(VARIANTS, "/")}.'
    raise UsageError(f'--preset={name} is unknown; {hint}')
  return dict(found[name])


def matching(pattern: str) -> dict[str, dict[str, Any]]:
  """Returns the cells whose names match a pattern such as `cpu/cifar10_fed_avg_*`."""
  return {n: dict(s) for n, s in _all_cells().items() if fnmatch.fnmatchcase(n, pattern)}


def published(settings: Mapping[str, Any]) -> tuple[float, float] | None:
  """Returns the paper's (baseline, NAR) for a run of the paper's kind, or None.

  Of the same kind are runs with the split, the local work, the schedules, the weight decay and the
  algorithm of a cell of its tables, in its text or in its released code. Model, rounds and clients
  may be smaller, and the learning rate and the bound scaled with them.
  """
  return _published_by_kind().get(_kind(identity.identity(settings)))


@functools.cache
def _published_by_kind():
  found = {}
  for cell in _published_cells('cifar10'):
    found[_kind(cell)] = paper.CIFAR10[cell['algorithm']][cell['alpha']]
  for cell in _published_cells('shakespeare'):
    found[_kind(cell)] = paper.SHAKESPEARE[cell['algorithm']][cell['weight_decay']]
  return found


@functools.cache
def _published_cells(table):
  """Returns the identities of a table's cells in the paper's text and in its released code."""
  return tuple(
    identity.identity(cell)
    for variant in ('paper', 'reference')
    for cell in cells(table, variant=variant).values()
  )


def _kind(run):
  names = (
    'task',
    'partition',
    'alpha',
    'local_steps',
    'local_epochs',
    'weight_decay',
    *(
      f'{rate}_{part}'
      for rate in ('weight_decay', 'learning_rate')
      for part in ('schedule', 'decay', 'decay_rounds', 'final_fraction', 'warm_up')
    ),
  )
  return tuple(
    run.get(s.name) for s in SETTINGS if s.name in names or s.group in ('algorithm', 'server')
  )


def is_reduced(settings: Mapping[str, Any]) -> bool:
  """Returns whether a run on a task of the paper is smaller than the published one."""
  run = identity.identity(settings)
  if run['task'] not in TABLES:
    return False
  full = _published_cells(run['task'])
  full = [cell for cell in full if cell['algorithm'] == run['algorithm']] or full
  nearest = max(full, key=lambda cell: sum(run.get(name) == value for name, value in cell.items()))
  sizes = ('num_clients', 'clients_per_round', 'batch_size', 'total_rounds')
  return run.get('model') != nearest['model'] or any(run[name] < nearest[name] for name in sizes)


def title(settings: Mapping[str, Any]) -> str:
  """Returns the title of a run's plots; that of a reduced one says so."""
  s = identity.resolve(settings)
  text = f'{s["task"]} {s["algorithm"]} {s["client_optimizer"]} wd {s["weight_decay"]:g}'
  if s.get('alpha') is not None:
    text += f' alpha {s["alpha"]:g}'
  if is_reduced(s):
    size = f'{s["clients_per_round"]} clients a round, {s["total_rounds"]} rounds'
    text += f' (reduced: {s["model"]}, {size})'
  return text


@functools.cache
def _all_cells():
  return {n: s for variant in VARIANTS for n, s in cells(variant=variant).items()}


def cell_settings(variant: str, cell: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of a cell in a variant."""
  task, algorithm = cell['task'], cell['algorithm']
  settings = {**paper.SIZES[task], **_SAVED, **_CHANGES[variant][task], **cell}
  settings.update(_ALGORITHMS.get(algorithm, {}))
  server_rates = STUDY_SERVER_RATES.get((variant, task), {})
  if algorithm in server_rates:
    settings['server_learning_rate'] = server_rates[algorithm]
  if variant == 'reference':
    if 'client_weighting' in catalogue.ALGORITHMS[algorithm].settings:
      settings['client_weighting'] = 'num_examples'  # D2, F7
    settings.update(_RELEASED.get(algorithm, {}))
    settings.update(_RELEASED_ON_TASK.get((task, algorithm), {}))
  return settings


def cell_name(variant: str, cell: Mapping[str, Any]) -> str:
  """Returns the name of a cell's preset."""
  parts = [cell['task'], cell['algorithm'], cell['client_optimizer']]
  if 'alpha' in cell:
    parts += [f'alpha{cell["alpha"]:g}', f'steps{cell["local_steps"]}']
  return f'{variant}/' + '_'.join([*parts, f'wd{cell["weight_decay"]:g}'])


def _look_up(kind, name, known):
  if name not in known:
    raise UsageError(f'--{kind}={name} is unknown: it takes {_listed(known)}.')
  return known[name] if isinstance(known, Mapping) else name


def _listed(names, suffix=''):
  return ', '.join(f'{name}{suffix}' for name in names)
