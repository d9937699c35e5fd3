# SPDX-License-Identifier: Apache-2.0
"""Which runs belong into one cell: those that differ in nothing but their seeds.

The settings that are equal in all runs of an experiment are its title, those that vary are the axes
of its tables and the panels of its figures.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.definition import catalogue, presets
from experiments.definition import identity as identity_lib
from experiments.definition import settings as settings_lib
from experiments.reading.runs import Run

OPTIMIZERS = ('clip', 'nar', 'sgd')  # In the order of the columns of a table.
# How a setting is written; others are their name and value.
_PHRASES = {
  'task': '{}', 'model': '{}', 'num_clients': '{} clients', 'alpha': 'alpha {}',
  'learning_rate': 'lr {}',
  'weight_decay': 'WD {}', 'max_norm': 'A = {}', 'local_steps': '{} steps',
  'local_epochs': '{} epochs',
  'batch_size': 'batch {}', 'clients_per_round': '{} clients a round', 'total_rounds': '{} rounds',
}  # fmt: skip
_HEADERS = {
  'learning_rate': 'lr', 'weight_decay': 'WD', 'max_norm': 'A', 'local_steps': 'steps',
  'local_epochs': 'epochs',
  'batch_size': 'batch', 'num_clients': 'clients', 'clients_per_round': 'clients a round',
  'total_rounds': 'rounds',
}  # fmt: skip
# What every title says; of the other settings it says those that are not as usual.
_ALWAYS_SAID = frozenset(_PHRASES)
_NO_AXES = ('task', 'algorithm', 'client_optimizer')


class DuplicateRunError(settings_lib.UsageError):
  """Two runs have the same settings and seeds; the message names both directories."""


def text(value: Any) -> str:
  """Returns a setting's value as it is printed."""
  if value is None:
    return '-'
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  if isinstance(value, float) and float(f'{value:g}') == value:
    return f'{value:g}'
  return str(value)  # Floats that differ never look the same.


def header(name: str) -> str:
  """Returns what the column of a setting is called."""
  return _HEADERS.get(name, name.replace('_', ' '))


def phrase(name: str, value: Any) -> str:
  """Returns a setting and its value in words."""
  return _PHRASES.get(name, name.replace('_', ' ') + ' {}').format(text(value))


def describe(settings: Iterable[tuple[str, Any]]) -> str:
  """Returns settings and their values in words."""
  return ', '.join(phrase(name, value) for name, value in settings if value is not None)


def order(values: Iterable[Any]) -> tuple:
  """Returns a sort key of some values, of which any may be None, a number or a text."""
  return tuple((v is not None, isinstance(v, str), 0 if v is None else v) for v in values)


def algorithm_title(name: str) -> str:
  return catalogue.ALGORITHMS[name].title


def _is_usual(name: str, identity: Mapping[str, Any]) -> bool:
  """Whether a setting has the value that it would have if it were not given."""
  return identity_lib.usual(identity).get(name) == identity.get(name)


def _is_about_clipping(name: str) -> bool:
  """Whether a setting means nothing to plain SGD, which clips nothing."""
  return 'client_optimizer' in catalogue.owners(name)


