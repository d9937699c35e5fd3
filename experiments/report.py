r"""Makes tables and figures of run directories, in the form of the paper.

  python -m experiments.report --runs=runs/cpu --output_dir=reports/cpu

prints the table and writes it as Markdown, LaTeX and CSV, with the figures as PNG and PDF. A cell is the mean over seeds and their standard
deviation; beside baseline and NAR stand their paired difference by seed with a 95 % confidence interval, and the paper's two numbers.
"""

import pathlib
import sys

from absl import app, flags

from experiments.reading import figures as plots
from experiments.reading import runs as results
from experiments.reading import tables

_RUNS = flags.DEFINE_list(
  'runs', ['runs'], 'Folders in which run directories are looked for, at any depth.'
)
_STATISTIC = flags.DEFINE_enum(
  'statistic',
  'final',
  list(results.STATISTICS),
  'Which accuracy of a run: of the last evaluation, the best, or the mean of the last ten.',
)
_FORMAT = flags.DEFINE_enum(
  'format', 'terminal', ['terminal', 'markdown', 'latex', 'csv'], 'How the table is printed.'
)
_FIGURES = flags.DEFINE_list(
  'figures',
  ['curves', 'weight_decay', 'robustness', 'clipping'],
  'Which figures are made; also: partition.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Where tables and figures are written; without it, the table is only printed.'
)


def main(argv):
  if len(argv) > 1:
    sys.exit(f'report: {argv[1]!r} is not a flag; all arguments are --name=value.')
  runs = results.find_runs(_RUNS.value)
  if not any(run.is_finished for run in runs):
    sys.exit(
      f'report: no finished run in {", ".join(_RUNS.value)}; `python -m experiments.train` makes one.'
    )
  for number, experiment in enumerate(tables.split_into_experiments(runs), 1):
    header, rows = tables.table_rows(experiment, _STATISTIC.value)
    notes = f'Test accuracy in % ({_STATISTIC.value}), mean +- standard deviation (number of seeds).'.replace(
      '+-', '±'
    )
    if experiment.num_unfinished:
      notes += f' {experiment.num_unfinished} unfinished runs are left out.'
    print(f'{experiment.title()}\n{notes}\n')
    print(tables.format_table(header, rows, _FORMAT.value))
    if _OUTPUT_DIR.value is None or not experiment.runs:
      continue
    folder = pathlib.Path(_OUTPUT_DIR.value)
    folder.mkdir(parents=True, exist_ok=True)
    for style, suffix in (('markdown', 'md'), ('latex', 'tex'), ('csv', 'csv')):
      text = tables.format_table(header, rows, style)
      if style == 'markdown':
        text = f'**{experiment.title()}**\n\n{notes}\n\n{text}'
      (folder / f'table{number}.{suffix}').write_text(text)
    written = [folder / f'table{number}.md']
    for name, figure in tables.figures_of(experiment, _FIGURES.value, _STATISTIC.value):
      written += plots.save(figure, folder / f'{name}{number}')
    if 'partition' in _FIGURES.value:
      from experiments.running import building  # Only here: it imports TensorFlow.

      building.draw_partition(experiment.runs[0].path, folder / f'partition{number}.png')
      written.append(folder / f'partition{number}.png')
    print('written: ' + ', '.join(map(str, written)) + '\n')


if __name__ == '__main__':
  app.run(main)
