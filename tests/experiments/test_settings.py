"""Wrong flags meet one line that says what was given and what is allowed."""

import os
import pathlib
import subprocess
import sys

import pytest

from experiments import settings

ROOT = pathlib.Path(__file__).parents[2]


def call(*arguments, cwd=ROOT, module='experiments.train'):
  return subprocess.run(
    [sys.executable, '-m', module, *arguments],
    cwd=cwd,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--algorithm=fedavg'], 'value should be one of <fed_avg|fed_prox|scaffold|fed_exp|fed_adam|fed_avgm>'),
    (['--task=mnist'], 'value should be one of <digits|cifar10|cifar100|shakespeare|synthetic>'),
    (['--learning_rat=0.1'], "Unknown command line flag 'learning_rat'. Did you mean: learning_rate"),
    (['--learning_rate=fast'], "could not convert string to float: 'fast'"),
    (['--learning_rate=-1'], '--learning_rate=-1.0 is out of range: it takes a nonnegative number.'),
    (['--learning_rate_decay=1.5'], '--learning_rate_decay=1.5 is out of range: it takes a number in (0, 1].'),
    (['--max_norm=0'], '--max_norm=0.0 is out of range: it takes a positive number.'),
    (['--client_optimizer=sgd', '--max_norm=1'], '--max_norm means nothing with --client_optimizer=sgd; it goes with client_optimizer nar, clip.'),
    (['--proximal_strength=0.1'], '--proximal_strength means nothing with --algorithm=fed_avg; it goes with algorithm fed_prox.'),
    (['--server_momentum=0.5', '--algorithm=fed_adam'], '--server_momentum means nothing with --algorithm=fed_adam; it goes with algorithm fed_avgm.'),
    (['--task=shakespeare', '--alpha=1'], '--alpha means nothing with --task=shakespeare; it goes with task digits, cifar10, synthetic.'),
    (['--local_steps=5', '--local_epochs=1'], '--local_steps and --local_epochs exclude each other: give one.'),
    (['--clients_per_round=30', '--num_clients=20'], '--clients_per_round=30 is more than --num_clients=20.'),
    (['--runtime=remote'], '--runtime=remote needs --workers=host:port,host:port.'),
    (['--total_rounds=0'], '--total_rounds=0 is out of range: it takes a positive number.'),
    (['--flagfile=not/there.flags'], 'not/there.flags'),
    (['train', 'please'], "'train' is not a flag; all arguments are --name=value."),
  ],
)  # fmt: skip
def test_wrong_flags_are_one_line(arguments, message, tmp_path):
  result = call(*arguments, cwd=tmp_path)
  assert result.returncode == 2
  assert len(result.stderr.splitlines()) == 1, result.stderr
  assert result.stderr.startswith('train: ') and message in result.stderr
  assert not list(tmp_path.iterdir())


def test_what_only_the_task_knows_is_one_line_too(tmp_path):
  result = call('--task=synthetic', '--clients_per_round=99', cwd=tmp_path)
  assert result.returncode == 2
  assert result.stderr.splitlines()[-1] == (
    'train: `clients_per_round` must be from 1 to the number of clients, 10, found 99.'
  )


def test_help_names_every_setting_with_its_group():
  text = ' '.join(call('--help').stdout.split())
  assert 'Trains one federated run' in text
  for setting in settings.SETTINGS:
    assert f'--{"[no]" if setting.kind is bool else ""}{setting.name}:' in text
    assert f'[{setting.group}] {setting.help}' in text.replace('\n', ' ')


def test_resolved_settings_hold_only_what_means_something():
  defaults = {s.name: s.default for s in settings.SETTINGS}
  fed_avg = settings.resolve(defaults)
  assert 'proximal_strength' not in fed_avg and 'server_momentum' not in fed_avg
  assert fed_avg['local_steps'] == 20
  fed_prox = settings.resolve({**defaults, 'algorithm': 'fed_prox', 'local_epochs': 2})
  assert fed_prox['proximal_strength'] == 0.001
  assert fed_prox['local_steps'] is None


def test_difference_shows_what_makes_runs_different_and_only_that():
  defaults = {s.name: s.default for s in settings.SETTINGS}
  wanted = {**defaults, 'weight_decay': 0.5, 'output_dir': 'elsewhere', 'rounds_per_checkpoint': 1}
  assert settings.difference(defaults, wanted) == ['weight_decay: 0.0 in the directory, 0.5 now']
