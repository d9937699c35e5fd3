# SPDX-License-Identifier: Apache-2.0
"""`experiments.runs`: what is listed, and what two runs differ in."""

import fcntl

import pytest

from experiments.reading import listing, runs
from tests.experiments.command import call
from tests.experiments.run_files import write_run


def table_of(folder):
  found, _ = runs.find_runs([folder])
  table = listing.list_table(found)
  return [dict(zip(table.header, row)) for row in table.rows]


def test_lists_state_round_accuracy_time_and_what_differs(tmp_path):
  done = write_run(tmp_path, [0.1, 0.25], weight_decay=0.01)
  (done / 'timing.csv').write_text('round_num,seconds\n1,60.5\n2,64.5\n')
  write_run(tmp_path, [0.1], weight_decay=0.1, total_rounds=2)
  write_run(tmp_path, [0.1, None], diverged=True, weight_decay=0.1, seed=3)
  rows = table_of(tmp_path)
  assert list(rows[0]) == ['run', 'state', 'round', 'accuracy', 'time', 'WD', 'seed']
  assert list(rows[0].values())[1:] == ['finished', '2/2', '25.00', '2m05s', '0.01', '0']
  assert list(rows[1].values())[1:] == ['stopped', '1/2', '10.00', '-', '0.1', '0']
  assert list(rows[2].values())[1:5] == ['diverged', '2/2', '-', '-']


def test_a_run_whose_lock_is_held_is_running(tmp_path):
  path = write_run(tmp_path, [0.1], total_rounds=2)
  with open(path / '.lock', 'a') as lock:
    assert table_of(tmp_path)[0]['state'] == 'stopped'
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert table_of(tmp_path)[0]['state'] == 'running'
  assert table_of(tmp_path)[0]['state'] == 'stopped'


def test_settings_that_follow_from_the_task_are_not_listed(tmp_path):
  write_run(tmp_path, [0.1])
  write_run(tmp_path, [0.1], task='digits', model='mlp', alpha=0.3)
  write_run(tmp_path, [0.1], local_steps=None, local_epochs=3)
  assert {'task', 'model', 'steps', 'epochs'} <= set(table_of(tmp_path)[0])
  assert not {'padding', 'augmentation', 'pooling'} & set(table_of(tmp_path)[0])


def test_diff_says_what_differs_and_nothing_else(tmp_path):
  first = write_run(tmp_path, [0.1, 0.25], weight_decay=0.01)
  second = write_run(tmp_path, [0.1, 0.3], weight_decay=0.1)
  result = call('diff', str(first), str(second), module='experiments.runs')
  assert result.returncode == 0, result.stderr
  lines = [line.split() for line in result.stdout.splitlines()[2:]]
  assert lines == [['weight_decay', '0.01', '0.1'], ['accuracy', 'in', '%', '25.00', '30.00']]
  same = call('diff', str(first), str(first), module='experiments.runs')
  assert same.stdout.startswith('All settings that change results are equal')


@pytest.mark.parametrize(
  ('arguments', 'line'),
  [
    (['--runs={tmp}'], 'no run in {tmp}'),
    (['--runs={tmp}/nothing'], '--runs={tmp}/nothing is no folder.'),
    (['diff', '{tmp}'], 'diff takes two directories of runs, found 1.'),
    (['diff', '{tmp}', '{tmp}'], '{tmp} is no directory of a run'),
    (['list'], "'list' is unknown; there is `diff A B`"),
  ],
)
def test_what_cannot_be_listed_is_one_line(arguments, line, tmp_path):
  result = call(*(a.format(tmp=tmp_path) for a in arguments), module='experiments.runs')
  assert result.returncode == 2
  assert len(result.stderr.strip().splitlines()) == 1
  assert line.format(tmp=tmp_path) in result.stderr
