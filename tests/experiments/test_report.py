# SPDX-License-Identifier: Apache-2.0
"""Tables of runs that were written by hand, and the binary that makes them."""

import csv
import io
import shutil
import subprocess
import sys

import pytest
from PIL import Image

from experiments.definition import presets
from experiments.reading import grouping, runs, tables
from tests.experiments.command import ROOT, call
from tests.experiments.run_files import SETTINGS, write_run


def experiments_in(folder):
  return grouping.split_into_experiments(runs.find_runs([folder])[0])


def table_of(folder, statistic='final'):
  (experiment,) = experiments_in(folder)
  return tables.results_table(experiment, statistic)


def write_preset(folder, name, accuracies, seed=0, **settings):
  """Writes a run of a cell of the paper, without what it would be by default."""
  blank = dict.fromkeys(SETTINGS)
  return write_run(
    folder, accuracies, **{**blank, **presets.preset(name), 'seed': seed, **settings}
  )


def report(*arguments, cwd):
  return call(*arguments, module='experiments.report', cwd=cwd)


@pytest.fixture
def folder(tmp_path):
  found = tmp_path / 'runs'
  for seed, (baseline, nar) in enumerate([(0.50, 0.55), (0.52, 0.58), (0.54, 0.58)]):
    write_run(found, [0.1, None, baseline], client_optimizer='clip', seed=seed)
    write_run(found, [0.1, None, nar], seed=seed)
  write_run(found, [0.3, 0.2, 0.1], client_optimizer='clip', weight_decay=0.1)
  write_run(found, [0.1, 0.7, 0.6], algorithm='scaffold')
  write_run(found, [0.1], algorithm='scaffold', client_optimizer='clip', total_rounds=3)
  return found


def test_a_table_has_means_deviations_differences_and_missing_cells(folder):
  table = table_of(folder)
  assert table.header == ['algorithm', 'WD', 'baseline', 'NAR', 'NAR - baseline [95 % CI]']
  # The differences are 5, 6 and 4: their mean is 5, their deviation 1, and t(0.975, 2) / sqrt(3) =
  # 2.484.
  assert table.rows == [
    ['FedAvg', '0.01', '52.00 ± 2.00 (3)', '57.00 ± 1.73 (3)', '+5.00 [+2.52, +7.48]'],
    ['FedAvg', '0.1', '10.00 (1)', 'missing', '-'],
    ['SCAFFOLD', '0.01', 'unfinished', '60.00 (1)', '-'],
  ]
  assert table.notes[1:] == ['1 run is unfinished and left out.']
  assert table_of(folder, 'best').rows[2][3] == '70.00 (1)'


def test_learning_rates_are_no_seeds(tmp_path):
  # A grid of two rates, one seed: the differences are 0 and -0.56, not a mean of -9.31 over "two
  # seeds".
  for rate, baseline, nar in ((0.01, 0.1889, 0.1889), (0.1, 0.3750, 0.3694)):
    write_run(tmp_path, [baseline], learning_rate=rate, client_optimizer='clip')
    write_run(tmp_path, [nar], learning_rate=rate)
  assert table_of(tmp_path).rows == [
    ['FedAvg', '0.01', '18.89 (1)', '18.89 (1)', '+0.00'],
    ['FedAvg', '0.1', '37.50 (1)', '36.94 (1)', '-0.56'],
  ]


def test_seeds_are_paired_by_all_of_them(tmp_path):
  for split, baseline, nar in ((1, 0.1, 0.2), (2, 0.5, 0.8)):
    write_run(tmp_path, [baseline], client_optimizer='clip', partition_seed=split)
    write_run(tmp_path, [nar], partition_seed=split)
  write_run(tmp_path, [0.9], partition_seed=3)
  (row,) = table_of(tmp_path).rows
  assert row[1] == '30.00 ± 28.28 (2)' and row[3].startswith('+20.00 [')


