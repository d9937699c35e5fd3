# SPDX-License-Identifier: Apache-2.0
"""Fills the page of the study, docs/study.md, with the tables, figures and verdicts of its results.

The protocol on the page is written by hand. What stands between `<!-- begin NAME -->` and
`<!-- end NAME -->` is made here, and nowhere else. The README has the verdicts, too.
"""

import collections
import functools
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.definition import paper, presets, study
from experiments.definition.settings import UsageError
from experiments.reading import claims, drawing, figures, grouping, results, tables
from experiments.reading.runs import Run, spread

PAGE, README = 'study.md', 'README.md'
# The parts that both have.
VERDICTS, RESNET_VERDICTS = 'claims', 'claims_resnet18'
_STAGE_TITLES = {
  'table1': 'Table 1: six algorithms, three alphas',
  'weight_decay': 'Weight decays at alpha 0.3, 20 steps',
  'other_settings': 'Weight decays of FedAvg at (0.3, 5) and (10, 20)',
  'table2': 'Table 2: six algorithms, two weight decays, on Shakespeare',
  'resnet18_weight_decay': 'With norms: weight decays at alpha 0.3, 20 steps',
  'resnet18_table1': 'With norms: Table 1',
  'resnet18_other_settings': 'With norms: weight decays of FedAvg at (0.3, 5) and (10, 20)',
  'precision': 'FedAvg at alpha 0.3 in bfloat16',
  'bounds': 'FedAvg at alpha 0.3 by bound, the chosen one included',
  'matched_decays': "FedAvg's baseline with the weight decay that NAR's comes to",
}
_MISSING = 'missing'
_PAIR = ('baseline', 'NAR', 'NAR - baseline [95 %]', 'NAR clips %')
_BEST = (
  'best WD, baseline', 'best WD, NAR', 'NAR - baseline, each at its best [95 %]',
  'baseline falls to 0.1 by', 'NAR falls to 0.1 by',
)  # fmt: skip
_NO_BEST = 'for want of runs with some weight decay'
_PUBLISHED = ('paper: baseline, NAR', 'paper: difference')


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def _table_of_cells(
  header: Sequence[str], rows: Sequence[Sequence[str]], why: str = 'without a run'
) -> str:
  """Returns a table of the rows that have numbers, and how many have none, and why."""
  found = [row for row in rows if row.count(_MISSING) < len(_PAIR)]
  if len(found) == len(rows):
    return _markdown(header, rows)
  count = f'{len(rows) - len(found)} of {len(rows)}' if found else f'all {len(rows)}'
  note = f'Missing, {why}: {count} rows.'
  return f'{_markdown(header, found)}\n\n{note}' if found else note


def _mean(by_seed: Mapping[int, float]) -> str:
  found = spread(list(by_seed.values()))
  if found is None:
    return _MISSING
  deviation = '' if found.count < 2 else f' ± {found.deviation:.2f}'
  return f'{found.mean:.2f}{deviation} ({found.count})'


def _pair_rows(cells: claims.Cells, settings):
  """Returns baseline, NAR, their difference and the share of NAR's steps that are clipped."""
  for setting in settings:
    pair = [cells.accuracy(*setting, optimizer) for optimizer in ('clip', 'nar')]
    gain = spread(list(claims.minus(pair[1], pair[0]).values()))
    clipped = spread(list(cells.measure(claims.clipped_share, *setting, 'nar').values()))
    share = f'{100 * clipped.mean:.1f}' if clipped else _MISSING
    yield setting, [*map(_mean, pair), claims.interval(gain), share]


def table1(cells: claims.Cells) -> str:
  """Returns the table on CIFAR-10, beside the paper's numbers."""
  rows = [
    [grouping.algorithm_title(algorithm), f'{decay:g}', f'{alpha:g}', *numbers]
    + _published(paper.CIFAR10[algorithm][alpha])
    for (algorithm, alpha, _, decay), numbers in _pair_rows(cells, claims.table_cells())
  ]
  return _table_of_cells(['algorithm', 'WD', 'alpha', *_PAIR, *_PUBLISHED], rows)


