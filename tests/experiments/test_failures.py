# SPDX-License-Identifier: Apache-2.0
"""Runs that diverge or fail say so: a line, an exit status, a mark that no report overlooks."""

import json
import re

import pytest

from tests.experiments.command import call

# With a weight decay of 5 and a learning rate of 1, the weights grow by the factor 4 in a step.
DIVERGING = [
  '--task=digits',
  '--num_clients=5',
  '--clients_per_round=2',
  '--local_steps=20',
  '--batch_size=20',
  '--client_optimizer=clip',
  '--max_norm=1',
  '--learning_rate=1',
  '--weight_decay=5',
  '--total_rounds=30',
  '--rounds_per_evaluation=5',
]


@pytest.fixture(scope='module')
def swept(tmp_path_factory):
  """A sweep over a weight decay that diverges and one that does not."""
  folder = tmp_path_factory.mktemp('swept')
  (folder / 'cell.flags').write_text('\n'.join(DIVERGING) + '\n')
  arguments = [
    f'--presets={folder / "cell.flags"}',
    '--set=weight_decay=5,0.01',
    '--set=total_rounds=12',
  ]
  return folder, arguments, call(*arguments, f'--output_dir={folder}', module='experiments.sweep')


def test_diverged_run_ends_with_a_status_a_line_and_a_mark(tmp_path):
  path = tmp_path / 'run'
  result = call(*DIVERGING, f'--output_dir={path}')
  assert result.returncode == 3
  *warnings, line = result.stderr.strip().splitlines()
  assert line.startswith(f'train: {path}: The run has diverged: in 5 rounds in a row')
  assert 'learning rate' in line and line.endswith('; --stop_on_divergence=0 goes on.')
  (warning,) = warnings  # Once, not in every round.
  assert warning.startswith('train: WARNING: Round 2: no client had a finite update, '), warning
  found = json.loads((path / 'result.json').read_text())
  assert found['diverged'] is True and found['rounds'] < 30
  header, *rows = (path / 'metrics.csv').read_text().splitlines()
  last = dict(zip(header.split(','), rows[-1].split(',')))
  assert last['train_loss'] == '' and last['num_non_finite_clients'] == '2'
  again = call(*DIVERGING, f'--output_dir={path}')
  assert again.returncode == 3
  assert json.loads((path / 'result.json').read_text()) == found


def test_run_without_a_finite_client_at_its_end_has_diverged(tmp_path):
  arguments = [*DIVERGING, '--total_rounds=4', '--stop_on_divergence=0']
  result = call(*arguments, f'--output_dir={tmp_path / "run"}')
  assert result.returncode == 3, result.stderr
  assert json.loads((tmp_path / 'run' / 'result.json').read_text())['diverged'] is True
  again = call(*arguments, f'--output_dir={tmp_path / "run"}')
  assert again.returncode == 3 and again.stderr == result.stderr.splitlines(keepends=True)[-1]


def test_sweep_goes_on_after_a_cell_that_diverged(swept):
  folder, arguments, result = swept
  assert result.returncode == 0, result.stderr
  assert '1 done, 1 diverged, 0 failed' in result.stdout
  again = call(*arguments, f'--output_dir={folder}', module='experiments.sweep')
  assert '0 to run, 2 finished already' in again.stdout


def test_report_marks_what_diverged(swept):
  folder, _, _ = swept
  result = call(f'--runs={folder}', module='experiments.report')
  assert result.returncode == 0, result.stderr
  diverged = [line for line in result.stdout.splitlines() if 'diverged (1)' in line]
  assert len(diverged) == 1


SMALL = [
  '--task=synthetic',
  '--num_clients=4',
  '--clients_per_round=2',
  '--local_steps=1',
  '--total_rounds=1',
]


@pytest.mark.parametrize('name', [pytest.param('config', marks=pytest.mark.slow), 'result'])
def test_full_disk_is_one_line_also_beside_the_rounds(name, tmp_path):
  path = tmp_path / 'run'
  path.mkdir()
  (path / f'{name}.json_temp').symlink_to('/dev/full')
  result = call(*SMALL, f'--output_dir={path}')
  assert result.returncode == 1
  assert result.stderr == (
    f'train: Cannot write to {path}: the disk is full. '
    'What was saved before is whole; start again to resume.\n'
  )
  (path / f'{name}.json_temp').unlink()
  assert call(*SMALL, f'--output_dir={path}').returncode == 0


def test_result_that_cannot_be_read_is_made_anew_and_quiet_is_quiet(tmp_path):
  path = tmp_path / 'run'
  first = call(*SMALL, f'--output_dir={path}')
  assert first.returncode == 0, first.stderr
  assert 'all that a client holds' not in first.stdout  # As in the next test.
  result = (path / 'result.json').read_text()
  (path / 'result.json').write_text('{"rounds')
  for _ in range(2):  # The second time, it is finished.
    again = call(*SMALL, '--quiet', f'--output_dir={path}')
    assert (again.returncode, again.stdout, again.stderr) == (0, '', '')
    assert (path / 'result.json').read_text() == result


def test_run_says_what_a_batch_is_if_it_is_more_than_a_client_holds(tmp_path):
  result = call(*SMALL, '--batch_size=100000000', f'--output_dir={tmp_path / "run"}')
  assert result.returncode == 0, result.stderr
  assert re.search(
    r'1 step of 100,000,000 examples \(a batch is all that a client holds, at most \d{1,3}\)',
    result.stdout,
  ), result.stdout


def test_failure_inside_a_client_is_one_line_with_client_and_operation(tmp_path):
  (tmp_path / 'failing_task.py').write_text(FAILING_TASK)
  arguments = [
    '--task_module=failing_task',
    '--task=failing',
    '--clients_per_round=2',
    '--local_steps=1',
    '--batch_size=5',
    f'--output_dir={tmp_path / "run"}',
  ]
  result = call(*arguments, cwd=tmp_path)
  assert result.returncode == 1
  (line,) = [line for line in result.stderr.splitlines() if line.startswith('train: ')]
  assert 'failed in operation' in line and 'InvalidArgumentError: assertion failed: [never]' in line
  assert 'Traceback' not in result.stderr
  assert 'Traceback' in call(*arguments, '--debug', cwd=tmp_path).stderr


FAILING_TASK = """
import collections

import numpy as np
import tensorflow as tf

from fednar_tff import tasks
from fednar_tff.tasks import models


def build_failing(*, model_seed=0, partition_seed=0):
  def network(param, x, training):
    logits = models.dense(param, x, 2, 'logits')
    with tf.control_dependencies([tf.debugging.assert_less(x, -9.0, 'never')]):
      return tf.identity(logits)

  spec = collections.OrderedDict(x=tf.TensorSpec([None, 3]), y=tf.TensorSpec([None], tf.int32))
  model_fn, functional_model_fn = tasks.build_model_fns(network, spec, model_seed)
  data = collections.OrderedDict(x=np.zeros([20, 3], np.float32), y=np.zeros([20], np.int32))
  return tasks.build_task(
    'failing', train=data, test=data, partition=tasks.build_natural(data['y'], ['a', 'b'] * 10),
    model_fn=model_fn, functional_model_fn=functional_model_fn,
  )


tasks.register_task('failing', build_failing)
"""
