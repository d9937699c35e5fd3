# SPDX-License-Identifier: Apache-2.0
"""Numbers in sentences on the study, which are written by hand.

Each case makes the words anew from the results and looks for them. What stands in tables is made by
`make results`, see test_study_page.py.
"""

import functools
import itertools
import pathlib
import statistics

import pytest

from experiments.definition import paper, study
from experiments.reading import claims, results
from experiments.reading.runs import spread

ROOT = pathlib.Path(__file__).parents[2]
MAIN = study.MAIN_SETTING
SHORT, BALANCED = study.OTHER_SETTINGS
LARGE, SMALL = claims.LARGEST_DECAY, claims.SMALLER_DECAY
BASELINE, NAR = 'clip', 'nar'


@functools.cache
def text_of(page):
  return ' '.join((ROOT / page).read_text().split())


@functools.cache
def runs(*stages):
  records = results.read(ROOT / 'results' / 'study.jsonl')
  return [results.to_run(records[name]) for name in study.runs(stages) if name in records]


@functools.cache
def cells(*stages, bound=None):
  return claims.Cells([run for run in runs(*stages) if bound in (None, run.identity['max_norm'])])


def mean(by_seed):
  return statistics.mean(by_seed.values())


def interval(by_seed):
  return claims.interval(spread(list(by_seed.values())))


def over_cells(found):
  """Returns the mean over cells by seed."""
  return {seed: statistics.mean(by_seed[seed] for by_seed in found) for seed in study.SEEDS}


def table1_gain(alpha=None, but=None):
  settings = [s for s in claims.table_cells() if alpha in (None, s[1]) and s[:2] != but]
  return over_cells([cells('table1').gain(*setting) for setting in settings])


def published_gain(table):
  return statistics.mean(nar - baseline for row in table.values() for baseline, nar in row.values())


def of_table1():
  by_alpha = (f'{interval(table1_gain(a))} at' for a in (0.3, 1.0, 10.0))
  yield (
    f'({mean(table1_gain()):+.2f} against {published_gain(paper.CIFAR10):+.2f} points): '
    '{} alpha 0.3, {} 1, {} 10'.format(*by_alpha)
  )
  yield f'without that cell the mean is {interval(table1_gain(but=("scaffold", 0.3)))}'
  costs, gains = [], []
  for algorithm in study.DECAY_ALGORITHMS:
    best = claims.best_decay(cells('weight_decay'), algorithm, MAIN)
    decays = best, paper.CIFAR10_WEIGHT_DECAYS[algorithm]
    pair = (cells('weight_decay').accuracy(algorithm, *MAIN, d, BASELINE) for d in decays)
    costs.append(mean(claims.minus(*pair)))
    gains.append(mean(cells('weight_decay').gain(algorithm, *MAIN, best)))
  yield (
    'at alpha 0.3 they cost the baseline {:.0f} points with FedAvg, {:.0f} with SCAFFOLD and '
    '{:.0f} with FedAvgM.'.format(*costs)
  )
  yield "nothing is left of NAR's gain: {:+.2f}, {:+.2f} and {:+.2f}".format(*gains)


def of_table2():
  gains = [cells('table2').gain(*setting) for setting in claims.shakespeare_cells()]
  lower = sum(mean(gain) < 0 for gain in gains)
  yield (
    f'lower with NAR in {lower} of {len(gains)} cells, but by '
    f'{-mean(over_cells(gains)):.2f} points on average'
  )
  pairs = [
    [
      cells('table2').measure(lambda run: run.accuracy('final'), *setting, o)
      for o in (BASELINE, NAR)
    ]
    for setting in claims.shakespeare_cells()
  ]
  last = sum(mean(claims.minus(nar, baseline)) < 0 for baseline, nar in pairs)
  yield f'by the last evaluation alone it is lower in {last}.'
  yield f"A gain as the paper's, {published_gain(paper.SHAKESPEARE):+.2f} on average"


def lost(found, algorithm, setting):
  """Returns what the baseline loses from the smaller weight decay to the largest."""
  pair = (found.accuracy(algorithm, *setting, decay, BASELINE) for decay in (SMALL, LARGE))
  return mean(claims.minus(*pair))


def of_all_cells():
  by_stage = {'table1': claims.table_cells(), 'table2': claims.shakespeare_cells()}
  for stage, algorithms, settings in (
    ('weight_decay', paper.CIFAR10, [MAIN]),
    ('other_settings', ['fed_avg'], study.OTHER_SETTINGS),
  ):
    grid = itertools.product(algorithms, settings, paper.SWEEP_WEIGHT_DECAYS)
    by_stage[stage] = [(algorithm, *setting, decay) for algorithm, setting, decay in grid]
  gains = {}
  for stage, found in by_stage.items():
    gains.update((setting, mean(cells(stage).gain(*setting))) for setting in found)
  small = sum(abs(gain) < 0.5 for gain in gains.values())
  yield f'differ by less than half a point in {small} of {len(gains)} cells'


def of_steps_between_weight_decays():
  steps = [
    mean(claims.minus(*(cells('weight_decay').accuracy(a, *MAIN, d, BASELINE) for d in pair)))
    for a in study.DECAY_ALGORITHMS
    for pair in ((SMALL, 0.05), (0.05, LARGE))
  ]
  yield f'{min(steps):.0f} to {max(steps):.0f} points with the three algorithms of C3'


