# SPDX-License-Identifier: Apache-2.0
"""The binaries as a user calls them: runs that are killed, refused, finished, swept."""

import json
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from experiments.definition import parsing
from tests.experiments.command import ROOT, SMALL, call


def start(*arguments):
  return subprocess.Popen(
    [sys.executable, '-m', 'experiments.train', *arguments],
    cwd=ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )


def latest_client_states(path):
  rows = sqlite3.connect(path / 'client_states.sqlite').execute(
    'SELECT client_id, state FROM states AS s WHERE round_num = '
    '(SELECT MAX(round_num) FROM states WHERE client_id = s.client_id) ORDER BY client_id'
  )
  return list(rows)


def num_rounds_written(path):
  try:
    return len((path / 'metrics.csv').read_text().splitlines()) - 1
  except FileNotFoundError:
    return 0


def kill_at_random_moments(arguments, path, num_kills, total_rounds, generator):
  """Starts a run again and again, and kills it after a random round of those that are left, at any
  point of the next."""
  for kill in range(num_kills):
    process = start(*arguments, f'--output_dir={path}')
    target = total_rounds * (kill + generator.random()) / (num_kills + 0.5)
    while process.poll() is None and num_rounds_written(path) < target:
      time.sleep(0.002)
    time.sleep(generator.random() * 0.2)
    process.kill()
    process.wait()
    assert not (path / 'result.json').exists(), 'the run ended before it could be killed'


def assert_killed_run_ends_like_an_uninterrupted_one(arguments, tmp_path, num_kills, total_rounds):
  arguments = [*SMALL, *arguments, f'--total_rounds={total_rounds}']
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  result = call(*arguments, f'--output_dir={whole}')
  assert result.returncode == 0, result.stderr
  kill_at_random_moments(arguments, killed, num_kills, total_rounds, random.Random(0))
  result = call(*arguments, f'--output_dir={killed}')
  assert result.returncode == 0, result.stderr
  # It has the weights' hash.
  assert (killed / 'result.json').read_text() == (whole / 'result.json').read_text()
  assert (killed / 'metrics.csv').read_bytes() == (whole / 'metrics.csv').read_bytes()
  if '--algorithm=scaffold' in arguments:
    assert latest_client_states(killed) == latest_client_states(whole)


def test_killed_run_resumes_to_the_same_bits(tmp_path):
  assert_killed_run_ends_like_an_uninterrupted_one(
    ['--algorithm=scaffold', '--client_optimizer=nar', '--dropout=0.2'],
    tmp_path,
    num_kills=1,
    total_rounds=20,
  )


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['scaffold', 'fed_adam'])
def test_run_killed_at_ten_random_moments_resumes_to_the_same_bits(algorithm, tmp_path):
  assert_killed_run_ends_like_an_uninterrupted_one(
    [f'--algorithm={algorithm}', '--client_optimizer=nar', '--dropout=0.2'],
    tmp_path,
    num_kills=10,
    total_rounds=400,
  )


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp('finished') / 'run'
  result = call(*SMALL, '--total_rounds=6', f'--output_dir={path}')
  assert result.returncode == 0, result.stderr
  return path


def test_run_directory_holds_everything(finished):
  names = {p.name for p in finished.iterdir()}
  assert names >= {
    'config.json',
    'metrics.csv',
    'timing.csv',
    'run.json',
    'result.json',
    'curves.png',
    'checkpoints',
    'events',
  }
  config = json.loads((finished / 'config.json').read_text())
  assert config['settings']['weight_decay'] == 0.01
  # Defaults as the values that they mean.
  assert (config['settings']['model'], config['settings']['alpha']) == ('mlp', 1.0)
  assert config['settings']['server_learning_rate'] == 1.0
  assert len(config['partition_hash']) == 64
  assert config['environment']['tensorflow_federated'] == '0.87.0'
  assert config['environment']['runtime']['runtime'] == 'in_process'
  assert set(config['seeds']) == {'partition', 'sampling', 'model', 'batches'}
  result = json.loads((finished / 'result.json').read_text())
  assert result['rounds'] == 6 and 0 < result['final_test_accuracy'] <= 1


def test_finished_run_says_so(finished):
  before = (finished / 'metrics.csv').stat().st_mtime_ns
  result = call(*SMALL, '--total_rounds=6', f'--output_dir={finished}')
  assert result.returncode == 0 and f'{finished} is finished' in result.stdout
  assert (finished / 'metrics.csv').stat().st_mtime_ns == before


def test_other_settings_are_refused_with_the_difference(finished):
  result = call(*SMALL, '--total_rounds=6', '--seed=3', '--max_norm=2', f'--output_dir={finished}')
  assert result.returncode == 2
  assert result.stderr.strip() == (
    f'train: {finished} holds a run with other settings (max_norm: 0.5 in the directory, 2.0 now; '
    'seed: 0 in the directory, 3 now). Choose another --output_dir.'
  )


