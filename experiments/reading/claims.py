# SPDX-License-Identifier: Apache-2.0
"""What the study says of the paper's claims, by the rules of its protocol (docs/study.md).

A cell is the runs with one algorithm, alpha (None on Shakespeare), number of local steps, weight
decay and client optimizer. An accuracy is the mean of a run's last ten evaluations, in per cent. A
difference is paired by seed, and its interval is Student's of 95 %. It lies above zero if all of it
does, and below zero alike.
"""

import collections
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence

from experiments.definition import paper, presets, study
from experiments.reading.runs import Run, Spread, spread

SUPPORTED, NOT_SUPPORTED, UNDECIDED = 'supported', 'not supported', 'undecided'
NOT_TESTED = 'not tested yet'
STATISTIC = 'last10'
LARGEST_DECAY, SMALLER_DECAY = max(paper.SWEEP_WEIGHT_DECAYS), 0.01
# A fall from the best weight decay to the largest one is steep from so many points on.
STEEP = 10.0

# A round with NAR may take so many times one with the baseline.
MOST_COST = 1.05

# The accuracy of a guess, in per cent: one of 10 classes, one of 80 characters.
GUESS = {'cifar10': 10.0, 'shakespeare': 1.25}

BySeed = Mapping[int, float]
_KEY = ('algorithm', 'alpha', 'local_steps', 'weight_decay', 'client_optimizer')


@dataclasses.dataclass(frozen=True)
class Claim:
  """One of the paper's claims, and what became of it.

  Attributes:
    name: C1 to C6.
    text: What the paper says.
    verdict: One of the words above.
    because: The numbers that the verdict follows from.
  """

  name: str
  text: str
  verdict: str
  because: str


class Cells:
  """The study's runs by cell and seed: those of one model, bound and precision."""

  def __init__(self, runs: Sequence[Run]):
    self._cells = collections.defaultdict(dict)
    for run in runs:
      i = run.identity
      cell, seed = self._cells[tuple(i.get(name) for name in _KEY)], dict(run.seeds)['seed']
      if seed in cell:
        raise ValueError(f'{run.path} and {cell[seed].path} differ in what is no part of a cell.')
      cell[seed] = run

  def measure(self, fn: Callable[[Run], float | None], *key) -> BySeed:
    """Returns a number of each run of a cell, by seed; without those that have none."""
    found = {seed: fn(run) for seed, run in self._cells.get(key, {}).items()}
    return {seed: value for seed, value in found.items() if value is not None}

  def accuracy(self, *key) -> BySeed:
    """Returns the accuracy of each run of a cell, by seed, in per cent.

    A run that diverged has the accuracy of a guess: it has no better model.
    """
    return self.measure(_accuracy, *key)

  def gain(self, *setting) -> BySeed:
    """Returns NAR minus baseline by seed, of an algorithm, alpha, steps and weight decay."""
    return minus(self.accuracy(*setting, 'nar'), self.accuracy(*setting, 'clip'))


def _accuracy(run):
  if run.has_diverged:
    return GUESS[run.identity['task']]
  value = run.accuracy(STATISTIC)
  return None if value is None else 100 * value


def minus(a: BySeed, b: BySeed) -> BySeed:
  """Returns the differences of the seeds that both have."""
  return {seed: a[seed] - b[seed] for seed in a if seed in b}


def side(found: Spread | None) -> int:
  """Returns 1 if an interval lies above zero, -1 if below, 0 if neither or if there is none."""
  if found is None or found.count < 2:
    return 0
  if abs(found.mean) <= found.half_width:
    return 0
  return 1 if found.mean > 0 else -1


def interval(found: Spread | None) -> str:
  """Returns a mean with its interval, in points."""
  if found is None:
    return 'missing'
  if found.count < 2:
    return f'{found.mean:+.2f} (one seed)'
  low, high = (found.mean + sign * found.half_width for sign in (-1, 1))
  return f'{found.mean:+.2f} [{low:+.2f}, {high:+.2f}]'