def of_weight_decay():
  found, others = cells('weight_decay'), cells('other_settings')
  gains = [mean(found.gain(a, *MAIN, LARGE)) for a in study.DECAY_ALGORITHMS]
  least = min(lost(found, a, MAIN) for a in study.DECAY_ALGORITHMS)
  gain = interval(others.gain('fed_avg', *SHORT, LARGE)).replace('+', '')
  yield (
    f'at 0.1 at most {max(gains):.2f} points of more than {5 * (least // 5):.0f}, with 5 steps '
    f'{gain} of {lost(others, "fed_avg", SHORT):.0f}.'
  )
  yield f'FedAvgM, it is {interval(found.gain("fed_prox", *MAIN, LARGE))} at 0.1.'


def of_clipping():
  key = ('scaffold', 0.3, paper.LOCAL_STEPS, paper.CIFAR10_WEIGHT_DECAYS['scaffold'], NAR)

  def share(run, late):
    rounds, clipped = run.series('clipped_steps')
    last = run.identity['total_rounds']
    wanted = [c for r, c in zip(rounds, clipped) if (r > 0.8 * last if late else r <= 0.2 * last)]
    return 100 * statistics.mean(wanted) / run.series('total_steps')[1][0]

  early, late = (
    mean(cells('table1').measure(lambda run, x=x: share(run, x), *key)) for x in (False, True)
  )
  yield f'{early:.0f} % of the steps in the first fifth of the rounds, {late:.0f} % in the last'


def of_bounds():
  small = cells('bounds', bound=1.0)
  share = claims.share_recovered(*claims.recovery(small, 'fed_avg'))
  falls = [mean(claims.fall(small, 'fed_avg', MAIN, o)) for o in (NAR, BASELINE)]
  fall = mean(claims.fall(small, 'fed_avg', MAIN))
  all_share = mean(small.gain('fed_avg', *MAIN, LARGE)) / fall
  yield (
    f'it wins back {100 * share:.0f} % of what the baseline loses from 0.01 on, as C4 counts, and '
    f'{100 * all_share:.0f} % of what it loses from its best weight decay on'
  )
  yield f'it [wins back {100 * all_share:.0f} %](#beside-the-claims-smaller-bounds)'
  pair = (small.accuracy('fed_avg', *MAIN, *key) for key in ((SMALL, BASELINE), (LARGE, NAR)))
  yield f'it stays {interval(claims.minus(*pair))} points below it'.replace('+', '')
  yield 'with A = 1 by {:.0f} points instead of {:.0f}'.format(*falls)
  best = [
    max(
      mean(cells('bounds', bound=bound).accuracy('fed_avg', *MAIN, decay, o))
      for decay in paper.SWEEP_WEIGHT_DECAYS
      for o in (BASELINE, NAR)
    )
    for bound in (1.0, study.chosen_settings('cifar10')['max_norm'])
  ]
  yield f'with A = 1 the best of both is {best[1] - best[0]:.0f} points below the best with A = 6'


def of_matched_decays():
  small = cells('bounds', bound=1.0)
  control = cells('matched_decays', bound=1.0)
  gains, left = [], []
  for (bound, decay), (*_, matched) in study.MATCHED_DECAYS.items():
    if bound == 1.0:
      gains.append(mean(small.gain('fed_avg', *MAIN, decay)))
      nar = small.accuracy('fed_avg', *MAIN, decay, NAR)
      baseline = control.accuracy('fed_avg', *MAIN, matched, BASELINE)
      left.append(mean(claims.minus(nar, baseline)))
  yield (
    f'{min(gains):.0f} to {max(gains):.0f} points over the baseline with the same number for its '
    f'weight decay are {min(left):.2f} to {max(left):.2f} over the one'
  )


def of_the_readme():
  small = cells('bounds', bound=1.0)
  share = mean(small.gain('fed_avg', *MAIN, LARGE)) / mean(claims.fall(small, 'fed_avg', MAIN))
  yield f'{100 * share:.0f} % of what weight decay 0.1 costs'
  clipped = [
    100 * mean(cells(table).measure(claims.clipped_share, *setting, NAR))
    for table, settings in (
      ('table1', claims.table_cells()),
      ('table2', claims.shakespeare_cells()),
    )
    for setting in settings
  ]
  yield f'clip {min(clipped):.1f} to {max(clipped):.0f} % of the steps.'


def of_the_recipe():
  shares = mean(
    cells('bounds', bound=6.0).measure(claims.clipped_share, 'fed_avg', *MAIN, LARGE, NAR)
  )
  *_, matched = study.MATCHED_DECAYS[1.0, LARGE]
  yield f'where {100 * shares:.0f} % of the steps were clipped, and as {matched:.3f} where all were'


@pytest.mark.parametrize(
  'make',
  [
    of_all_cells,
    of_table1,
    of_table2,
    of_steps_between_weight_decays,
    of_weight_decay,
    of_clipping,
    of_bounds,
    of_matched_decays,
  ],
)
def test_numbers_in_sentences_are_those_of_the_results(make):
  for words in make():
    assert words in text_of('docs/study.md')


@pytest.mark.parametrize(
  ('page', 'make'), [('README.md', of_the_readme), ('docs/recipes.md', of_the_recipe)]
)
def test_so_are_those_of_other_pages(page, make):
  for words in make():
    assert words in text_of(page)