def test_a_cell_says_which_seeds_diverged(tmp_path):
  for seed, accuracy in enumerate((0.5, 0.6)):
    write_run(tmp_path, [accuracy, accuracy], client_optimizer='clip', seed=seed)
    write_run(tmp_path, [0.7, 0.7], seed=seed)
  write_run(tmp_path, [0.1], client_optimizer='clip', seed=2, total_rounds=2, diverged=True)
  write_run(tmp_path, [0.8, 0.8], seed=2)
  write_run(tmp_path, [0.1], weight_decay=1.0, total_rounds=2, diverged=True)
  table = table_of(tmp_path)
  # The difference is over the two seeds that both sides have: 20 and 10 points.
  assert table.rows[0][2:4] == ['55.00 ± 7.07 (2), 1 of 3 diverged', '73.33 ± 5.77 (3)']
  assert table.rows[0][4].startswith('+15.00 [')
  assert table.rows[1][2:] == ['missing', 'diverged (1)', '-']
  assert '2 runs are marked as diverged' in table.notes[1] and 'other seeds' in table.notes[1]


def test_a_mixed_folder_has_separate_rows(tmp_path):
  cell = 'cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05'
  write_preset(tmp_path, f'paper/{cell}', [0.1, 0.11], total_rounds=2)
  write_preset(tmp_path, f'reference/{cell}', [0.2, 0.21], total_rounds=2)
  # The same cells once more, with another seed; the split's default is left to the task.
  write_preset(tmp_path, f'paper/{cell}', [0.1, 0.13], total_rounds=2, seed=1, alpha=None)
  more = {'paper/' + cell: {'total_rounds': 2}}
  ((name, base),) = more.items()
  write_preset(tmp_path, name, [0.3, 0.31], **base, learning_rate=0.05)
  write_preset(tmp_path, name, [0.4, 0.41], **base, local_steps=None, local_epochs=1)
  write_preset(tmp_path, name, [0.5, 0.51], **base, client_optimizer='sgd', max_norm=None)
  write_preset(tmp_path, name, [0.6, 0.61], **base, alpha=10.0)
  table = table_of(tmp_path)
  assert table.header[:-3] == [
    'algorithm',
    'alpha',
    'augmentation',
    'pooling',
    'client weighting',
    'lr',
    'first round decays',
    'norm epsilon',
    'steps',
    'epochs',
    'baseline',
    'NAR',
  ]
  text = ['0.3', 'per_image', 'global', 'uniform', '0.01', 'no', '0', '20', '-']
  released = ['0.3', 'per_batch', 'top_left', 'num_examples', '0.01', 'yes', '1e-06', '20', '-']

  def changed(**values):
    names = [
      'alpha',
      'augmentation',
      'pooling',
      'weighting',
      'lr',
      'first',
      'epsilon',
      'steps',
      'epochs',
    ]
    return [values.get(name, value) for name, value in zip(names, text)]

  expected = {
    tuple(text): ('12.00 ± 1.41 (2)', '51.00 (1)'),
    tuple(released): ('21.00 (1)', 'missing'),
    tuple(changed(lr='0.05')): ('31.00 (1)', 'missing'),
    tuple(changed(steps='-', epochs='1')): ('41.00 (1)', 'missing'),
    tuple(changed(alpha='10')): ('61.00 (1)', 'missing'),
  }
  assert {tuple(row[1:10]): tuple(row[11:13]) for row in table.rows} == expected
  # The paper's number stands beside its kind only: not beside epochs.
  numbers = {tuple(row[1:10]): row[-1] for row in table.rows}
  assert numbers.pop(tuple(changed(steps='-', epochs='1'))) == '-'
  assert numbers.pop(tuple(changed(alpha='10'))) == '89.45, 90.23'
  assert set(numbers.values()) == {'85.19, 87.64'}


