# SPDX-License-Identifier: Apache-2.0
"""`experiments.evaluate` as a user calls it."""

import csv
import json

import numpy as np
import pytest

from experiments.reading import evaluations
from fednar_tff import simulation
from tests.experiments.command import call

RUN = [
  '--task=synthetic',
  '--num_clients=12',
  '--clients_per_round=3',
  '--local_steps=3',
  '--batch_size=10',
  '--learning_rate=0.1',
  '--max_norm=1',
  '--total_rounds=4',
  '--rounds_per_evaluation=2',
  '--rounds_per_checkpoint=2',
  '--quiet',
]


def read(path):
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope='module')
def evaluated(tmp_path_factory):
  path = tmp_path_factory.mktemp('evaluate') / 'run'
  assert call(*RUN, f'--output_dir={path}').returncode == 0
  result = call(f'--run={path}', '--personalization_steps=5', module='experiments.evaluate')
  assert result.returncode == 0, result.stderr
  return path, result.stdout


def test_writes_numbers_and_a_picture(evaluated):
  path, printed = evaluated
  folder = path / 'evaluation_round4'
  names = {'clients.csv', 'confusion.csv', 'summary.csv', 'evaluation.png'}
  assert {p.name for p in folder.iterdir()} == names
  clients = read(folder / 'clients.csv')
  assert len(clients) == 12
  accuracies = np.array([float(row['accuracy']) for row in clients])
  sizes = np.array([int(row['examples']) for row in clients])
  assert sizes.sum() == 400
  # As the table says: each client alike, and weighted by its examples.
  worst = np.argsort(accuracies, kind='stable')[:2]
  rows = {row['']: row for row in read(folder / 'summary.csv')}
  tenth = rows['worst tenth (2 of 12 clients)']
  assert tenth['each client alike'] == f'{100 * accuracies[worst].mean():.2f}'
  weighted = np.average(accuracies[worst], weights=sizes[worst])
  assert tenth['weighted by examples'] == f'{100 * weighted:.2f}'
  assert 'worst tenth (2 of 12 clients)' in printed
  confusion = np.array([
    [int(v) for k, v in row.items() if k != 'class'] for row in read(folder / 'confusion.csv')
  ])  # fmt: skip
  result = json.loads((path / 'result.json').read_text())
  assert np.trace(confusion) / confusion.sum() == pytest.approx(
    result['final_test_accuracy'], abs=1e-6
  )
  assert all(row['before'] and row['after'] for row in clients)


def test_of_an_earlier_round_and_without_local_steps(evaluated, tmp_path):
  path, _ = evaluated
  result = call(
    f'--run={path}', '--round=2', '--personalization_steps=0', f'--output_dir={tmp_path / "out"}',
    module='experiments.evaluate',
  )  # fmt: skip
  assert result.returncode == 0, result.stderr
  with open(path / 'metrics.csv', newline='') as file:
    expected = float(list(csv.DictReader(file))[1]['test_accuracy'])
  rows = {row['']: row for row in read(tmp_path / 'out' / 'summary.csv')}
  assert rows['test set, accuracy']['each client alike'] == f'{100 * expected:.2f}'
  assert 'after' not in read(tmp_path / 'out' / 'clients.csv')[0]


@pytest.mark.parametrize(
  ('arguments', 'line'),
  [
    ([], '--run is missing'),
    (['--run={tmp}'], '--run={tmp} is no directory of a run'),
    (['--run={run}', '--round=1'], 'Round 1 of {run} is not saved; saved are 2, 4.'),
  ],
)
def test_what_cannot_be_evaluated_is_one_line(evaluated, arguments, line, tmp_path):
  names = {'run': evaluated[0], 'tmp': tmp_path}
  result = call(*(a.format(**names) for a in arguments), module='experiments.evaluate')
  assert result.returncode == 2
  assert len(result.stderr.strip().splitlines()) == 1
  assert line.format(**names) in result.stderr
  assert not list(tmp_path.iterdir())


def test_the_table_counts_the_worst_tenth_as_the_package_does():
  for count in (1, 9, 10, 11, 100, 101):
    found = evaluations.Evaluation(
      '', 1, {}, ['c'] * count, [1] * count, np.arange(count), None, None, None, None, 0
    )
    expected = np.arange(count)[: found.num_worst].mean()
    assert simulation.summarize_clients(np.arange(count)).worst_tenth == pytest.approx(expected)
