# SPDX-License-Identifier: Apache-2.0
"""What run directories say: one run's numbers, and the statistics of a cell over its seeds."""

import csv
import dataclasses
import functools
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from experiments.definition import catalogue
from experiments.definition import identity as identity_lib
from experiments.definition import settings as settings_lib

STATISTICS = ('final', 'best', 'last10')


class DamagedRunError(Exception):
  """A file of a run directory cannot be read; the message names it."""


@dataclasses.dataclass(frozen=True)
class Run:
  """One run directory.

  Attributes:
    path: The directory.
    settings: Its settings.
    rows: The metrics of each round, numbers by name; a metric that was not measured in a round is
      missing.
    is_finished: Whether all rounds are there.
    has_diverged: Whether the run was marked as diverged; its accuracy means nothing then.
  """

  path: pathlib.Path
  settings: dict[str, Any]
  rows: list[dict[str, float]]
  is_finished: bool
  has_diverged: bool = False

  @functools.cached_property
  def identity(self) -> dict[str, Any]:
    """The settings that change results, defaults filled in, without the seeds."""
    return identity_lib.identity(self.settings)

  @functools.cached_property
  def key(self) -> frozenset:
    """The identity as a key: equal for the runs of one cell only."""
    return frozenset(self.identity.items())

  @functools.cached_property
  def seeds(self) -> tuple[tuple[str, int], ...]:
    """What tells this run apart from the others of its cell."""
    return tuple(identity_lib.seeds(self.settings).items())

  @property
  def counts(self) -> bool:
    """Whether its accuracy belongs into a mean."""
    return self.is_finished and not self.has_diverged and self.accuracy() is not None

  def series(self, name: str) -> tuple[list[int], list[float]]:
    """Returns the rounds in which a metric was measured, and its values."""
    found = [(int(row['round_num']), row[name]) for row in self.rows if name in row]
    return [r for r, _ in found], [v for _, v in found]

  def accuracy(self, statistic: str = 'final') -> float | None:
    """Returns the test accuracy, or None if it was never measured.

    Args:
      statistic: Of the last evaluation, the best, or the mean of the last ten.
    """
    _, values = self.series('test_accuracy')
    if not values:
      return None
    if statistic == 'final':
      return values[-1]
    return max(values) if statistic == 'best' else statistics.mean(values[-10:])

  def summary(self) -> dict[str, Any]:
    """Returns the numbers of `result.json`."""
    return {
      'rounds': len(self.rows),
      **{f'{statistic}_test_accuracy': self.accuracy(statistic) for statistic in STATISTICS},
      'final_test_loss': (self.series('test_loss')[1] or [None])[-1],
    }


def read_run(path: pathlib.Path) -> Run:
  """Reads a run directory, also one that is not finished.

  Raises:
    DamagedRunError: If one of its files is not what a run writes.
  """
  path = pathlib.Path(path)
  settings = _read_settings(path / 'config.json')
  rows = _read_metrics(path / 'metrics.csv') if (path / 'metrics.csv').exists() else []
  result = _read_json(path / 'result.json') if (path / 'result.json').exists() else {}
  total_rounds = identity_lib.identity(settings)['total_rounds']
  return Run(
    path,
    settings,
    rows,
    is_finished=bool(rows) and rows[-1]['round_num'] >= total_rounds,
    has_diverged=bool(result.get('diverged')),
  )


def read_seconds(path: pathlib.Path) -> list[float]:
  """Returns how long each round of a run took, as `timing.csv` of its directory tells."""
  try:
    with open(pathlib.Path(path) / 'timing.csv', newline='') as file:
      return [float(row['seconds']) for row in csv.DictReader(file)]
  except (OSError, KeyError, ValueError) as e:
    raise DamagedRunError(f'{path}/timing.csv cannot be read ({e})') from e


def _read_settings(path):
  """Returns the settings of a `config.json`. Without them, the cell of a run is unknown."""
  settings = _read_json(path).get('settings')
  if not isinstance(settings, dict):
    raise DamagedRunError(f'{path} has no settings')
  for setting in settings_lib.SETTINGS:
    kind = setting.kind if isinstance(setting.kind, type) else str
    value = settings.get(setting.name)
    if value is not None and not isinstance(value, (int, float) if kind is float else kind):
      raise DamagedRunError(
        f'{path}: `{setting.name}` must be of type {kind.__name__}, found {value!r}'
      )
  for choice, options in catalogue.CHOICES.items():
    value = settings.get(choice)
    # Tasks and models may be a user's own.
    if value is not None and value not in options and choice not in ('task', 'model'):
      raise DamagedRunError(f'{path} has an unknown {choice}, {value!r}')
  return identity_lib.of_config(settings)