@pytest.mark.parametrize(
  'preset, change, expected',
  [
    ('paper/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {}, (85.19, 87.64)),
    ('cpu/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {}, (85.19, 87.64)),
    ('cpu/cifar10_fed_avg_clip_alpha0.3_steps5_wd0.05', {}, None),
    ('cpu/cifar10_fed_avg_clip_alpha0.3_steps20_wd0.1', {}, None),
    ('cpu/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {'partition': 'iid'}, None),
    ('cpu/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {'weight_decay_decay': 0.9}, None),
    ('paper/cifar10_fed_prox_nar_alpha0.3_steps20_wd0.05', {'proximal_strength': 1.0}, None),
    ('paper/cifar10_fed_adam_nar_alpha0.3_steps20_wd0.01', {'server_learning_rate': 1.0}, None),
    ('paper/shakespeare_scaffold_nar_wd0.0001', {}, (47.55, 45.60)),
    ('reference/shakespeare_scaffold_nar_wd0.0001', {}, (47.55, 45.60)),
    ('cpu/shakespeare_scaffold_nar_wd0.0001', {}, None),  # 10 steps, not 100 and not 5 epochs.
  ],
)
def test_the_papers_number_stands_beside_its_own_kind_only(preset, change, expected):
  assert presets.published({**presets.preset(preset), **change}) == expected


@pytest.mark.parametrize(
  'preset, change, expected',
  [
    ('paper/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {}, False),
    (
      'paper/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05',
      {'model': None, 'num_clients': None},
      False,
    ),
    ('paper/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {'total_rounds': 999}, True),
    ('paper/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {'model': 'cnn'}, True),
    ('paper/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {'batch_size': 20}, True),
    ('reference/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {}, False),
    ('reference/cifar10_fed_adam_nar_alpha0.3_steps20_wd0.01', {}, False),
    ('reference/cifar10_fed_adam_nar_alpha0.3_steps20_wd0.01', {'total_rounds': 300}, True),
    ('paper/cifar10_fed_adam_nar_alpha0.3_steps20_wd0.01', {'total_rounds': 301}, True),
    ('reference/shakespeare_fed_prox_nar_wd0.001', {}, False),
    ('cpu/shakespeare_fed_prox_nar_wd0.001', {}, True),
  ],
)
def test_only_what_is_smaller_than_published_is_called_reduced(preset, change, expected):
  assert presets.is_reduced({**presets.preset(preset), **change}) == expected


def test_the_title_has_what_all_runs_share_and_says_reduced(folder, tmp_path):
  assert (
    table_of(folder).title
    == 'Reduced setting: cifar10, cnn, 100 clients, alpha 0.3, lr 0.01, A = 1, 20 steps, batch '
    '50, 3 rounds, 10 clients a round'
  )
  write_run(tmp_path / 'full', [0.1], task='digits', model=None)
  assert table_of(tmp_path / 'full').title.startswith('digits, mlp, ')


def test_cells_of_both_sizes_are_counted(tmp_path):
  name = 'paper/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05'
  write_preset(tmp_path, name, [0.1] * 1000)
  write_preset(tmp_path, name, [0.1] * 10, total_rounds=10)
  table = table_of(tmp_path)
  assert not table.title.startswith('Reduced')
  assert '1 of 2 cells are smaller than the published ones.' in table.notes


def write_table(folder, variant, skip=()):
  """Writes the runs of the table on CIFAR-10: NAR is five points ahead, and each cell has its
  number."""
  for index, (name, settings) in enumerate(presets.cells('cifar10', variant=variant).items()):
    if name not in skip:
      pair = index % 3 + 3 * (index // 6)
      ahead = 0.05 if settings['client_optimizer'] == 'nar' else 0
      write_preset(folder, name, [None] * (settings['total_rounds'] - 1) + [pair / 100 + ahead])


def test_the_papers_table_has_its_layout(tmp_path):
  missing = 'cpu/cifar10_fed_exp_nar_alpha1_steps20_wd0.01'
  write_table(tmp_path, 'cpu', skip=[missing])
  write_run(tmp_path, [0.99])  # No cell of the table.
  found = runs.find_runs([tmp_path])[0]
  chosen = tables.select('cifar10', 'cpu', found)
  assert len(chosen) == 35
  table = tables.paper_table('cifar10', 'cpu', chosen, 'final')
  assert table.title.startswith('Table cifar10, variant cpu. Reduced setting: cifar10, cnn, ')
  assert table.header == ['algorithm', 'WD', ''] + [
    f'alpha {alpha}: {side}' for alpha in ('0.3', '1', '10') for side in ('baseline', 'NAR')
  ]
  assert table.rows[:3] == [
    [
      'FedAvg',
      '0.05',
      'measured',
      '0.00 (1)',
      '5.00 (1)',
      '1.00 (1)',
      '6.00 (1)',
      '2.00 (1)',
      '7.00 (1)',
    ],
    ['FedAvg', '0.05', 'NAR - baseline', '', '+5.00', '', '+5.00', '', '+5.00'],
    ['FedAvg', '0.05', 'paper', '85.19', '87.64', '88.50', '89.55', '89.45', '90.23'],
  ]
  by_line = {(row[0], row[2]): row[3:] for row in table.rows}
  assert len(by_line) == 18
  assert by_line['FedExP', 'measured'][2:4] == ['10.00 (1)', 'missing']
  assert by_line['FedExP', 'NAR - baseline'][3] == '-'
  text = tables.format_table(table, 'terminal')
  assert text.count('FedAvg ') == 1  # A block's name is printed once.
  assert len(list(csv.reader(io.StringIO(tables.format_table(table, 'csv'))))) == 19


def test_a_table_without_the_papers_kind_says_so(tmp_path):
  write_preset(tmp_path, 'cpu/shakespeare_fed_avg_nar_wd0.001', [0.1] * 60)
  found = tables.select('shakespeare', 'cpu', runs.find_runs([tmp_path])[0])
  table = tables.paper_table('shakespeare', 'cpu', found, 'final')
  assert table.header[2:] == [
    'WD 0.0001: baseline', 'WD 0.0001: NAR', 'WD 0.001: baseline', 'WD 0.001: NAR'
  ]  # fmt: skip
  assert table.rows[0] == ['FedAvg', 'measured', 'missing', 'missing', 'missing', '10.00 (1)']
  assert not any('paper' in row for row in table.rows)
  assert "The paper's numbers are left out" in table.notes[-1]


def test_formats():
  table = tables.Table('t', ['n'], ['a', 'b %'], [['x_y', '1.00 ± 0.50 (3)']], 1)
  assert tables.format_table(table, 'csv') == 'a,b %\nx_y,1.00 +- 0.50 (3)\n'
  assert (
    tables.format_table(table, 'markdown')
    == '**t**\n\nn\n\n| a | b % |\n| --- | --- |\n| x_y | 1.00 ± 0.50 (3) |\n'
  )
  assert r'x\_y & 1.00 $\pm$ 0.50 (3) \\' in tables.format_table(table, 'latex')
  assert r'b \%' in tables.format_table(table, 'latex')


def test_columns_of_a_terminal_are_aligned_at_each_part_of_a_number():
  cells = ['9.31 ± 12.77 (2)', '52.00 (1)', '100.00 ± 0.00 (10)', 'missing', '+5.00 [+2.52, +7.48]']
  rows = [['x', cell, 'end'] for cell in cells]
  lines = tables.format_table(
    tables.Table('', [], ['a', 'b', 'c'], rows, 1), 'terminal'
  ).splitlines()
  assert lines[2:] == [
    'x    9.31 ± 12.77 (2)     end',
    'x   52.00         (1)     end',
    'x  100.00 ±  0.00 (10)    end',
    'x  missing                end',
    'x   +5.00 [+2.52, +7.48]  end',
  ]


def test_the_binary_writes_tables_and_figures(folder, tmp_path):
  damaged = write_run(folder, [0.5, 0.5, 0.5], seed=9)
  (damaged / 'config.json').write_text('{')
  result = report(f'--runs={folder}', f'--output_dir={tmp_path / "report"}', cwd=tmp_path)
  assert result.returncode == 0, result.stderr
  assert '+5.00 [+2.52, +7.48]' in result.stdout and '1 run is unfinished' in result.stdout
  assert 'Left out because they cannot be read: 1.' in result.stdout
  (line,) = result.stderr.splitlines()
  assert line.startswith(f'report: left out: {damaged / "config.json"} cannot be read')
  written = {p.name for p in (tmp_path / 'report').iterdir()}
  assert written == {'table1.md', 'table1.tex', 'table1.csv'} | {
    f'{name}1.{suffix}' for name in presets.FIGURES for suffix in ('png', 'pdf')
  }
  for path in (tmp_path / 'report').glob('*.png'):
    assert 500 < Image.open(path).size[0] <= 1500


def test_the_binary_prints_a_table_by_name(tmp_path):
  write_table(tmp_path / 'runs', 'cpu')
  write_run(tmp_path / 'runs', [0.99])
  shown = [
    report(f'--runs={tmp_path / "runs"}', '--table=cifar10', *more, cwd=tmp_path)
    for more in ([], ['--variant=cpu'])
  ]
  assert shown[0].returncode == 0, shown[0].stderr
  assert shown[0].stdout == shown[1].stdout and '99.00' not in shown[0].stdout
  assert 'Table cifar10, variant cpu' in shown[0].stdout
  wrong = report(f'--runs={tmp_path / "runs"}', '--table=cifar10', '--variant=paper', cwd=tmp_path)
  assert wrong.returncode == 2
  assert 'is a cell of table cifar10 in variant paper;' in wrong.stderr


@pytest.mark.parametrize(
  'arguments, message',
  [
    (
      ['--figures=typo'],
      '--figures=typo is unknown; allowed are weight_decay, robustness, clipping, curves and '
      'partition.',
    ),
    (['--table=typo'], 'flag --table=typo: value should be one of <cifar10|shakespeare>'),
    (
      ['--table=cifar10', '--variant=typo'],
      'flag --variant=typo: value should be one of <paper|reference|cpu>',
    ),
    (
      ['--variant=cpu'],
      '--variant=cpu means nothing without --table; it takes cifar10, shakespeare.',
    ),
    (['--statistic=typo'], 'value should be one of <final|best|last10>'),
    (['--runs='], '--runs= is empty; it takes folders that hold run directories.'),
    (['--runs=runs,'], '--runs= is empty; it takes folders that hold run directories.'),
    (['--runs=nowhere'], '--runs=nowhere is no folder.'),
    (['--runs=empty'], 'no finished run in empty; `python -m experiments.train` makes one.'),
    (['--runs=runs,copy'], 'are one run twice'),
    (['--output_dir=file/report'], '--output_dir=file/report: Not a directory.'),
    (['extra'], "'extra' is not a flag; all arguments are --name=value."),
  ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, arguments, message):
  write_run(tmp_path / 'runs', [0.5])
  shutil.copytree(tmp_path / 'runs', tmp_path / 'copy')
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'file').write_text('')
  before = sorted(tmp_path.rglob('*'))
  result = report('--output_dir=report', *arguments, cwd=tmp_path)
  assert result.returncode == 2, result.stderr
  assert len(result.stderr.splitlines()) == 1
  assert result.stderr.startswith('report: ') and message in result.stderr
  assert sorted(tmp_path.rglob('*')) == before


def test_figures_without_a_folder_for_them_are_an_error(tmp_path):
  write_run(tmp_path / 'runs', [0.5])
  result = report('--figures=curves', cwd=tmp_path)
  assert result.returncode == 2
  assert result.stderr == 'report: --figures needs --output_dir, the folder that they go to.\n'


def test_a_figure_that_was_asked_for_and_has_no_runs_is_said(tmp_path):
  write_run(tmp_path / 'runs', [0.5])
  result = report('--figures=weight_decay', '--output_dir=report', cwd=tmp_path)
  assert result.returncode == 0
  assert result.stderr.startswith('report: no runs for the figure weight_decay in: ')


def test_a_reader_who_leaves_early_meets_no_traceback(tmp_path):
  write_run(tmp_path / 'runs', [0.5])
  command = f'{sys.executable} -m experiments.report --runs={tmp_path / "runs"} | true'
  result = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
  assert not result.stderr


def test_help_reads_nothing(tmp_path):
  result = report('--help', cwd=tmp_path)
  assert result.returncode == 0 and '--table' in result.stdout
  assert not list(tmp_path.iterdir())
