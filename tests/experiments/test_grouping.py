# SPDX-License-Identifier: Apache-2.0
"""No cell mixes runs that differ in anything but their seeds; old and damaged directories."""

import json
import subprocess
import sys

import pytest

from experiments.definition import identity
from experiments.definition import settings as settings_lib
from experiments.reading import grouping, runs, tables
from tests.experiments.other_values import another_value
from tests.experiments.run_files import SETTINGS, write_run

# Together they have every setting that changes results.
BASES = [
  {'task': 'cifar10', 'algorithm': 'fed_prox'},
  {'task': 'cifar10', 'algorithm': 'fed_adam', 'client_optimizer': 'clip'},
  {'task': 'shakespeare', 'algorithm': 'fed_exp', 'local_epochs': 2},
  {'task': 'digits', 'algorithm': 'fed_avgm'},
  {'task': 'digits', 'algorithm': 'fed_dyn'},
  {
    'task': 'digits', 'learning_rate_schedule': 'cosine', 'learning_rate_decay_rounds': 8,
    'weight_decay_schedule': 'cosine', 'weight_decay_decay_rounds': 8,
  },
  {'task': 'synthetic', 'algorithm': 'scaffold', 'client_optimizer': 'sgd'},
]  # fmt: skip


def read(folder):
  found, problems = runs.find_runs([folder])
  assert not problems
  return found


def cells_of(folder):
  """Returns the names of the runs of each cell of a folder."""
  return [
    {run.path.name for run in cell}
    for experiment in grouping.split_into_experiments(read(folder))
    for _, _, _, cell in experiment.cells()
  ]


def changes(base):
  """Returns a copy of some settings for each that changes results, with that one changed."""
  resolved = identity.resolve(base)
  found = {}
  for name, value in identity.identity(base).items():
    is_number = settings_lib.BY_NAME[name].kind is int
    other = value + 1 if is_number else another_value(name, resolved)
    if other is not None:
      found[name] = {**resolved, name: other}
  return found


def test_runs_that_differ_in_one_setting_never_share_a_cell(tmp_path):
  varied = set()
  for number, base in enumerate(BASES):
    folder = tmp_path / str(number)
    base = {**dict.fromkeys(SETTINGS), **identity.resolve({**base, 'total_rounds': 1})}
    seeds = {
      write_run(folder, [0.5], **{**base, **seed}).name
      for seed in ({'seed': 0}, {'seed': 1}, {'seed': 0, 'model_seed': 3})
    }
    for name, settings in changes(base).items():
      write_run(folder, [0.5] * settings['total_rounds'], **{**base, **settings})
      varied.add(name)
    found = cells_of(folder)
    assert seeds in found
    assert all(cell == seeds or len(cell) == 1 for cell in found)
    assert set().union(*found) == {run.path.name for run in read(folder)}
  expected = {s.name for s in settings_lib.SETTINGS if s.changes_results} - set(identity.SEEDS)
  assert varied == expected


def test_two_runs_of_one_cell_and_seed_are_an_error_that_names_both(tmp_path):
  first = write_run(tmp_path, [0.5])
  # The default is spelled in one, and left to the task in the other.
  second = write_run(tmp_path, [0.6], alpha=None)
  with pytest.raises(grouping.DuplicateRunError) as caught:
    grouping.split_into_experiments(read(tmp_path))
  assert str(first) in str(caught.value) and str(second) in str(caught.value)
  assert '\n' not in str(caught.value)


def test_a_title_says_the_schedules_that_are_not_as_usual(tmp_path):
  write_run(tmp_path, [0.5], learning_rate_schedule='constant')
  (experiment,) = grouping.split_into_experiments(read(tmp_path))
  assert 'learning rate schedule constant' in experiment.title()
  assert 'weight decay schedule' not in experiment.title()