def files_of(path):
  return {p: p.read_bytes() for p in sorted(path.rglob('*')) if p.is_file()}


@pytest.mark.parametrize(
  'damage, message',
  [
    ('{"settings": {"ta', 'config.json is damaged (JSONDecodeError: '),
    ('{"environment": {}}', "config.json is damaged (KeyError: 'settings'). Choose another"),
    ('[]', 'config.json is damaged (TypeError: '),
    (
      json.dumps({'settings': parsing.parse(SMALL)}),
      'config.json is damaged: it has no partition_hash. Choose another',
    ),
  ],
)
def test_damaged_config_is_one_line(damage, message, tmp_path):
  (tmp_path / 'config.json').write_text(damage)
  result = call(*SMALL, f'--output_dir={tmp_path}')
  assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
  assert message in result.stderr
  assert list(files_of(tmp_path)) == [tmp_path / 'config.json']


def test_more_rounds_continue_a_finished_run_and_fewer_are_refused(finished, tmp_path):
  path = tmp_path / 'run'
  result = call(*SMALL, '--total_rounds=3', f'--output_dir={path}')
  # The start of a log says what runs; the end, what came out.
  assert 'synthetic: mlp, 212 weights, 6 clients (dirichlet, alpha 1)' in result.stdout
  assert 'FedAvg with nar: learning rate 0.1, weight decay 0.01, A = 0.5' in result.stdout
  assert f'in {path}: starts, of 3 rounds' in result.stdout
  more = call(*SMALL, '--total_rounds=6', f'--output_dir={path}')
  assert more.returncode == 0, more.stderr
  assert f'in {path}: resumes after round 3, of 6 rounds' in more.stdout
  weights = [
    json.loads((p / 'result.json').read_text())['weights_sha256'] for p in (path, finished)
  ]
  assert weights[0] == weights[1]
  before = files_of(path)
  fewer = call(*SMALL, '--total_rounds=4', f'--output_dir={path}')
  assert fewer.returncode == 2
  assert fewer.stderr == f'train: --total_rounds=4 is less than the 6 rounds that {path} has.\n'
  assert files_of(path) == before


TASK_MODULE = """
from fednar_tff import tasks

def build(*, num_clients=4, alpha=0.5, dropout=0.0, partition_seed=0):
  return tasks.create_task(
    'synthetic', num_clients=num_clients, alpha=alpha, dropout=dropout,
    partition_seed=partition_seed,
  )

tasks.register_task('clouds', build)
"""


def test_task_of_a_users_own_module(tmp_path):
  (tmp_path / 'my_package').mkdir()
  (tmp_path / 'my_package' / 'clouds.py').write_text(TASK_MODULE)
  arguments = [
    '--task_module=my_package.clouds',
    '--task=clouds',
    '--clients_per_round=3',
    '--total_rounds=1',
  ]
  result = call(*arguments, '--alpha=0.7', '--output_dir=run', cwd=tmp_path)
  assert result.returncode == 0, result.stderr
  saved = json.loads((tmp_path / 'run' / 'config.json').read_text())['settings']
  assert (saved['num_clients'], saved['alpha'], saved['dropout']) == (4, 0.7, 0.0)
  assert 'model' not in saved
  wrong = call(*arguments, '--augmentation=none', cwd=tmp_path)
  assert wrong.returncode == 2
  assert (
    '--augmentation means nothing with --task=clouds; it goes with task cifar10' in wrong.stderr
  )


def wait_for_rounds(process, path, count):
  deadline = time.monotonic() + 120
  while num_rounds_written(path) < count:
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.01)


def test_second_process_on_a_directory_is_refused_and_sigterm_saves(tmp_path):
  arguments = [
    *SMALL,
    '--total_rounds=5000',
    '--rounds_per_checkpoint=5000',
    f'--output_dir={tmp_path / "run"}',
  ]
  process = start(*arguments)
  try:
    wait_for_rounds(process, tmp_path / 'run', 3)
    second = call(*arguments)
    assert second.returncode == 2
    assert (
      second.stderr.splitlines()[-1] == f'train: {tmp_path / "run"} is in use by another process.'
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
  finally:
    process.kill()
    process.wait()
  saved = [int(p.name.rpartition('_')[2]) for p in (tmp_path / 'run' / 'checkpoints').iterdir()]
  assert len(saved) == 1 and saved[0] >= 3


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason='only root can mount a small disk')
def test_full_disk_is_one_line_and_loses_nothing(tmp_path):
  disk = tmp_path / 'disk'
  disk.mkdir()
  mounted = subprocess.run(
    ['mount', '-t', 'tmpfs', '-o', 'size=400k', 'tmpfs', str(disk)], check=False
  )
  if mounted.returncode:
    pytest.skip('this machine does not let us mount a small disk')
  try:
    arguments = [
      *SMALL,
      '--total_rounds=4000',
      '--rounds_per_checkpoint=2',
      f'--output_dir={disk / "run"}',
    ]
    result = call(*arguments)
    assert result.returncode == 1, result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f'train: Cannot write to {disk / "run"}: the disk is full.'), (
      result.stderr
    )
    subprocess.run(['mount', '-o', 'remount,size=50m', str(disk)], check=True)
    rounds = num_rounds_written(disk / 'run')
    process = start(*arguments)
    wait_for_rounds(process, disk / 'run', rounds + 2)
    process.kill()
    process.wait()
  finally:
    subprocess.run(['umount', str(disk)], check=True)


