"""Tables and figures of runs that were written by hand, so that every number is known."""

import csv
import json

import pytest
from PIL import Image

from experiments.reading import runs as results
from experiments.reading import tables
from tests.experiments.test_settings import call


def write_run(
  folder, algorithm, optimizer, weight_decay, seed, accuracies, total_rounds=None, alpha=0.3, **more
):
  path = folder / f'{algorithm}_{optimizer}_{weight_decay}_{alpha}_{seed}'
  path.mkdir(parents=True)
  settings = {
    'task': 'cifar10', 'model': 'cnn', 'algorithm': algorithm, 'client_optimizer': optimizer, 'weight_decay': weight_decay, 'alpha': alpha,
    'seed': seed, 'local_steps': 20, 'clients_per_round': 10, 'max_norm': 1.0, 'total_rounds': total_rounds or len(accuracies), **more,
  }  # fmt: skip
  (path / 'config.json').write_text(json.dumps({'settings': settings}))
  with open(path / 'metrics.csv', 'w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(
      [
        'round_num',
        'test_accuracy',
        'test_loss',
        'train_loss',
        'clipped_steps',
        'total_steps',
        'mean_clipped_norm',
      ]
    )
    for i, accuracy in enumerate(accuracies, 1):
      writer.writerow([i, '' if accuracy is None else accuracy, 1.5, 1.0, 3 * i, 200, 2.0])
  return path


@pytest.fixture
def folder(tmp_path):
  runs = tmp_path / 'runs'
  for seed, (baseline, nar) in enumerate([(0.50, 0.55), (0.52, 0.58), (0.54, 0.58)]):
    write_run(runs, 'fed_avg', 'clip', 0.01, seed, [0.1, None, baseline])
    write_run(runs, 'fed_avg', 'nar', 0.01, seed, [0.1, None, nar])
  write_run(runs, 'fed_avg', 'clip', 0.1, 0, [0.3, 0.2, 0.1])
  write_run(runs, 'scaffold', 'nar', 0.01, 0, [0.1, 0.7, 0.6])
  write_run(runs, 'scaffold', 'clip', 0.01, 0, [0.1], total_rounds=3)  # Not finished.
  return runs


def test_statistics_of_a_run(tmp_path):
  run = results.read_run(
    write_run(tmp_path, 'fed_avg', 'nar', 0.01, 0, [i / 100 for i in range(1, 21)])
  )
  assert run.accuracy('final') == 0.20
  assert run.accuracy('best') == 0.20
  assert run.accuracy('last10') == pytest.approx(0.155)
  assert run.summary()['rounds'] == 20 and run.is_finished


def test_table_has_means_deviations_differences_missing_cells_and_the_papers_numbers(folder):
  (experiment,) = tables.split_into_experiments(results.find_runs([folder]))
  assert experiment.num_unfinished == 1
  header, rows = tables.table_rows(experiment, 'final')
  assert header[2:4] == ['baseline', 'NAR']
  by_cell = {(row[0], row[1]): row[2:] for row in rows}
  # The differences are 5, 6 and 4: their mean is 5, their deviation 1, and t(0.975, 2) / sqrt(3) = 2.484.
  assert by_cell['FedAvg', 'WD 0.01'] == [
    '52.00 +- 2.00 (3)',
    '57.00 +- 1.73 (3)',
    '+5.00 [+2.52, +7.48]',
    '-',
  ]
  assert by_cell['FedAvg', 'WD 0.1'][:3] == ['10.00 (1)', 'missing', 'missing']
  assert by_cell['SCAFFOLD', 'WD 0.01'][:3] == ['missing', '60.00 (1)', 'missing']
  _, rows = tables.table_rows(experiment, 'best')
  assert {(r[0], r[1]): r[3] for r in rows}['SCAFFOLD', 'WD 0.01'] == '70.00 (1)'


def test_reduced_settings_are_called_so(folder, tmp_path):
  (experiment,) = tables.split_into_experiments(results.find_runs([folder]))
  assert (
    experiment.title()
    == 'Reduced setting: cifar10, cnn, alpha 0.3, steps 20, 10 clients a round, 3 rounds, A = 1'
  )
  write_run(
    tmp_path / 'full',
    'fed_avg',
    'nar',
    0.05,
    0,
    [0.1] * 1000,
    model='resnet18',
    clients_per_round=20,
  )
  (full,) = tables.split_into_experiments(results.find_runs([tmp_path / 'full']))
  assert not full.title().startswith('Reduced')


def test_different_sizes_are_different_tables(folder):
  write_run(folder, 'fed_avg', 'nar', 0.01, 7, [0.5] * 5)
  assert len(tables.split_into_experiments(results.find_runs([folder]))) == 2


def test_formats():
  header, rows = ['a', 'b %'], [['x', '1.00 +- 0.50 (3)']]
  assert tables.format_table(header, rows, 'csv') == 'a,b %\nx,1.00 +- 0.50 (3)\n'
  assert (
    tables.format_table(header, rows, 'markdown')
    == '| a | b % |\n| --- | --- |\n| x | 1.00 ± 0.50 (3) |\n'
  )
  assert r'x & 1.00 $\pm$ 0.50 (3) \\' in tables.format_table(header, rows, 'latex')
  assert r'b \%' in tables.format_table(header, rows, 'latex')
  assert tables.format_table(header, rows, 'terminal').splitlines()[2] == 'x  1.00 ± 0.50 (3)'


def test_the_binary_writes_tables_and_figures(folder, tmp_path):
  result = call(
    f'--runs={folder}',
    f'--output_dir={tmp_path / "report"}',
    module='experiments.report',
    cwd=tmp_path,
  )
  assert result.returncode == 0, result.stderr
  assert (
    '+5.00 [+2.52, +7.48]' in result.stdout and '1 unfinished runs are left out' in result.stdout
  )
  written = {p.name for p in (tmp_path / 'report').iterdir()}
  assert written == {'table1.md', 'table1.tex', 'table1.csv'} | {
    f'{name}1.{suffix}'
    for name in ('curves', 'weight_decay', 'robustness', 'clipping')
    for suffix in ('png', 'pdf')
  }
  for path in (tmp_path / 'report').glob('*.png'):
    assert Image.open(path).size[0] > 500


def test_no_runs_is_one_line(tmp_path):
  result = call(f'--runs={tmp_path}', module='experiments.report', cwd=tmp_path)
  assert result.returncode == 1
  assert (
    result.stderr.strip()
    == f'report: no finished run in {tmp_path}; `python -m experiments.train` makes one.'
  )
