"""What run directories say: one run's numbers, and the statistics of a cell over its seeds."""

import csv
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

STATISTICS = ('final', 'best', 'last10')


@dataclasses.dataclass(frozen=True)
class Run:
  """One run directory.

  Attributes:
    path: The directory.
    settings: Its settings.
    rows: The metrics of each round, numbers by name; a metric that was not measured in a round is missing.
    is_finished: Whether all rounds are there.
  """

  path: pathlib.Path
  settings: dict[str, Any]
  rows: list[dict[str, float]]
  is_finished: bool

  def series(self, name: str) -> tuple[list[int], list[float]]:
    """Returns the rounds in which a metric was measured, and its values."""
    found = [(int(row['round_num']), row[name]) for row in self.rows if name in row]
    return [r for r, _ in found], [v for _, v in found]

  def accuracy(self, statistic: str = 'final') -> float | None:
    """Returns the test accuracy: of the last evaluation, the best, or the mean of the last ten. None if there is none."""
    _, values = self.series('test_accuracy')
    if not values:
      return None
    return {'final': values[-1], 'best': max(values), 'last10': statistics.mean(values[-10:])}[
      statistic
    ]

  def summary(self) -> dict[str, Any]:
    """Returns the numbers of `result.json`."""
    return {
      'rounds': len(self.rows),
      **{f'{statistic}_test_accuracy': self.accuracy(statistic) for statistic in STATISTICS},
      'final_test_loss': (self.series('test_loss')[1] or [None])[-1],
    }


def read_run(path: pathlib.Path) -> Run:
  """Reads a run directory, also one that is not finished."""
  path = pathlib.Path(path)
  settings = json.loads((path / 'config.json').read_text())['settings']
  rows = []
  if (path / 'metrics.csv').exists():
    with open(path / 'metrics.csv', newline='') as file:
      rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
  is_finished = bool(rows) and int(rows[-1]['round_num']) >= settings['total_rounds']
  return Run(path, settings, rows, is_finished)


def find_runs(roots: Iterable[str]) -> list[Run]:
  """Returns the runs in some folders, at any depth, in a stable order."""
  configs = {config for root in roots for config in pathlib.Path(root).rglob('config.json')}
  return [read_run(config.parent) for config in sorted(configs)]


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


def paired_difference(baseline: Iterable[Run], nar: Iterable[Run], statistic: str) -> Spread | None:
  """Returns the spread of NAR minus baseline over the seeds that both have."""
  by_seed = {run.settings['seed']: run.accuracy(statistic) for run in baseline}
  differences = [
    run.accuracy(statistic) - by_seed[run.settings['seed']]
    for run in nar
    if by_seed.get(run.settings['seed']) is not None and run.accuracy(statistic) is not None
  ]
  return spread(differences)