def table_cells() -> list[tuple[str, float, int, float]]:
  """Returns the settings of the table on CIFAR-10: algorithm, alpha, steps, weight decay."""
  return [
    (algorithm, alpha, paper.LOCAL_STEPS, paper.CIFAR10_WEIGHT_DECAYS[algorithm])
    for algorithm, by_alpha in paper.CIFAR10.items()
    for alpha in by_alpha
  ]


def shakespeare_cells() -> list[tuple[str, None, int, float]]:
  """Returns the settings of the table on Shakespeare, alike; there is no alpha."""
  steps = presets.cell_settings(study.VARIANT, presets.shakespeare_cell('fed_avg', 'nar', 0.0))
  return [
    (algorithm, None, steps['local_steps'], decay)
    for algorithm, by_decay in paper.SHAKESPEARE.items()
    for decay in by_decay
  ]


def _complete(found: Sequence[BySeed]) -> bool:
  return all(set(study.SEEDS) <= set(by_seed) for by_seed in found)


def judge_gain(cells: Cells) -> Claim:
  """C1: the table on CIFAR-10."""
  text = 'NAR is at least as good as the baseline, for each algorithm and alpha (Table 1)'
  return _judge_table('C1', text, [cells.gain(*setting) for setting in table_cells()])


def judge_gain_on_shakespeare(cells: Cells) -> Claim:
  """C2: the table on Shakespeare."""
  text = 'The same on Shakespeare, for each algorithm and weight decay (Table 2)'
  return _judge_table('C2', text, [cells.gain(*setting) for setting in shakespeare_cells()])


def _judge_table(name: str, text: str, gains: Sequence[BySeed]) -> Claim:
  if not _complete(gains):
    return Claim(name, text, NOT_TESTED, _progress(gains))
  sides = [side(spread(list(gain.values()))) for gain in gains]
  overall = spread([statistics.mean(gain[seed] for gain in gains) for seed in study.SEEDS])
  if side(overall) > 0 and -1 not in sides:
    verdict = SUPPORTED
  elif side(overall) < 0 or sides.count(-1) > sides.count(1):
    verdict = NOT_SUPPORTED
  else:
    verdict = UNDECIDED
  higher = sum(statistics.mean(gain.values()) > 0 for gain in gains)
  because = (
    f'Mean over the {len(gains)} cells {interval(overall)}; '
    f'the mean is higher with NAR in {higher}, '
    f'the interval lies above zero in {sides.count(1)} and below in {sides.count(-1)}'
  )
  return Claim(name, text, verdict, because)


def best_decay(
  cells: Cells, algorithm: str, setting: tuple[float, int], optimizer: str = 'clip'
) -> float | None:
  """Returns the weight decay with the best mean over the seeds that all have; None without any."""
  found = {
    decay: cells.accuracy(algorithm, *setting, decay, optimizer)
    for decay in paper.SWEEP_WEIGHT_DECAYS
  }
  seeds = set.intersection(*map(set, found.values()))
  if not seeds:
    return None
  return max(found, key=lambda decay: statistics.mean(found[decay][seed] for seed in seeds))


def fall(
  cells: Cells, algorithm: str, setting: tuple[float, int], optimizer: str = 'clip'
) -> BySeed | None:
  """Returns by how much accuracy falls from the best weight decay to the largest, by seed."""
  best = best_decay(cells, algorithm, setting, optimizer)
  if best is None:
    return None
  return minus(
    *(cells.accuracy(algorithm, *setting, decay, optimizer) for decay in (best, LARGEST_DECAY))
  )


