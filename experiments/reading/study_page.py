# SPDX-License-Identifier: Apache-2.0
"""Fills the page of the study, docs/study.md, with the tables, figures and verdicts of its results.

The protocol on the page is written by hand. What stands between `<!-- begin NAME -->` and
`<!-- end NAME -->` is made here, and nowhere else.
"""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.definition import paper, study
from experiments.definition.settings import UsageError
from experiments.reading import claims, drawing, figures, grouping, results
from experiments.reading.runs import Run, spread

PAGE = 'study.md'
_STAGE_TITLES = {
  'table1': 'Table 1: six algorithms, three alphas',
  'weight_decay': 'Weight decays at alpha 0.3, 20 steps',
  'other_settings': 'Weight decays of FedAvg at (0.3, 5) and (10, 20)',
}
_MISSING = 'missing'


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def _mean(by_seed: Mapping[int, float]) -> str:
  found = spread(list(by_seed.values()))
  if found is None:
    return _MISSING
  deviation = '' if found.count < 2 else f' ± {found.deviation:.2f}'
  return f'{found.mean:.2f}{deviation} ({found.count})'


def _pair_rows(cells: claims.Cells, settings):
  """Returns baseline, NAR and their difference of some cells."""
  for setting in settings:
    pair = [cells.accuracy(*setting, optimizer) for optimizer in ('clip', 'nar')]
    gain = spread(list(claims.minus(pair[1], pair[0]).values()))
    yield setting, [*map(_mean, pair), claims.interval(gain)]


def table1(cells: claims.Cells) -> str:
  """Returns the table on CIFAR-10, beside the paper's numbers."""
  rows = []
  for (algorithm, alpha, _, decay), numbers in _pair_rows(cells, claims.table_cells()):
    published = paper.CIFAR10[algorithm][alpha]
    rows.append(
      [grouping.algorithm_title(algorithm), f'{decay:g}', f'{alpha:g}', *numbers]
      + [f'{published[0]:.2f}, {published[1]:.2f}', f'{published[1] - published[0]:+.2f}']
    )
  header = ['algorithm', 'WD', 'alpha', 'baseline', 'NAR', 'NAR - baseline [95 %]']
  return _markdown([*header, 'paper: baseline, NAR', 'paper: difference'], rows)


def weight_decays(cells: claims.Cells, algorithms, settings) -> str:
  """Returns accuracy by weight decay."""
  wanted = [
    (algorithm, *setting, decay)
    for algorithm in algorithms
    for setting in settings
    for decay in paper.SWEEP_WEIGHT_DECAYS
  ]
  rows = [
    [grouping.algorithm_title(algorithm), f'{alpha:g}', str(steps), f'{decay:g}', *numbers]
    for (algorithm, alpha, steps, decay), numbers in _pair_rows(cells, wanted)
  ]
  header = ['algorithm', 'alpha', 'steps', 'WD', 'baseline', 'NAR', 'NAR - baseline [95 %]']
  return _markdown(header, rows)


def claims_table(found: Sequence[claims.Claim]) -> str:
  """Returns the claims with their verdicts."""
  rows = [[c.name, c.text, f'**{c.verdict}**', c.because] for c in found]
  return _markdown(['', 'claim', 'verdict', 'numbers'], rows)


def progress(records: Mapping[str, Any]) -> str:
  """Returns how far each stage is."""
  rows = []
  for stage, title in _STAGE_TITLES.items():
    names = study.runs([stage])
    rows.append([title, f'{sum(name in records for name in names)} of {len(names)}'])
  counting = [name for name in study.runs(study.STAGES) if name in records]
  versions = sorted({str(records[name]['version']) for name in counting})
  text = _markdown(['stage', 'runs done'], rows)
  return f'{text}\n\nVersions of the code: {", ".join(versions) or "none yet"}.'


def choices(records: Mapping[str, Any]) -> dict[str, float] | None:
  """Returns what follows from the pilot by the protocol's rules, or None before its end.

  By name: `learning_rate`, `max_norm`, and the server's rate of each algorithm that has one.
  """
  runs = study.runs(study.PILOT_STAGES)
  if any(name not in records for name in runs):
    return None

  def best(setting, **fixed):
    """Returns the best value of a setting among the runs whose other settings are as given."""
    found = [
      (records[name]['final_test_accuracy'], settings[setting])
      for name, settings in runs.items()
      if not records[name]['diverged']
      and all(settings.get(key) == value for key, value in fixed.items())
    ]
    return max(found)[1]

  alpha, _ = study.MAIN_SETTING
  rate = best('learning_rate', algorithm='fed_avg', client_optimizer='sgd', alpha=alpha)
  bounds = [
    settings['max_norm']
    for name, settings in study.runs(['pilot_bounds']).items()
    if _clipped_share(records[name]) <= study.PILOT_CLIPPED_SHARE
  ]
  servers = {a: best('server_learning_rate', algorithm=a) for a in study.PILOT_SERVER_RATES}
  return {
    'learning_rate': rate,
    'max_norm': min(bounds, default=max(study.PILOT_BOUNDS)),
    **servers,
  }