def test_an_unfinished_run_is_no_duplicate(tmp_path):
  write_run(tmp_path, [0.5, 0.5])
  write_run(tmp_path, [0.5], total_rounds=2)
  (experiment,) = grouping.split_into_experiments(read(tmp_path))
  assert tables.results_table(experiment, 'final').rows[0][1:3] == ['missing', '50.00 (1)']


def test_sgd_stands_beside_runs_with_a_bound(tmp_path):
  for bound in (1.0, 10.0):
    write_run(tmp_path, [0.1 + bound / 100], max_norm=bound)
    write_run(tmp_path, [0.2 + bound / 100], max_norm=bound, client_optimizer='clip')
  write_run(tmp_path, [0.4], max_norm=None, client_optimizer='sgd')
  (experiment,) = grouping.split_into_experiments(read(tmp_path))
  assert experiment.columns == ['max_norm']
  rows = tables.results_table(experiment, 'final').rows
  assert [row[1:5] for row in rows] == [
    ['1', '21.00 (1)', '11.00 (1)', '40.00 (1)'],
    ['10', '30.00 (1)', '20.00 (1)', '40.00 (1)'],
  ]


def test_an_algorithm_that_ran_with_sgd_alone_has_no_bound_either(tmp_path):
  write_run(tmp_path, [0.1])
  write_run(tmp_path, [0.2], algorithm='scaffold', client_optimizer='sgd', max_norm=None)
  (experiment,) = grouping.split_into_experiments(read(tmp_path))
  assert experiment.columns == [] and 'A = 1' in experiment.title()


def test_a_setting_of_one_algorithm_splits_nothing(tmp_path):
  write_run(tmp_path, [0.1])
  write_run(tmp_path, [0.2], algorithm='fed_prox', proximal_strength=0.5)
  write_run(tmp_path, [0.3], algorithm='fed_adam', server_learning_rate=0.02)
  (experiment,) = grouping.split_into_experiments(read(tmp_path))
  assert experiment.columns == []
  assert experiment.notes() == [
    'FedProx: proximal strength 0.5.',
    'FedAdam: server learning rate 0.02.',
  ]


def test_what_differs_between_algorithms_is_a_column_and_not_the_title(tmp_path):
  write_run(tmp_path, [0.1], weight_decay=0.05)
  write_run(tmp_path, [0.2], weight_decay=0.01, algorithm='fed_adam')
  (experiment,) = grouping.split_into_experiments(read(tmp_path))
  assert experiment.columns == ['weight_decay'] and experiment.axes == []
  assert 'WD' not in experiment.title()


def test_order_is_safe_with_missing_values():
  values = [(None, 3), (0.5, None), ('text', 1), (None, None), (0.1, 2)]
  found = sorted(values, key=grouping.order)
  assert found == [(None, None), (None, 3), (0.1, 2), (0.5, None), ('text', 1)]


def test_floats_that_differ_look_different():
  assert grouping.text(0.1234567) != grouping.text(0.12345671)
  assert grouping.text(0.1) == '0.1' and grouping.text(1.0) == '1'