def judge_fall(cells: Cells) -> Claim:
  """C3: accuracy against weight decay."""
  text = (
    'Accuracy falls steeply above the best weight decay, less with fewer local steps or balanced '
    'data (Figure "wd")'
  )
  wanted = [(a, study.MAIN_SETTING) for a in study.DECAY_ALGORITHMS]
  wanted += [('fed_avg', setting) for setting in study.OTHER_SETTINGS]
  known = [
    cells.accuracy(algorithm, *setting, decay, 'clip')
    for algorithm, setting in wanted
    for decay in paper.SWEEP_WEIGHT_DECAYS  # All of them: which is the best is known at the end.
  ]
  if not _complete(known):
    return Claim('C3', text, NOT_TESTED, _progress(known))
  falls = {a: fall(cells, a, study.MAIN_SETTING) for a in study.DECAY_ALGORITHMS}
  others = {s: fall(cells, 'fed_avg', s) for s in study.OTHER_SETTINGS}
  spreads = {a: spread(list(found.values())) for a, found in falls.items()}
  milder = {s: spread(list(minus(falls['fed_avg'], found).values())) for s, found in others.items()}
  steep = [side(s) > 0 and s.mean >= STEEP for s in spreads.values()]
  if all(steep) and all(side(s) > 0 for s in milder.values()):
    verdict = SUPPORTED
  elif not any(steep) or any(side(s) < 0 for s in milder.values()):
    verdict = NOT_SUPPORTED
  else:
    verdict = UNDECIDED
  parts = [f'{_title(a)} falls by {interval(s)} points' for a, s in spreads.items()]
  parts += [
    f'FedAvg falls less by {interval(s)} points at alpha {alpha:g} with {steps} steps'
    for (alpha, steps), s in milder.items()
  ]
  return Claim('C3', text, verdict, '; '.join(parts).replace('+', ''))  # All is said to fall.


def recovery(cells: Cells, algorithm: str) -> tuple[BySeed, BySeed]:
  """Returns NAR's gain at the largest weight decay, and what the baseline lost there, by seed."""
  setting = (algorithm, *study.MAIN_SETTING)
  small, large = (cells.accuracy(*setting, d, 'clip') for d in (SMALLER_DECAY, LARGEST_DECAY))
  return cells.gain(*setting, LARGEST_DECAY), minus(small, large)


def share_recovered(gain: BySeed, lost: BySeed) -> float | None:
  """Returns the share of what was lost that NAR wins back; None if nothing was lost.

  Args:
    gain: What NAR gains, by seed.
    lost: What the baseline lost, by seed. Only seeds that both have count.
  """
  seeds = gain.keys() & lost.keys()
  whole = sum(lost[seed] for seed in seeds)
  return sum(gain[seed] for seed in seeds) / whole if whole > 0 else None


def describe_share(gain: BySeed, lost: BySeed) -> str:
  """Returns the share of what was lost in words."""
  if not gain.keys() & lost.keys():
    return 'missing'
  share = share_recovered(gain, lost)
  return 'nothing was lost' if share is None else f'{100 * share:.1f} % of what was lost'


def judge_recovery(cells: Cells) -> Claim:
  """C4: the figure of robustness."""
  text = f'NAR recovers at weight decay {LARGEST_DECAY:g} (Figure "robust")'
  found = {a: recovery(cells, a) for a in study.DECAY_ALGORITHMS}
  known = [by_seed for pair in found.values() for by_seed in pair]
  if not _complete(known):
    return Claim('C4', text, NOT_TESTED, _progress(known))
  gains = {a: spread(list(gain.values())) for a, (gain, _) in found.items()}
  shares = [share_recovered(*pair) for pair in found.values()]
  sides = [side(gain) for gain in gains.values()]
  halves = [share is not None and share >= 0.5 for share in shares]
  if all(s > 0 for s in sides) and all(halves):
    verdict = SUPPORTED
  elif -1 in sides or not any(halves):
    verdict = NOT_SUPPORTED
  else:
    verdict = UNDECIDED
  parts = [
    f'{_title(a)} {interval(gains[a])}, {describe_share(*pair)}' for a, pair in found.items()
  ]
  return Claim('C4', text, verdict, '; '.join(parts))