def table2(cells: claims.Cells) -> str:
  """Returns the table on Shakespeare, alike."""
  rows = [
    [grouping.algorithm_title(algorithm), f'{decay:g}', *numbers]
    + _published(paper.SHAKESPEARE[algorithm][decay])
    for (algorithm, _, _, decay), numbers in _pair_rows(cells, claims.shakespeare_cells())
  ]
  return _table_of_cells(['algorithm', 'WD', *_PAIR, *_PUBLISHED], rows)


def _published(pair: tuple[float, float]) -> list[str]:
  baseline, nar = pair
  return [f'{baseline:.2f}, {nar:.2f}', f'{nar - baseline:+.2f}']


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
  return _table_of_cells(['algorithm', 'alpha', 'steps', 'WD', *_PAIR], rows)


def precision(float32: claims.Cells, bfloat16: claims.Cells) -> str:
  """Returns what the precision changes."""
  rows = []
  for title, optimizer in (('baseline', 'clip'), ('NAR', 'nar')):
    pair = [cells.accuracy(*study.PRECISION_CELL, optimizer) for cells in (float32, bfloat16)]
    change = spread(list(claims.minus(pair[1], pair[0]).values()))
    rows.append([title, *map(_mean, pair), claims.interval(change)])
  return _markdown(['', 'float32', 'bfloat16', 'bfloat16 - float32 [95 %]'], rows)


def bounds(runs: Sequence[Run]) -> str:
  """Returns accuracy by bound, and what NAR wins back of what the largest weight decay costs."""
  rows, settings = [], ('fed_avg', *study.MAIN_SETTING)
  wanted = [(*settings, decay) for decay in paper.SWEEP_WEIGHT_DECAYS]
  for bound, cells in _by_bound(runs):
    for (*_, decay), numbers in _pair_rows(cells, wanted):
      is_largest = decay == claims.LARGEST_DECAY
      share = claims.describe_share(*claims.recovery(cells, 'fed_avg')) if is_largest else ''
      rows.append([f'{bound:g}', f'{decay:g}', *numbers, share])
  return _table_of_cells(['A', 'WD', *_PAIR, 'NAR wins back'], rows)


def best_by_bound(runs: Sequence[Run]) -> str:
  """Returns what NAR gains at each bound where both have their best weight decay."""
  rows = [_best(f'{bound:g}', cells, 'fed_avg') for bound, cells in _by_bound(runs)]
  return _table_of_cells(['A', *_BEST], rows, _NO_BEST)


def best_by_algorithm(cells: claims.Cells) -> str:
  """Returns what NAR gains with each algorithm where both have their best weight decay."""
  rows = [_best(grouping.algorithm_title(a), cells, a) for a in study.DECAY_ALGORITHMS]
  return _table_of_cells(['algorithm', *_BEST], rows, _NO_BEST)


def _best(label, cells, algorithm):
  setting = (algorithm, study.MAIN_SETTING)
  best = {o: claims.best_decay(cells, *setting, o) for o in presets.OPTIMIZERS}
  if None in best.values():
    return [label, *[_MISSING] * len(_BEST)]
  accuracy = {o: cells.accuracy(algorithm, *study.MAIN_SETTING, d, o) for o, d in best.items()}
  gain = spread(list(claims.minus(accuracy['nar'], accuracy['clip']).values()))
  falls = [_mean(claims.fall(cells, *setting, o) or {}) for o in best]
  return [label, *(f'{d:g}' for d in best.values()), claims.interval(gain), *falls]


