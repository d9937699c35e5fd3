# SPDX-License-Identifier: Apache-2.0
r"""Makes tables and figures of run directories, in the form of the paper.

  python -m experiments.report --runs=runs/cpu --output_dir=reports/cpu
  python -m experiments.report --runs=runs/cpu --table=cifar10 --variant=cpu

prints a table for each task and writes it as Markdown, LaTeX and CSV, with the figures as PNG and
PDF. Settings that are equal in all runs are the title, settings that vary are columns; a cell is
the mean over seeds and their standard deviation. Beside baseline and NAR stand their paired
difference by seed with a 95 % confidence interval, and the paper's two numbers where the settings
are of its kind. With --table, the table has the paper's layout, and only its cells. --format=html
is one file with all of it, report.html in --output_dir or what is printed: tables, figures,
settings, runs, partition, clipping; it loads nothing from a network.
"""

import functools
import pathlib
import sys

from absl import flags

from experiments import command_line
from experiments.definition import help_text, presets
from experiments.definition import settings as settings_lib
from experiments.reading import grouping, runs, tables

_RUNS = flags.DEFINE_list(
  'runs', ['runs'], 'Folders in which run directories are looked for, at any depth.'
)
_TABLE = flags.DEFINE_enum(
  'table', None, list(presets.TABLES), "One of the paper's tables, instead of all runs."
)
_VARIANT = flags.DEFINE_enum(
  'variant', None, list(presets.VARIANTS), "The table's variant; all that have runs unless given."
)
_STATISTIC = flags.DEFINE_enum(
  'statistic', 'final', list(runs.STATISTICS),
  'Which accuracy of a run: of the last evaluation, the best, or the mean of the last ten.',
)  # fmt: skip
_FORMAT = flags.DEFINE_enum(
  'format',
  'terminal',
  [*tables.STYLES, tables.HTML],
  'How the table is printed; html is a page with everything.',
)
_FIGURES = flags.DEFINE_list(
  'figures', list(presets.FIGURES), 'Which figures are made; also: partition.'
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Where tables and figures are written; without it, the table is only printed.'
)
_GROUPS = {
  'Which runs': ('runs', 'table', 'variant', 'statistic'),
  'As what, and where to': ('format', 'figures', 'output_dir'),
  'Of this command': ('debug',),
}


def check_flags():
  """Raises a `UsageError` if something was given that means nothing."""
  runs.check_folders(_RUNS.value)
  for name in _FIGURES.value:
    if name not in (*presets.FIGURES, 'partition'):
      raise settings_lib.UsageError(
        f'--figures={name} is unknown; allowed are {", ".join(presets.FIGURES)} and partition.'
      )
  if flags.FLAGS['figures'].present and _OUTPUT_DIR.value is None and _FORMAT.value != tables.HTML:
    raise settings_lib.UsageError('--figures needs --output_dir, the folder that they go to.')
  if _VARIANT.value and not _TABLE.value:
    raise settings_lib.UsageError(
      f'--variant={_VARIANT.value} means nothing without --table; it takes '
      f'{", ".join(presets.TABLES)}.'
    )


def read_runs():
  """Returns the runs; says which cannot be read, and goes on without them."""
  found, problems = runs.find_runs(_RUNS.value)
  for problem in problems:
    print(f'report: left out: {problem}.', file=sys.stderr)
  if not any(run.is_finished or run.has_diverged for run in found):
    raise settings_lib.UsageError(
      f'no finished run in {", ".join(_RUNS.value)}; `python -m experiments.train` makes one.'
    )
  return found, len(problems)


def make_tables(found):
  """Yields a name, a table and its experiment: of the paper's table, or of each task."""
  statistic = _STATISTIC.value
  if not _TABLE.value:
    for number, experiment in enumerate(grouping.split_into_experiments(found), 1):
      yield str(number), tables.results_table(experiment, statistic), experiment
    return
  variants = [_VARIANT.value] if _VARIANT.value else presets.VARIANTS
  chosen = {v: tables.select(_TABLE.value, v, found) for v in variants}
  if not any(chosen.values()):
    raise settings_lib.UsageError(
      f'no run in {", ".join(_RUNS.value)} is a cell of table {_TABLE.value} in variant '
      f'{" or ".join(variants)}; `python -m experiments.sweep --table={_TABLE.value}` makes them.'
    )
  for variant, cells in chosen.items():
    if cells:
      grouping.check_no_duplicates(cells)
      table = tables.paper_table(_TABLE.value, variant, cells, statistic)
      yield f'_{_TABLE.value}_{variant}', table, grouping.Experiment(cells)


