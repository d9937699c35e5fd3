# SPDX-License-Identifier: Apache-2.0
"""Tables of many runs: of any that were found, and those of the paper in its own layout."""

import csv
import dataclasses
import io
import math
import pathlib
import re
from collections.abc import Iterable, Sequence

from experiments.definition import catalogue, presets
from experiments.reading import grouping
from experiments.reading.runs import Run, Spread, accuracy, paired_difference

STYLES = {'terminal': None, 'markdown': 'md', 'latex': 'tex', 'csv': 'csv'}
HTML = 'html'  # Of a report: one file with everything, see html_page.py.
_PAIR = ('clip', 'nar')  # Baseline and NAR.
_DIFFERENCE, _PAPER = 'NAR - baseline', 'paper'


@dataclasses.dataclass(frozen=True)
class Table:
  """A table, all texts.

  Attributes:
    title: What all of its runs share.
    notes: Sentences that belong under the title.
    header: The names of the columns.
    rows: The rows.
    num_labels: How many of the first columns say what a row is.
    has_blocks: Whether labels are printed once for the rows that share them.
  """

  title: str
  notes: list[str]
  header: list[str]
  rows: list[list[str]]
  num_labels: int
  has_blocks: bool = False


def cell_text(runs: Sequence[Run], statistic: str) -> str:
  """Returns mean, deviation and number of seeds of a cell, and what else there is to say of it."""
  spread = accuracy(runs, statistic)
  diverged = sum(run.has_diverged for run in runs)
  if spread is None:
    if diverged:
      return f'diverged ({diverged})'
    return 'unfinished' if runs else 'missing'
  deviation = '' if math.isnan(spread.deviation) else f' ± {100 * spread.deviation:.2f}'
  text = f'{100 * spread.mean:.2f}{deviation} ({spread.count})'
  return f'{text}, {diverged} of {spread.count + diverged} diverged' if diverged else text


def interval_text(spread: Spread | None) -> str:
  """Returns a difference and its confidence interval."""
  if spread is None:
    return '-'
  text = f'{100 * spread.mean:+.2f}'
  if not math.isnan(spread.half_width):
    low, high = (100 * (spread.mean + sign * spread.half_width) for sign in (-1, 1))
    text += f' [{low:+.2f}, {high:+.2f}]'
  return text


def optimizer_title(name: str) -> str:
  return catalogue.CLIENT_OPTIMIZERS[name].title


def results_table(experiment: grouping.Experiment, statistic: str) -> Table:
  """Returns the table of an experiment: a row for each algorithm and condition that has a run."""
  with_sgd = any(run.identity['client_optimizer'] == 'sgd' for run in experiment.runs)
  optimizers = grouping.OPTIMIZERS if with_sgd else grouping.OPTIMIZERS[:2]
  numbers = [_published(experiment, *row) for row in experiment.rows]
  header = ['algorithm', *map(grouping.header, experiment.columns)]
  header += [*map(optimizer_title, optimizers), f'{_DIFFERENCE} [95 % CI]']
  header += ['paper: baseline, NAR'] if any(numbers) else []
  rows = []
  for (algorithm, condition), number in zip(experiment.rows, numbers):
    cells = {o: experiment.cell(algorithm, condition, o) for o in optimizers}
    row = [grouping.algorithm_title(algorithm), *map(grouping.text, condition)]
    row += [cell_text(runs, statistic) for runs in cells.values()]
    row.append(interval_text(paired_difference(cells['clip'], cells['nar'], statistic)))
    if any(numbers):
      row.append('{:.2f}, {:.2f}'.format(*number) if number else '-')
    rows.append(row)
  notes = [_explain(statistic), *experiment.notes(), *grouping.notes_on(experiment.runs)]
  return Table(experiment.title(), notes, header, rows, 1 + len(experiment.columns))


def _published(experiment, algorithm, condition):
  """Returns the paper's numbers for a row, if baseline or NAR ran at its settings."""
  runs = [run for o in _PAIR for run in experiment.cell(algorithm, condition, o)]
  return presets.published(runs[0].identity) if runs else None


def _explain(statistic):
  return (
    f'Test accuracy in % ({statistic}), mean ± standard deviation (number of seeds); the '
    'difference '
    'is paired by seed.'
  )


def select(name: str, variant: str, runs: Iterable[Run]) -> list[Run]:
  """Returns the runs that are cells of one of the paper's tables."""
  wanted = {run.key for run in _placeholders(name, variant)}
  return [run for run in runs if run.key in wanted]


def _placeholders(name, variant):
  """Returns the cells of a table as runs that have not begun."""
  cells = presets.cells(table=name, variant=variant)
  return [Run(pathlib.Path(path), settings, [], False) for path, settings in cells.items()]