def matched_decays(runs: Sequence[Run], matched_runs: Sequence[Run]) -> str:
  """Returns what is left of NAR's gain over a baseline with the weight decay that NAR's comes to.

  Args:
    runs: Those by bound and weight decay.
    matched_runs: Those of that baseline.
  """
  rows, setting = [], ('fed_avg', *study.MAIN_SETTING)
  by_bound, matched_by_bound = dict(_by_bound(runs)), dict(_by_bound(matched_runs))
  for (bound, decay), found in study.MATCHED_DECAYS.items():
    baseline, nar = (by_bound[bound].accuracy(*setting, decay, o) for o in presets.OPTIMIZERS)
    gain = claims.interval(spread(list(claims.minus(nar, baseline).values())))
    for matched in found:
      control = matched_by_bound[bound].accuracy(*setting, matched, 'clip')
      left = claims.interval(spread(list(claims.minus(nar, control).values())))
      rows.append(
        [
          f'{bound:g}', f'{decay:g}', _mean(nar), gain, f'{matched / decay:.3f}', f'{matched:g}',
          _mean(control), left,
        ]
      )  # fmt: skip
  return _markdown(
    [
      'A', 'WD', 'NAR', 'NAR - baseline [95 %]', 'factor', 'WD, matched', 'baseline, matched',
      'NAR - baseline, matched [95 %]',
    ],
    rows,
  )  # fmt: skip


def _by_bound(runs):
  """Yields the bounds, the smallest first, with the cells of each."""
  for bound in (*study.SMALL_BOUNDS, study.chosen_settings('cifar10')['max_norm']):
    yield bound, claims.Cells([run for run in runs if run.identity['max_norm'] == bound])


def claims_table(found: Sequence[claims.Claim]) -> str:
  """Returns the claims with their verdicts."""
  rows = [[c.name, c.text, f'**{c.verdict}**', c.because] for c in found]
  return _markdown(['', 'claim', 'verdict', 'numbers'], rows)


def progress(records: Mapping[str, Any]) -> str:
  """Returns how far each stage is."""
  rows = []
  for stage in study.COUNTING_STAGES:
    names = study.runs([stage])
    rows.append([_STAGE_TITLES[stage], f'{sum(name in records for name in names)} of {len(names)}'])
  counting = [name for name in study.runs(study.COUNTING_STAGES) if name in records]
  versions = sorted({str(records[name]['version']) for name in counting})
  text = _markdown(['stage', 'runs done'], rows)
  versions_text = f'Versions of the code: {", ".join(versions) or "none yet"}.'
  return f'{text}\n\n{versions_text} {processors(records)} {unlike_pairs(records)}'


def processors(records: Mapping[str, Any]) -> str:
  """Returns a sentence on the processors that the runs, those of the pilot too, were run on."""
  found = collections.Counter(_processor(record.get('processor')) for record in records.values())
  unknown = found.pop(None, 0)
  parts = [f'{text}: {_runs(number)}' for text, number in sorted(found.items())]
  parts += [f'not kept: {_runs(unknown)}'] if unknown else []
  return (
    'Processors, with the last vector extension of each that oneDNN chooses its code by (another '
    f'one may give other last bits), the pilot included: {"; ".join(parts) or "none yet"}.'
  )


def _processor(processor: Mapping[str, Any] | None) -> str | None:
  if processor is None:
    return None
  extensions = processor['extensions']
  last = 'not known' if extensions is None else (extensions or ['none'])[-1]
  return f'{processor["name"]} ({last})'


def unlike_pairs(records: Mapping[str, Any]) -> str:
  """Returns a sentence on pairs whose baseline and NAR have another version or processor."""
  pairs = collections.defaultdict(dict)
  for name in study.runs(study.COUNTING_STAGES):
    if name in records:
      settings = dict(records[name]['settings'])
      optimizer = settings.pop('client_optimizer')
      pairs[tuple(sorted(settings.items()))][optimizer] = name
  unlike = []
  for pair in pairs.values():
    made = {
      optimizer: (records[name]['version'], _processor(records[name].get('processor')))
      for optimizer, name in pair.items()
    }
    if len(set(made.values())) > 1:
      text = ', '.join(
        f'{tables.optimizer_title(o)} {v} on {p or "a processor that was not kept"}'
        for o, (v, p) in made.items()
      )
      unlike.append(f'`{pair["nar"].rpartition("/")[2]}` ({text})')
  if not unlike:
    return 'Baseline and NAR of each pair have one version and one kind of processor.'
  return f'Not of one version and one kind of processor are the pairs of {"; ".join(unlike)}.'