def write(name, table, experiment):
  """Writes a table in all formats, and its figures."""
  from experiments.reading import drawing, figures  # Only now: without figures, nothing is drawn.

  folder = pathlib.Path(_OUTPUT_DIR.value)
  folder.mkdir(parents=True, exist_ok=True)
  written = []
  for style, suffix in tables.STYLES.items():
    if suffix:
      written.append(folder / f'table{name}.{suffix}')
      written[-1].write_text(tables.format_table(table, style))
  for figure, plot in figures.FIGURES.items():
    if figure in _FIGURES.value:
      pages = plot(experiment, table.title, _STATISTIC.value)
      if pages:
        written += drawing.save(pages, folder / f'{figure}{name}')
      elif flags.FLAGS['figures'].present:
        print(f'report: no runs for the figure {figure} in: {table.title}.', file=sys.stderr)
  if 'partition' in _FIGURES.value:
    written += draw_partitions(experiment, folder / f'partition{name}')
  print('written: ' + ', '.join(map(str, written)) + '\n')


def splits(experiment):
  """Returns the first run of each kind of split, with what that is in words."""
  names = ('num_clients', 'partition', 'alpha')
  by_split = {}
  for run in experiment.runs:
    by_split.setdefault(tuple((name, run.identity.get(name)) for name in names), run)
  return {grouping.describe(split): run for split, run in by_split.items()}


def draw_partition(run, target):
  """Draws who holds which classes, by the data and the seed of a run."""
  from experiments.running import tensorflow_import  # Only here: a report needs no TensorFlow.

  tensorflow_import.import_tensorflow()
  import fednar_tff
  from experiments.running import building

  try:
    building.draw_partition(run.path, target)
  except (KeyError, ValueError, fednar_tff.tasks.DataError) as e:
    raise settings_lib.UsageError(f'--figures=partition: no picture for {run.path}: {e}') from e


def draw_partitions(experiment, stem):
  """Draws each kind of split once."""
  written = []
  for number, run in enumerate(splits(experiment).values(), 1):
    suffix = '' if number == 1 else f'_page{number}'
    written.append(stem.with_name(f'{stem.name}{suffix}.png'))
    draw_partition(run, written[-1])
  return written


def make_section(name, table, experiment):
  """Returns a part of the page: a table, its figures, its partitions, its runs."""
  from experiments.reading import drawing, figures, html_page, listing

  drawn = {}
  for figure, plot in figures.FIGURES.items():
    if figure in _FIGURES.value:
      pages = plot(experiment, table.title, _STATISTIC.value)
      drawn[figure] = [
        drawing.to_svg(page.savefig, f'{figure}{name}{i}') for i, page in enumerate(pages)
      ]
  if 'partition' in _FIGURES.value or not flags.FLAGS['figures'].present:
    drawn['partition'] = []
    for number, (split, run) in enumerate(splits(experiment).items()):
      try:
        draw = functools.partial(draw_partition, run)
        drawn['partition'].append(drawing.to_svg(draw, f'partition{name}{number}'))
      except settings_lib.UsageError as e:
        if flags.FLAGS['figures'].present:
          raise
        table.notes.append(f'No picture of the partition ({split}): {e}')
  return html_page.Section(table, drawn, experiment.constants, listing.list_table(experiment.runs))


def write_page(sections):
  """Writes or prints the page."""
  from experiments.reading import html_page

  text = html_page.make(sections)
  if _OUTPUT_DIR.value is None:
    print(text, end='')
    return
  path = pathlib.Path(_OUTPUT_DIR.value) / 'report.html'
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_suffix('.html_temp')
  temporary.write_text(text, encoding='utf-8')
  temporary.replace(path)
  print(f'written: {path}')


def main():
  check_flags()
  found, num_damaged = read_runs()
  sections = []
  for name, table, experiment in list(make_tables(found)):
    if num_damaged:
      table.notes.append(f'Left out because they cannot be read: {num_damaged}.')
    if _FORMAT.value == tables.HTML:
      sections.append(make_section(name, table, experiment))
      continue
    if _FORMAT.value != 'markdown':  # Which has them in itself.
      print('\n'.join([table.title, *table.notes, '']))
    print(tables.format_table(table, _FORMAT.value))
    if _OUTPUT_DIR.value is not None:
      try:
        write(name, table, experiment)
      except OSError as e:
        raise settings_lib.UsageError(f'--output_dir={_OUTPUT_DIR.value}: {e.strerror}.') from e
  if sections:
    try:
      write_page(sections)
    except OSError as e:
      raise settings_lib.UsageError(f'--output_dir={_OUTPUT_DIR.value}: {e.strerror}.') from e


if __name__ == '__main__':
  command_line.run('report', main, help_text=lambda: help_text.grouped(__doc__, _GROUPS))