class Experiment:
  """Runs of one task.

  Attributes:
    runs: All of them.
    algorithms: Their algorithms, in the order of the catalogue.
    constants: The settings that are equal in all runs for which they mean anything.
    columns: The names of the settings that vary, in the order of the table of settings.
    axes: Those of them that vary within an algorithm, and so tell its runs apart.
    traits: What differs between algorithms and belongs to them, where it is not as usual:
      `{algorithm: {setting: value}}`.
    rows: What the table has rows for: pairs of an algorithm and a condition, the values of
      `columns`.
  """

  def __init__(self, runs: Sequence[Run]):
    self.runs = list(runs)
    self.task = self.runs[0].identity['task']
    found = {run.identity['algorithm'] for run in self.runs}
    self.algorithms = [a for a in catalogue.ALGORITHMS if a in found]
    self.constants, self.columns, self.axes = {}, [], []
    self.traits = {algorithm: {} for algorithm in self.algorithms}
    known = set().union(*(run.identity for run in self.runs)).difference(_NO_AXES)
    for setting in settings_lib.SETTINGS:
      if setting.name in known:
        self._place(setting.name)
    self._cells = self._fill_cells()
    self.rows = sorted(
      {(algorithm, condition) for algorithm, condition, _ in self._cells},
      key=lambda row: (self.algorithms.index(row[0]), order(row[1])),
    )

  def _place(self, name):
    """Decides where a setting is said: in the title, in a column, or beside its algorithm."""
    owners = {'algorithm', 'client_optimizer'}.intersection(catalogue.owners(name))
    by_algorithm = collections.defaultdict(set)
    for run in self.runs:
      # Where an algorithm or optimizer has no such setting, it is they that tell the runs apart.
      if name in run.identity or not owners:
        by_algorithm[run.identity['algorithm']].add(run.identity.get(name))
    values = set().union(*by_algorithm.values())
    has_everyone = 'algorithm' not in owners or len(by_algorithm) == len(self.algorithms)
    if any(len(found) > 1 for found in by_algorithm.values()):
      self.columns.append(name)
      self.axes.append(name)
    elif len(values) == 1 and has_everyone:
      self.constants[name] = values.pop()
    elif 'algorithm' in owners:
      for run in self.runs:
        if name in run.identity and not _is_usual(name, run.identity):
          self.traits[run.identity['algorithm']][name] = run.identity[name]
    else:
      self.columns.append(name)

  def _fill_cells(self):
    """Returns the runs of each cell. SGD, which has no bound, stands beside every bound."""
    bounds = {name for name in self.columns if _is_about_clipping(name)}
    others = [name for name in self.columns if name not in bounds]
    cells = collections.defaultdict(list)
    rows = collections.defaultdict(dict)  # By all but the bounds.
    for run in sorted(self.runs, key=lambda run: bounds.isdisjoint(run.identity)):
      algorithm, condition = run.identity['algorithm'], self.condition(run)
      beside = rows[algorithm, self.part(condition, others)]
      if not bounds.isdisjoint(run.identity) or not beside:
        beside[condition] = None
        beside = [condition]
      for row in beside:
        cells[algorithm, row, run.identity['client_optimizer']].append(run)
    return dict(cells)

  def condition(self, run: Run) -> tuple:
    """Returns the values of the settings that vary."""
    return tuple(run.identity.get(name) for name in self.columns)

  def cell(self, algorithm: str, condition: tuple, optimizer: str) -> list[Run]:
    """Returns the runs of a cell, one for each seed, also those that are not finished."""
    return self._cells.get((algorithm, condition, optimizer), [])

  def part(self, condition: tuple, names: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """Returns some of a condition's settings with their values."""
    return tuple(item for item in zip(self.columns, condition) if item[0] in names)

  def cells(self) -> Iterator[tuple[str, tuple, str, list[Run]]]:
    """Yields algorithm, condition, optimizer and runs of each cell that has any to show."""
    for algorithm, condition in self.rows:
      for optimizer in OPTIMIZERS:
        runs = self.cell(algorithm, condition, optimizer)
        if any(run.is_finished or run.has_diverged for run in runs):
          yield algorithm, condition, optimizer, runs

  def title(self) -> str:
    """Returns what all runs share."""
    said = [('task', self.task)]
    for name, value in self.constants.items():
      owner = next(run.identity for run in self.runs if name in run.identity)
      if name in _ALWAYS_SAID or not _is_usual(name, owner):
        # What all share needs no digits that tell runs apart.
        said.append((name, float(f'{value:g}') if isinstance(value, float) else value))
    prefix = 'Reduced setting: ' if all(self._reduced()) else ''
    return prefix + describe(said)

  def _reduced(self):
    """Returns for each cell whether it is smaller than the published one that it is most like."""
    return [presets.is_reduced(runs[0].identity) for runs in self._cells.values()]

  def notes(self) -> list[str]:
    """Returns sentences on what the title and the columns do not say."""
    notes = [
      f'{algorithm_title(algorithm)}: {describe(traits.items())}.'
      for algorithm, traits in self.traits.items()
      if traits
    ]
    reduced = self._reduced()
    if any(reduced) and not all(reduced):
      notes.append(f'{sum(reduced)} of {len(reduced)} cells are smaller than the published ones.')
    return notes


def _count(number):
  return '1 run is' if number == 1 else f'{number} runs are'


def notes_on(runs: Iterable[Run]) -> list[str]:
  """Returns sentences on the runs that have no accuracy."""
  diverged = sum(run.has_diverged for run in runs)
  unfinished = sum(not run.is_finished and not run.has_diverged for run in runs)
  notes = []
  if diverged:
    notes.append(
      f'{_count(diverged)} marked as diverged and without an accuracy: means, deviations and '
      'differences are over the other seeds, and so flatter the side that diverged.'
    )
  if unfinished:
    notes.append(f'{_count(unfinished)} unfinished and left out.')
  return notes


def check_no_duplicates(runs: Iterable[Run]) -> None:
  """Raises a `DuplicateRunError` if two finished runs have the same settings and seeds."""
  seen = {}
  for run in runs:
    if run.is_finished or run.has_diverged:
      key = run.key, run.seeds
      if key in seen:
        raise DuplicateRunError(
          f'{seen[key].path} and {run.path} are one run twice: all settings and seeds are equal; '
          'leave one out.'
        )
      seen[key] = run


def split_into_experiments(runs: Sequence[Run]) -> list[Experiment]:
  """Returns an experiment for each task, in the order in which they were found.

  Raises:
    DuplicateRunError: If two runs would fall into one cell and seed.
  """
  check_no_duplicates(runs)
  by_task = collections.defaultdict(list)
  for run in runs:
    by_task[run.identity['task']].append(run)
  return [Experiment(found) for found in by_task.values()]