@pytest.fixture
def preset(tmp_path):
  path = tmp_path / 'small.flags'
  path.write_text('\n'.join([*SMALL, '--total_rounds=4']) + '\n')
  return path


def commands_of(listed):
  return [shlex.split(line) for line in listed.stdout.splitlines() if not line.startswith('#')]


def test_sweep_lists_runs_skips_and_reports(preset, tmp_path):
  sweep = [
    f'--presets={preset}',
    '--set=weight_decay=0.01,0.1',
    '--set=rounds_per_checkpoint=2',
    '--seeds=0,1',
    f'--output_dir={tmp_path / "runs"}',
  ]

  def run(*more):
    return call(*sweep, *more, module='experiments.sweep', cwd=tmp_path)

  listed = run('--dry_run')
  commands = commands_of(listed)
  assert len(commands) == 4 and commands[0][1:3] == ['-m', 'experiments.train']
  assert not (tmp_path / 'runs').exists()

  # One cell holds another run, and one cannot be written: the others run all the same.
  taken = tmp_path / 'runs' / 'small_weight_decay0.1_seed0'
  first = call(
    *SMALL,
    '--total_rounds=4',
    '--max_norm=2',
    '--weight_decay=0.1',
    '--quiet',
    f'--output_dir={taken}',
  )
  assert first.returncode == 0 and not first.stdout, first.stdout + first.stderr
  blocked = tmp_path / 'runs' / 'small_weight_decay0.1_seed1'
  blocked.touch()
  before = files_of(taken)
  result = run('--parallel=2')
  assert result.returncode == 1
  assert '3 to run, 0 finished already, 1 left out' in result.stdout
  assert '2 done, 0 diverged, 1 failed' in result.stdout and str(blocked) in result.stdout
  assert (
    f'left out: {taken} holds a run with other settings (max_norm: 2.0 in the directory, 0.5 now)'
    in result.stderr
  )
  assert files_of(taken) == before
  # What changes no results is no part of a cell's name.
  assert (tmp_path / 'runs' / 'small_weight_decay0.01_seed1' / 'result.json').exists()

  blocked.unlink()
  again = run('--dry_run')
  assert '# 1 to run, 2 finished already, 1 left out' in again.stdout
  # A preset that now has more rounds is not finished; one with fewer than are done is told.
  preset.write_text(preset.read_text().replace('--total_rounds=4', '--total_rounds=9'))
  assert '# 3 to run, 0 finished already, 1 left out' in run('--dry_run').stdout
  preset.write_text(preset.read_text().replace('--total_rounds=9', '--total_rounds=3'))
  fewer = run('--dry_run')
  assert '--total_rounds=3 is less than the 4 rounds that' in fewer.stderr
  assert '# 1 to run, 0 finished already, 3 left out' in fewer.stdout


def test_sweep_of_two_variants_has_a_directory_for_each_cell(tmp_path):
  listed = call(
    '--presets=paper/cifar10_fed_avg_*_alpha0.3_steps20_wd0.05,cpu/'
    'cifar10_fed_avg_*_alpha0.3_steps20_wd0.05',
    '--dry_run',
    '--set=data_dir=/some/where',
    module='experiments.sweep',
    cwd=tmp_path,
  )
  directories = [command[-1] for command in commands_of(listed)]
  assert len(set(directories)) == 4
  assert directories[0] == (
    '--output_dir=runs/paper/cifar10_fed_avg_clip_alpha0.3_steps20_wd0.05_seed0'
  )