def _runs(number: int) -> str:
  return '1 run' if number == 1 else f'{number} runs'


def choices(records: Mapping[str, Any], pilot_name: str) -> dict[str, float] | None:
  """Returns what follows from a pilot by the protocol's rules, or None if nothing does yet.

  By name: `learning_rate`, `max_norm`, and the server's rate of each algorithm that has one.
  """
  pilot = study.PILOTS[pilot_name]
  rates, servers, bounds = (study.runs([stage]) for stage in pilot.stages())
  if any(name not in records for name in (*rates, *servers, *bounds)):
    return None

  def best(setting, runs, cell):
    """Returns the best value of a setting among the runs of a cell."""
    found = [
      (records[name]['final_test_accuracy'], settings[setting])
      for name, settings in runs.items()
      if not records[name]['diverged'] and cell.items() <= settings.items()
    ]
    return max(found, default=(None, None))[1]  # None if all of them diverged.

  enough = [
    settings['max_norm']
    for name, settings in bounds.items()
    if claims.clipped_share(results.to_run(records[name])) <= study.PILOT_CLIPPED_SHARE
  ]
  chosen = {
    'learning_rate': best('learning_rate', rates, pilot.cell('fed_avg', 'sgd')),
    'max_norm': min(enough, default=max(pilot.bounds)),
    **{a: best('server_learning_rate', servers, pilot.cell(a, 'sgd')) for a in pilot.server_rates},
  }
  return None if None in chosen.values() else chosen


def pilot(records: Mapping[str, Any], pilot_name: str) -> str:
  """Returns what a pilot found, and what follows from it by the protocol's rules."""
  tried = study.PILOTS[pilot_name]
  runs, rows = study.runs(tried.stages()), []
  columns = {
    'alpha': 'alpha', 'lr': 'learning_rate', 'server lr': 'server_learning_rate', 'A': 'max_norm',
    'rounds': 'total_rounds',
  }  # fmt: skip
  if len({settings.get('alpha') for settings in runs.values()}) == 1:
    del columns['alpha']
  for name, settings in runs.items():
    if name not in records:
      continue
    record = records[name]
    accuracy = 'diverged' if record['diverged'] else f'{100 * record["final_test_accuracy"]:.2f}'
    rates = [grouping.text(settings.get(setting)) for setting in columns.values()]
    title = grouping.algorithm_title(settings['algorithm'])
    clipped = claims.clipped_share(results.to_run(record))
    rows.append([title, *rates, accuracy, f'{100 * clipped:.1f}'])
  found = choices(records, pilot_name)
  if found is None:
    done = sum(name in records for name in runs)
    text = f'{done} of {len(runs)} runs of the pilot are there. Nothing is chosen yet.'
    if done == len(runs):
      text = 'Nothing is chosen: all rates of one kind diverged.'
  else:
    servers = ', '.join(f'{grouping.algorithm_title(a)} {found[a]:g}' for a in tried.server_rates)
    text = (
      f'So the learning rate is {found["learning_rate"]:g}, A = {found["max_norm"]:g}, and the '
      f"server's rates are {servers}."
    )
  table = _markdown(['algorithm', *columns, 'accuracy, held out', 'clipped %'], rows)
  return f'{table}\n\n{text}'