def paper_table(name: str, variant: str, runs: Sequence[Run], statistic: str) -> Table:
  """Returns one of the paper's tables: a block for each algorithm, two columns for each setting."""
  layout = grouping.Experiment(_placeholders(name, variant))
  labels = [column for column in layout.columns if column not in layout.axes]
  header = ['algorithm', *map(grouping.header, labels), '']
  settings = {layout.part(condition, layout.axes): None for _, condition in layout.rows}
  header += [f'{grouping.describe(s)}: {optimizer_title(o)}' for s in settings for o in _PAIR]
  rows = []
  for algorithm in layout.algorithms:
    conditions = [condition for a, condition in layout.rows if a == algorithm]
    first = [grouping.algorithm_title(algorithm)]
    first += [grouping.text(value) for _, value in layout.part(conditions[0], labels)]
    for line, texts in _paper_block(layout, algorithm, conditions, runs, statistic).items():
      rows.append([*first, line, *texts])
  notes = [_explain(statistic), *layout.notes(), *grouping.notes_on(runs)]
  if not any(_PAPER in row for row in rows):
    notes.append("The paper's numbers are left out: no cell has its local steps, split and decay.")
  title = f'Table {name}, variant {variant}. {layout.title()}'
  return Table(title, notes, header, rows, 2 + len(labels), has_blocks=True)


def _paper_block(layout, algorithm, conditions, runs, statistic):
  """Returns the lines of an algorithm: what was measured, the differences, the paper's numbers."""
  block = {'measured': [], _DIFFERENCE: [], _PAPER: []}
  for condition in conditions:
    cells = [layout.cell(algorithm, condition, optimizer)[0] for optimizer in _PAIR]
    found = [[run for run in runs if run.key == cell.key] for cell in cells]
    number = presets.published(cells[0].identity)
    block['measured'] += [cell_text(f, statistic) for f in found]
    block[_DIFFERENCE] += ['', interval_text(paired_difference(*found, statistic))]
    block[_PAPER] += [f'{n:.2f}' for n in number] if number else ['-', '-']
  if set(block[_PAPER]) == {'-'}:
    del block[_PAPER]
  return block


def format_table(table: Table, style: str) -> str:
  """Returns a table in one of `STYLES`; as Markdown with its title and notes."""
  header, rows = table.header, table.rows
  if style == 'csv':
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator='\n').writerows([header, *rows])
    return buffer.getvalue().replace('±', '+-')
  if table.has_blocks:
    rows = _without_repeated_labels(rows, table.num_labels - 1)
  if style == 'latex':
    return _format_latex(header, rows)
  if style == 'markdown':
    lines = ['| ' + ' | '.join(row) + ' |' for row in [header, ['---'] * len(header), *rows]]
    return '\n'.join([f'**{table.title}**', '', *table.notes, '', *lines, ''])
  return _format_terminal(header, rows, table.num_labels)


def _without_repeated_labels(rows, num_labels):
  found, before = [], [None] * num_labels
  for row in rows:
    labels = row[:num_labels]
    found.append((labels if labels != before else [''] * num_labels) + row[num_labels:])
    before = labels
  return found


def _format_latex(header, rows):
  def line(row):
    texts = (re.sub(r'([%_&#])', r'\\\1', text).replace('±', r'$\pm$') for text in row)
    return ' & '.join(texts) + r' \\'

  return '\n'.join(
    [
      r'\begin{tabular}{' + 'l' * len(header) + '}', r'\toprule', line(header), r'\midrule',
      *map(line, rows), r'\bottomrule', r'\end{tabular}', '',
    ]
  )  # fmt: skip


def _format_terminal(header, rows, num_labels):
  columns = [list(column) for column in zip(header, *rows)]
  columns[num_labels:] = [[name, *_aligned(texts)] for name, *texts in columns[num_labels:]]
  widths = [max(map(len, column)) for column in columns]
  lines = [
    '  '.join(text.ljust(width) for text, width in zip(row, widths)).rstrip()
    for row in zip(*columns)
  ]
  return '\n'.join([lines[0], '-' * max(map(len, lines)), *lines[1:], ''])


def _aligned(texts):
  """Returns the texts of a column with the parts of its numbers under each other."""
  # A number, perhaps its deviation, perhaps the rest: '52.00 ± 2.00 (3)', '+5.00 [+2.52, +7.48]'.
  found = [re.fullmatch(r'([+-]?\d+\.\d+)(?: ± (\d+\.\d+))?(?: (.*))?', text) for text in texts]
  parts = [match.groups(default='') for match in found if match]
  if not parts:
    return texts
  mean, deviation, _ = (max(map(len, group)) for group in zip(*parts))
  lines = []
  for text, match in zip(texts, found):
    if match:
      m, d, rest = match.groups(default='')
      text = m.rjust(mean)
      if d or (deviation and rest.startswith('(')):
        text += f' ± {d.rjust(deviation)}' if d else ' ' * (3 + deviation)
      text = f'{text} {rest}'.rstrip()
    lines.append(text)
  return lines