@pytest.mark.parametrize(
  'arguments, count',
  [
    (['--table=cifar10', '--variant=paper', '--seeds=0,1'], 72),
    (['--table=shakespeare', '--variant=reference'], 24),
    (['--figure=weight_decay', '--variant=cpu'], 90),
    (['--figure=robustness'], 12),
    (['--table=cifar10', '--algorithms=fed_avg,scaffold', '--alphas=0.3,1.0'], 8),
    (['--table=cifar10', '--algorithms=fed_prox', '--set=proximal_strength=0.1,1'], 12),
  ],
)
def test_tables_and_figures_by_name(arguments, count, tmp_path):
  listed = call(*arguments, '--dry_run', module='experiments.sweep', cwd=tmp_path)
  commands = commands_of(listed)
  assert len(commands) == count, listed.stderr
  assert len({command[-1] for command in commands}) == count
  assert not list(tmp_path.iterdir())
  for command in commands:
    assert command[1:3] == ['-m', 'experiments.train']
    parsing.parse(command[3:])


@pytest.mark.parametrize(
  'arguments, message',
  [
    ([], 'give one of --table, --figure and --presets.'),
    (['--table=cifar10', '--figure=curves'], 'give one of --table, --figure and --presets.'),
    (['--table=mnist'], '--table=mnist is unknown: it takes cifar10, shakespeare.'),
    (
      ['--figure=typo'],
      '--figure=typo is unknown: it takes weight_decay, robustness, clipping, curves.',
    ),
    (
      ['--table=cifar10', '--variant=gpu'],
      '--variant=gpu is unknown: it takes paper, reference, cpu.',
    ),
    (['--presets='], '--presets is empty; it takes names of presets, patterns of them, or files.'),
    (
      ['--presets=none.flags'],
      '--preset=none.flags is unknown; a name begins with paper/, reference/, cpu/.',
    ),
    (
      ['--presets=cpu/cifar10_fed_avg_*', '--variant=cpu'],
      '--variant goes with --table or --figure; the name of a preset begins with it.',
    ),
    (['--table=cifar10', '--seeds='], "--seeds takes nonnegative integers as 0,1,2, found ''."),
    (
      ['--table=cifar10', '--seeds=0,x'],
      "--seeds takes nonnegative integers as 0,1,2, found '0,x'.",
    ),
    (
      ['--table=cifar10', '--seeds=0,0'],
      'two cells would share the folder paper/cifar10_fed_avg_clip_alpha0.3_steps20_wd0.05_seed0.',
    ),
    (['--table=cifar10', '--alphas=5'], '--alphas=5: the cells have 0.3, 1, 10.'),
    (
      ['--table=cifar10', '--algorithms='],
      '--algorithms=: the cells have fed_avg, fed_prox, scaffold, fed_exp, fed_adam, fed_avgm.',
    ),
    (
      ['--table=cifar10', '--set=weight_decay'],
      "--set takes name=value or name=a,b,c, found 'weight_decay'.",
    ),
    (
      ['--table=cifar10', '--set=weight_decai=1'],
      "--set takes a setting of `train`, found 'weight_decai=1'.",
    ),
    (
      ['--table=cifar10', '--set=seed=1'],
      "--set takes a setting of `train`, found 'seed=1'; --seeds is a flag of its own.",
    ),
    (
      ['--table=shakespeare', '--set=weight_decay=-1'],
      'paper/shakespeare_fed_avg_clip_wd0.0001_weight_decay-1_seed0: --weight_decay=-1.0 is out '
      'of range: it takes a nonnegative number.',
    ),
    (
      ['--table=cifar10', '--output_dir=/dev/null/x'],
      '--output_dir=/dev/null/x cannot be written: Not a directory.',
    ),
    (['please'], "'please' is not a flag; all arguments are --name=value."),
  ],
)
def test_wrong_sweeps_are_one_line(arguments, message, tmp_path):
  result = call(*arguments, module='experiments.sweep', cwd=tmp_path)
  assert result.returncode == 2 and result.stderr == f'sweep: {message}\n'
  assert not list(tmp_path.iterdir())


def test_sweep_without_slurm_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', str(tmp_path))
  result = call('--table=cifar10', '--executor=slurm', module='experiments.sweep', cwd=tmp_path)
  assert result.returncode == 2 and 'there is no `sbatch` here' in result.stderr
  assert len(result.stderr.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_stopped_sweep_leaves_no_process_and_resumes(preset, tmp_path):
  sweep = [f'--presets={preset}', '--set=total_rounds=5000', f'--output_dir={tmp_path / "runs"}']
  process = subprocess.Popen(
    [sys.executable, '-m', 'experiments.sweep', *sweep],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  )
  run = tmp_path / 'runs' / 'small_total_rounds5000_seed0'
  try:
    wait_for_rounds(process, run, 3)
    children = subprocess.run(
      ['pgrep', '-P', str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(children) == 1
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and 'the same command does the rest' in errors
    assert not os.path.exists(f'/proc/{children[0]}')
    assert list((run / 'checkpoints').iterdir())
  finally:
    process.terminate()  # It ends its own child.
    process.wait()