def blocks(
  records: Mapping[str, Mapping[str, Any]], seconds: Sequence[tuple[float, float]] = ()
) -> dict[str, str]:
  """Returns the text of each part of the page that is made from results.

  Args:
    records: The finished runs by name.
    seconds: Of rounds with NAR and with the baseline, as `claims.judge_cost` takes them.
  """
  runs = _stage_runs(records, study.STAGES)
  cells = claims.Cells(runs)
  resnet_runs = _stage_runs(records, study.RESNET_STAGES)
  resnet_cells = claims.Cells(resnet_runs)
  return {
    VERDICTS: claims_table(claims.judge_all(runs, seconds)),
    RESNET_VERDICTS: claims_table(claims.judge_cifar10(resnet_runs)),
    'progress': progress(records),
    **{tried.prefix: pilot(records, name) for name, tried in study.PILOTS.items()},
    'table1': table1(cells),
    'table2': table2(cells),
    'weight_decay': weight_decays(cells, paper.CIFAR10, [study.MAIN_SETTING]),
    'other_settings': weight_decays(cells, ['fed_avg'], study.OTHER_SETTINGS),
    'resnet18_weight_decay': weight_decays(
      resnet_cells, study.DECAY_ALGORITHMS, [study.MAIN_SETTING]
    ),
    'resnet18_best': best_by_algorithm(resnet_cells),
    'resnet18_table1': table1(resnet_cells),
    'resnet18_other_settings': weight_decays(resnet_cells, ['fed_avg'], study.OTHER_SETTINGS),
    'precision': precision(cells, claims.Cells(_stage_runs(records, ['precision']))),
    'bounds': bounds(_stage_runs(records, ['bounds'])),
    'best_by_bound': best_by_bound(_stage_runs(records, ['bounds'])),
    'matched_decays': matched_decays(
      _stage_runs(records, ['bounds']), _stage_runs(records, ['matched_decays'])
    ),
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


_plot_cifar10_differences = functools.partial(
  figures.plot_differences,
  published=lambda s: paper.CIFAR10[s['algorithm']][s['alpha']],
  guess=claims.GUESS['cifar10'] / 100,
)
_plot_shakespeare_differences = functools.partial(
  figures.plot_differences,
  published=lambda s: paper.SHAKESPEARE[s['algorithm']][s['weight_decay']],
  guess=claims.GUESS['shakespeare'] / 100,
)


def draw(records: Mapping[str, Mapping[str, Any]], folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws the figures for which there are runs."""
  wanted = {
    'study_differences': (_plot_cifar10_differences, ['table1']),
    'study_differences_shakespeare': (_plot_shakespeare_differences, ['table2']),
    'study_curves': (figures.plot_curves, ['table1']),
    'study_clipping': (figures.plot_clipping, ['table1']),
    'study_weight_decay': (figures.plot_weight_decay, ['weight_decay', 'other_settings']),
    'study_bounds': (figures.plot_weight_decay, ['bounds']),
    'study_differences_resnet18': (_plot_cifar10_differences, ['resnet18_table1']),
    'study_clipping_resnet18': (figures.plot_clipping, ['resnet18_table1']),
    'study_weight_decay_resnet18': (
      figures.plot_weight_decay,
      ['resnet18_weight_decay', 'resnet18_other_settings'],
    ),
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


def write(
  records: Mapping[str, Mapping[str, Any]],
  seconds: Sequence[tuple[float, float]],
  docs: pathlib.Path,
) -> None:
  """Fills the page in a folder, and the README beside the folder, and draws the figures.

  Args:
    records: As `blocks` takes them.
    seconds: Alike.
    docs: The folder.

  Raises:
    UsageError: If there is no page, or a block has no place on it.
  """
  path = docs / PAGE
  if not path.is_file():
    raise UsageError(f'{path} is missing: the page with the protocol, which is written by hand.')
  made, written = blocks(records, seconds), [path]
  path.write_text(fill(path.read_text(), made))
  readme = docs.parent / README
  if readme.is_file():
    readme.write_text(fill(readme.read_text(), {VERDICTS: made[VERDICTS]}))
    written.append(readme)
  written += draw(records, docs / 'images')
  print('written: ' + ', '.join(map(str, written)))