@pytest.mark.parametrize(
  'name, content, message',
  [
    ('config.json', '{"settings": {', 'config.json cannot be read'),
    ('config.json', '[]', 'config.json must hold an object, found list'),
    ('config.json', '{}', 'config.json has no settings'),
    (
      'config.json',
      '{"settings": {"algorithm": "fed_magic", "total_rounds": 1}}',
      "config.json has an unknown algorithm, 'fed_magic'",
    ),
    (
      'config.json',
      '{"settings": {"client_optimizer": "adam", "total_rounds": 1}}',
      "config.json has an unknown client_optimizer, 'adam'",
    ),
    (
      'config.json',
      '{"settings": {"alpha": [1], "total_rounds": 1}}',
      'config.json: `alpha` must be of type float, found [1]',
    ),
    (
      'config.json',
      '{"settings": {"task": ["digits"], "total_rounds": 1}}',
      "config.json: `task` must be of type str, found ['digits']",
    ),
    (
      'config.json',
      '{"settings": {"learning_rate": "fast"}}',
      "config.json: `learning_rate` must be of type float, found 'fast'",
    ),
    (
      'metrics.csv',
      'round_num,test_accuracy\n1,much\n',
      "metrics.csv, line 2 cannot be read (could not convert string to float: 'much')",
    ),
    (
      'metrics.csv',
      'round_num,test_accuracy\n1,0.5\n2\n',
      'metrics.csv, line 3 has not as many values as there are names',
    ),
    (
      'metrics.csv',
      'round_num,test_accuracy\n2,0.5\n1,0.5\n',
      'metrics.csv, line 3 is not a later round than the one before',
    ),
    ('metrics.csv', 'test_accuracy\n0.5\n', 'metrics.csv has no column round_num'),
    ('metrics.csv', b'round_num,test_accuracy\n1,\xff\xfe\n', 'metrics.csv, line 2 cannot be read'),
    ('result.json', '{"diverged"', 'result.json cannot be read'),
  ],
)
def test_a_damaged_file_is_named_and_its_run_left_out(tmp_path, name, content, message):
  good = write_run(tmp_path, [0.5])
  damaged = write_run(tmp_path, [0.6], seed=1)
  (damaged / name).write_bytes(content if isinstance(content, bytes) else content.encode())
  found, (problem,) = runs.find_runs([tmp_path])
  assert [run.path for run in found] == [good]
  assert str(damaged) in problem and message in problem and '\n' not in problem


def test_a_folder_that_is_given_twice_is_read_once(tmp_path, monkeypatch):
  write_run(tmp_path / 'runs', [0.5])
  monkeypatch.chdir(tmp_path)
  found, _ = runs.find_runs(['runs', str(tmp_path), 'runs/run000'])
  assert len(found) == 1


def test_a_task_that_the_catalogue_does_not_know_is_read(tmp_path):
  write_run(tmp_path, [0.5], task='my_task', model=None)
  write_run(tmp_path, [0.6], task='my_task', model=None, alpha=None)
  (experiment,) = grouping.split_into_experiments(read(tmp_path))
  assert [row[1:4] for row in tables.results_table(experiment, 'final').rows] == [
    ['-', 'missing', '60.00 (1)'],
    ['0.3', 'missing', '50.00 (1)'],
  ]


def test_statistics_of_a_run(tmp_path):
  run = runs.read_run(write_run(tmp_path, [i / 100 for i in range(1, 21)]))
  assert run.accuracy('final') == 0.20
  assert run.accuracy('best') == 0.20
  assert run.accuracy('last10') == pytest.approx(0.155)
  assert run.summary()['rounds'] == 20 and run.is_finished


def test_a_run_is_marked_as_diverged(tmp_path):
  path = write_run(tmp_path, [0.5])
  assert not runs.read_run(path).has_diverged
  (path / 'result.json').write_text(json.dumps({'diverged': True}))
  run = runs.read_run(path)
  assert run.has_diverged and not run.counts


def test_reading_imports_neither_running_nor_tensorflow():
  program = (
    'import sys, experiments.report\n'
    'from experiments.reading import drawing, figures, grouping, runs, tables\n'
    'names = ("tensorflow", "tensorflow_federated", "fednar_tff", "experiments.running")\n'
    'print([name for name in names if name in sys.modules])\n'
  )
  result = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, check=True
  )
  assert result.stdout.strip() == '[]'


def test_an_older_run_did_what_was_done_then(tmp_path):
  path = write_run(tmp_path, [0.5], padding=None)  # Its settings have none.
  assert identity.identity(runs.read_run(path).settings)['padding'] == 'black'
  path = write_run(tmp_path, [0.5], task='digits', model=None)
  assert 'padding' not in identity.identity(runs.read_run(path).settings)
