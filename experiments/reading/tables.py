"""Tables and figures of many runs, in the form of the paper."""

import collections
import csv
import io
import math

from experiments.definition import catalogue, presets
from experiments.reading import figures as plots
from experiments.reading import runs as results

_DIMENSIONS = {'alpha': 'alpha', 'local_steps': 'steps', 'weight_decay': 'WD'}


class Experiment:
  """Runs that belong into one table: alike but for algorithm, optimizer, seed and the dimensions of the table."""

  def __init__(self, runs):
    self.runs = [run for run in runs if run.is_finished]
    self.num_unfinished = len(runs) - len(self.runs)
    self.task = runs[0].settings['task']
    self.algorithms = [
      a for a in catalogue.ALGORITHMS if any(r.settings['algorithm'] == a for r in runs)
    ]
    # A dimension is worth a column if an algorithm has more than one value of it.
    self.dimensions = [
      d
      for d in _DIMENSIONS
      if any(
        len({r.settings.get(d) for r in runs if r.settings['algorithm'] == a}) > 1
        for a in self.algorithms
      )
    ]
    self.conditions = sorted({self.condition(run) for run in runs})

  def condition(self, run):
    return tuple(run.settings.get(d) for d in self.dimensions)

  def condition_text(self, condition):
    return ', '.join(f'{_DIMENSIONS[d]} {v:g}' for d, v in zip(self.dimensions, condition)) or 'all'

  def cell(self, algorithm, condition, optimizer):
    """Returns the finished runs of a cell, one for each seed."""
    return [
      run
      for run in self.runs
      if run.settings['algorithm'] == algorithm
      and run.settings['client_optimizer'] == optimizer
      and self.condition(run) == condition
    ]

  def title(self):
    s = self.runs[0].settings if self.runs else {}
    constants = [
      f'{_DIMENSIONS[d]} {s[d]:g}'
      for d in _DIMENSIONS
      if d not in self.dimensions and s.get(d) is not None
    ]
    parts = [
      self.task,
      str(s.get('model') or 'default model'),
      *constants,
      f'{s.get("clients_per_round")} clients a round',
      f'{s.get("total_rounds")} rounds',
    ]
    if s.get('max_norm') is not None:
      parts.append(f'A = {s["max_norm"]:g}')
    text = ', '.join(parts)
    return f'Reduced setting: {text}' if s and presets.is_reduced(s) else text


def split_into_experiments(runs):
  """Returns the runs that belong together, in the order in which they were found."""
  apart = (
    'task',
    'model',
    'num_clients',
    'clients_per_round',
    'batch_size',
    'total_rounds',
    'max_norm',
    'partition',
  )
  groups = collections.defaultdict(list)
  for run in runs:
    groups[tuple(str(run.settings.get(name)) for name in apart)].append(run)
  return [Experiment(group) for group in groups.values()]


def percent(spread):
  """Returns mean and deviation of an accuracy as text."""
  if spread is None:
    return 'missing'
  deviation = '' if math.isnan(spread.deviation) else f' +- {100 * spread.deviation:.2f}'
  return f'{100 * spread.mean:.2f}{deviation} ({spread.count})'


def interval(spread):
  """Returns a difference and its confidence interval as text."""
  if spread is None:
    return 'missing'
  text = f'{100 * spread.mean:+.2f}'
  if not math.isnan(spread.half_width):
    text += f' [{100 * (spread.mean - spread.half_width):+.2f}, {100 * (spread.mean + spread.half_width):+.2f}]'
  return text


def table_rows(experiment, statistic):
  """Returns the header and the rows of a table, all texts."""
  header = [
    'algorithm',
    'condition',
    'baseline',
    'NAR',
    'NAR - baseline [95 % CI]',
    'paper: baseline, NAR',
  ]
  rows = []
  for algorithm in experiment.algorithms:
    for condition in experiment.conditions:
      cells = {o: experiment.cell(algorithm, condition, o) for o in ('clip', 'nar')}
      spreads = {
        o: results.spread([a for r in runs if (a := r.accuracy(statistic)) is not None])
        for o, runs in cells.items()
      }
      settings = next((runs[0].settings for runs in cells.values() if runs), {})
      published = presets.published(settings) if settings else None
      rows.append([
        catalogue.ALGORITHMS[algorithm].title,
        experiment.condition_text(condition),
        percent(spreads['clip']),
        percent(spreads['nar']),
        interval(results.paired_difference(cells['clip'], cells['nar'], statistic)),
        '{:.2f}, {:.2f}'.format(*published) if published else '-',
      ])  # fmt: skip
  return header, rows


def format_table(header, rows, style):
  """Returns a table as text."""
  if style == 'csv':
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator='\n').writerows([header, *rows])
    return buffer.getvalue()
  if style == 'latex':

    def escape(text):
      return text.replace('%', r'\%').replace('+-', r'$\pm$')

    lines = [' & '.join(map(escape, row)) + r' \\' for row in rows]
    head = ' & '.join(map(escape, header)) + r' \\'
    return '\n'.join(
      [
        r'\begin{tabular}{' + 'l' * len(header) + '}',
        r'\toprule',
        head,
        r'\midrule',
        *lines,
        r'\bottomrule',
        r'\end{tabular}',
        '',
      ]
    )
  if style == 'markdown':
    lines = ['| ' + ' | '.join(header) + ' |', '|' + ' --- |' * len(header)]
    return '\n'.join([*lines, *('| ' + ' | '.join(row) + ' |' for row in rows), '']).replace(
      '+-', '±'
    )
  widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
  lines = [
    '  '.join(text.ljust(w) for text, w in zip(row, widths)).rstrip() for row in [header, *rows]
  ]
  return '\n'.join([lines[0], '-' * len(lines[0]), *lines[1:], '']).replace('+-', '±')


def figures_of(experiment, names, statistic, title=None):
  """Yields the name and the figure of each figure that the runs have anything for."""
  title = title or experiment.title()
  runs = experiment.runs
  if 'curves' in names:
    groups = {}
    for algorithm in experiment.algorithms:
      for condition in experiment.conditions:
        lines = {o: experiment.cell(algorithm, condition, o) for o in ('clip', 'nar', 'sgd')}
        lines = {o: found for o, found in lines.items() if found}
        if lines:
          groups[algorithm, experiment.condition_text(condition)] = lines
    yield 'curves', plots.plot_curves(groups, title)
  decays = {run.settings['weight_decay'] for run in runs}
  if len(decays) > 1:
    by_decay = collections.defaultdict(
      lambda: collections.defaultdict(lambda: collections.defaultdict(list))
    )
    by_algorithm = collections.defaultdict(lambda: collections.defaultdict(list))
    for run in runs:
      s = run.settings
      setting = ', '.join(
        f'{_DIMENSIONS[d]} {s[d]:g}' for d in ('alpha', 'local_steps') if s.get(d) is not None
      )
      by_decay[setting][s['algorithm'], s['client_optimizer']][s['weight_decay']].append(run)
      by_algorithm[s['algorithm']][s['weight_decay'], s['client_optimizer']].append(run)
    if 'weight_decay' in names:
      yield 'weight_decay', plots.plot_weight_decay(by_decay, title, statistic)
    if 'robustness' in names:
      yield 'robustness', plots.plot_robustness(by_algorithm, title)
  if 'clipping' in names:
    by_condition = collections.defaultdict(lambda: collections.defaultdict(list))
    for run in runs:
      condition = experiment.condition_text(experiment.condition(run))
      by_condition[condition][run.settings['algorithm'], run.settings['client_optimizer']].append(
        run
      )
    yield 'clipping', plots.plot_clipping(by_condition, title)