def clipped_share(run: Run) -> float:
  """Returns the share of a run's steps that were clipped."""
  clipped, total = (sum(run.series(name)[1]) for name in ('clipped_steps', 'total_steps'))
  return clipped / max(total, 1)


def growth(run: Run, name: str) -> float | None:
  """Returns by how much a metric is larger in the last fifth of the rounds than in the first."""
  rounds, values = run.series(name)
  if run.has_diverged or not rounds:
    return None
  last = run.identity['total_rounds']
  early = [v for r, v in zip(rounds, values) if r <= last / 5]
  late = [v for r, v in zip(rounds, values) if r > last * 4 / 5]
  if not early or not late:
    return None
  return statistics.mean(late) - statistics.mean(early)


def judge_clipping(cells: Cells) -> Claim:
  """C5: frequency and strength of clipping."""
  text = 'Count and strength of clipping grow over the rounds (Figure "clip count")'
  sides = {}
  for metric in ('clipped_steps', 'mean_clipped_norm'):
    found = [
      cells.measure(lambda run, m=metric: growth(run, m), *setting, 'nar')
      for setting in table_cells()
    ]
    sides[metric] = [side(spread(list(by_seed.values()))) for by_seed in found]
  runs = [cells.accuracy(*setting, 'nar') for setting in table_cells()]
  if not _complete(runs):
    return Claim('C5', text, NOT_TESTED, _progress(runs))
  total = len(runs)
  up = {metric: found.count(1) for metric, found in sides.items()}
  down = {metric: found.count(-1) for metric, found in sides.items()}
  if all(3 * n >= 2 * total for n in up.values()) and not any(down.values()):
    verdict = SUPPORTED
  elif any(3 * n < total for n in up.values()) or any(down[m] > up[m] for m in up):
    verdict = NOT_SUPPORTED
  else:
    verdict = UNDECIDED
  because = '; '.join(
    f'{words}: grows in {up[metric]} of {total} cells, falls in {down[metric]}'
    for metric, words in (
      ('clipped_steps', 'count'),
      ('mean_clipped_norm', 'norm of clipped steps'),
    )
  )
  return Claim('C5', text, verdict, because)


def judge_cost(pairs: Sequence[tuple[float, float]]) -> Claim:
  """C6: the seconds of rounds.

  Args:
    pairs: The seconds of a round with NAR, and of one with the baseline, turn by turn.
  """
  text = 'NAR costs one norm a step'
  if not pairs:
    return Claim('C6', text, NOT_TESTED, 'not measured')
  found = [nar / baseline for nar, baseline in pairs]
  ratio = statistics.median(found)
  because = (
    f'A round with NAR takes {ratio:.2f} times as long as one with the baseline (median of '
    f'{len(found)} turns, which say {min(found):.2f} to {max(found):.2f})'
  )
  return Claim('C6', text, SUPPORTED if ratio <= MOST_COST else NOT_SUPPORTED, because)


def judge_cifar10(runs: Sequence[Run]) -> list[Claim]:
  """Returns the claims about CIFAR-10, decided by runs with one model."""
  cells = Cells(runs)
  judges = (judge_gain, judge_fall, judge_recovery, judge_clipping)
  return [judge(cells) for judge in judges]


def judge_all(runs: Sequence[Run], seconds: Sequence[tuple[float, float]] = ()) -> list[Claim]:
  """Returns the claims with their verdicts.

  Args:
    runs: The runs of the study.
    seconds: Of rounds with NAR and with the baseline, as `judge_cost` takes them.
  """
  found = [*judge_cifar10(runs), judge_gain_on_shakespeare(Cells(runs)), judge_cost(seconds)]
  return sorted(found, key=lambda claim: claim.name)


def _progress(found: Sequence[BySeed]) -> str:
  full = sum(len(by_seed) >= len(study.SEEDS) for by_seed in found)
  return f'{full} of {len(found)} numbers have all {len(study.SEEDS)} seeds'


def _title(algorithm: str) -> str:
  from experiments.reading import grouping

  return grouping.algorithm_title(algorithm)