def _clipped_share(record: Mapping[str, Any]) -> float:
  steps = {key: sum(record['curves'].get(key, ())) for key in ('clipped_steps', 'total_steps')}
  return steps['clipped_steps'] / max(steps['total_steps'], 1)


def pilot(records: Mapping[str, Any]) -> str:
  """Returns what the pilot found, and what follows from it by the protocol's rules."""
  rows = []
  for stage in study.PILOT_STAGES:
    for name, settings in study.runs([stage]).items():
      if name not in records:
        continue
      record = records[name]
      accuracy = 'diverged' if record['diverged'] else f'{100 * record["final_test_accuracy"]:.2f}'
      rates = [
        grouping.text(settings.get(key))
        for key in ('alpha', 'learning_rate', 'server_learning_rate', 'max_norm', 'total_rounds')
      ]
      title = grouping.algorithm_title(settings['algorithm'])
      rows.append([title, *rates, accuracy, f'{100 * _clipped_share(record):.1f}'])
  header = [
    'algorithm',
    'alpha',
    'lr',
    'server lr',
    'A',
    'rounds',
    'accuracy, held out',
    'clipped %',
  ]
  found = choices(records)
  if found is None:
    every = study.runs(study.PILOT_STAGES)
    done = sum(name in records for name in every)
    text = f'The pilot is not finished: {done} of {len(every)} runs. Nothing is chosen yet.'
  else:
    servers = ', '.join(
      f'{grouping.algorithm_title(a)} {found[a]:g}' for a in study.PILOT_SERVER_RATES
    )
    text = (
      f'So the learning rate is {found["learning_rate"]:g}, A = {found["max_norm"]:g}, and the '
      f"server's rates are {servers}."
    )
  return f'{_markdown(header, rows)}\n\n{text}'


def blocks(records: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
  """Returns the text of each part of the page that is made from results."""
  runs = _stage_runs(records, study.STAGES)
  cells = claims.Cells(runs)
  return {
    'claims': claims_table(claims.judge_all(runs)),
    'progress': progress(records),
    'pilot': pilot(records),
    'table1': table1(cells),
    'weight_decay': weight_decays(cells, paper.CIFAR10, [study.MAIN_SETTING]),
    'other_settings': weight_decays(cells, ['fed_avg'], study.OTHER_SETTINGS),
  }


def fill(page: str, made: Mapping[str, str]) -> str:
  """Returns the page with its blocks replaced.

  Raises:
    UsageError: If the page has no place for a block.
  """
  for name, text in made.items():
    place = re.compile(f'(<!-- begin {name} -->\n).*?(<!-- end {name} -->)', re.DOTALL)
    if not place.search(page):
      raise UsageError(
        f'{PAGE} has no place for {name}: <!-- begin {name} --> ... <!-- end {name} -->.'
      )
    page = place.sub(lambda match, text=text: f'{match[1]}{text}\n{match[2]}', page)
  return page


def _stage_runs(records, stages) -> list[Run]:
  names = study.runs(stages)
  return [results.to_run(records[name]) for name in names if name in records]


def draw(records: Mapping[str, Mapping[str, Any]], folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws the figures for which there are runs."""
  wanted = {
    'study_curves': (figures.plot_curves, ['table1']),
    'study_clipping': (figures.plot_clipping, ['table1']),
    'study_weight_decay': (figures.plot_weight_decay, ['weight_decay', 'other_settings']),
  }
  written = []
  for name, (plot, stages) in wanted.items():
    runs = _stage_runs(records, stages)
    if plot is figures.plot_clipping:
      runs = [run for run in runs if run.identity['client_optimizer'] == 'nar']
    if runs:
      experiment = grouping.Experiment(runs)
      pages = plot(experiment, experiment.title(), claims.STATISTIC)
      if pages:
        written += drawing.save(pages, folder / f'{name}.png')
  return written


def write(records: Mapping[str, Mapping[str, Any]], docs: pathlib.Path) -> None:
  """Fills the page in a folder and draws its figures.

  Raises:
    UsageError: If there is no page, or a block has no place on it.
  """
  path = docs / PAGE
  if not path.is_file():
    raise UsageError(f'{path} is missing: the page with the protocol, which is written by hand.')
  path.write_text(fill(path.read_text(), blocks(records)))
  drawn = draw(records, docs / 'images')
  print('written: ' + ', '.join(map(str, [path, *drawn])))