def _read_json(path):
  try:
    found = json.loads(path.read_text())
  except (OSError, ValueError) as e:
    raise DamagedRunError(f'{path} cannot be read ({str(e).splitlines()[0]})') from e
  if not isinstance(found, dict):
    raise DamagedRunError(f'{path} must hold an object, found {type(found).__name__}')
  return found


def _read_metrics(path):
  """Returns the rows of a metrics file; each must have all columns and be a later round."""
  rows = []
  try:
    with open(path, newline='') as file:
      for number, row in enumerate(csv.DictReader(file), 2):
        if None in row or None in row.values():
          raise DamagedRunError(f'{path}, line {number} has not as many values as there are names')
        rows.append({name: float(value) for name, value in row.items() if value})
        if rows[-1].get('total_steps') == 0:  # No client was finite, so there is no share, either.
          rows[-1].pop('clipped_steps', None)
        if not rows[-1].get('clipped_steps'):
          rows[-1].pop('mean_clipped_norm', None)  # A mean over no steps is missing, not zero.
        before = rows[-2]['round_num'] if len(rows) > 1 else -1
        if not (rows[-1]['round_num'].is_integer() and rows[-1]['round_num'] > before):
          raise DamagedRunError(f'{path}, line {number} is not a later round than the one before')
  except (OSError, csv.Error) as e:
    raise DamagedRunError(f'{path} cannot be read ({e})') from e
  except KeyError as e:
    raise DamagedRunError(f'{path} has no column round_num') from e
  except ValueError as e:  # Also a byte that is no text.
    raise DamagedRunError(f'{path}, line {len(rows) + 2} cannot be read ({e})') from e
  return rows


def check_folders(folders: Sequence[str]) -> None:
  """Raises a `UsageError` if the folders of --runs are none."""
  if not folders or not all(folders):
    raise settings_lib.UsageError('--runs= is empty; it takes folders that hold run directories.')
  for folder in folders:
    if not pathlib.Path(folder).is_dir():
      raise settings_lib.UsageError(f'--runs={folder} is no folder.')


def find_runs(roots: Iterable[str]) -> tuple[list[Run], list[str]]:
  """Returns the runs in some folders, at any depth, in a stable order, and what is damaged.

  A folder that is given twice, or inside of another, is read once.
  """
  folders = {}
  for root in roots:
    for config in sorted(pathlib.Path(root).rglob('config.json')):
      folders.setdefault(config.parent.resolve(), config.parent)
  runs, problems = [], []
  for folder in sorted(folders.values()):
    try:
      runs.append(read_run(folder))
    except DamagedRunError as e:
      problems.append(str(e))
  return runs, problems


@dataclasses.dataclass(frozen=True)
class Spread:
  """A mean over seeds.

  Attributes:
    mean: The mean.
    deviation: The sample standard deviation; NaN for a single seed.
    count: The number of seeds.
  """

  mean: float
  deviation: float
  count: int

  @property
  def half_width(self) -> float:
    """Half of the 95 % confidence interval by Student's t; NaN for a single seed."""
    if self.count < 2:
      return math.nan
    from scipy import stats

    return float(stats.t.ppf(0.975, self.count - 1)) * self.deviation / math.sqrt(self.count)


def spread(values: Sequence[float]) -> Spread | None:
  """Returns mean and deviation, or None of nothing."""
  if not values:
    return None
  deviation = statistics.stdev(values) if len(values) > 1 else math.nan
  return Spread(statistics.mean(values), deviation, len(values))


def accuracy(runs: Iterable[Run], statistic: str) -> Spread | None:
  """Returns the spread of the accuracy over the runs of a cell that ended well."""
  return spread([run.accuracy(statistic) for run in runs if run.counts])


def paired_difference(
  baseline: Iterable[Run], nar: Iterable[Run], statistic: str, guess: float | None = None
) -> Spread | None:
  """Returns the spread of NAR minus baseline over the seeds that both have.

  Args:
    baseline: The runs of the baseline.
    nar: Those of NAR.
    statistic: Which accuracy of a run.
    guess: What a run that diverged counts as; without it, such a run is left out.
  """

  def by_seeds(runs):
    found = {run.seeds: run.accuracy(statistic) for run in runs if run.counts}
    if guess is not None:
      found.update((run.seeds, guess) for run in runs if run.has_diverged)
    return found

  first, second = by_seeds(baseline), by_seeds(nar)
  return spread([second[seeds] - first[seeds] for seeds in second if seeds in first])
