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

from tests.experiments.test_settings import ROOT, call

SMALL = [
  '--task=synthetic', '--num_clients=6', '--clients_per_round=3', '--local_steps=2', '--batch_size=10', '--learning_rate=0.1',
  '--weight_decay=0.01', '--max_norm=0.5', '--rounds_per_evaluation=5', '--rounds_per_checkpoint=4',
]  # fmt: skip


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
  """Starts a run again and again, and kills it after a random round of those that are left, at any point of the next."""
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
  assert (killed / 'result.json').read_text() == (
    whole / 'result.json'
  ).read_text()  # It has the weights' hash.
  assert (killed / 'metrics.csv').read_bytes() == (whole / 'metrics.csv').read_bytes()
  if '--algorithm=scaffold' in arguments:
    assert latest_client_states(killed) == latest_client_states(whole)


def test_killed_run_resumes_to_the_same_bits(tmp_path):
  assert_killed_run_ends_like_an_uninterrupted_one(
    ['--algorithm=scaffold', '--client_optimizer=nar', '--dropout=0.2'],
    tmp_path,
    num_kills=2,
    total_rounds=60,
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
    'result.json',
    'curves.png',
    'checkpoints',
    'events',
  }
  config = json.loads((finished / 'config.json').read_text())
  assert config['settings']['weight_decay'] == 0.01
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


def test_sweep_lists_runs_skips_and_reports(preset, tmp_path):
  sweep = [
    f'--presets={preset}',
    '--set=weight_decay=0.01,-1',
    '--seeds=0,1',
    f'--output_dir={tmp_path / "runs"}',
  ]
  listed = call(*sweep, '--dry_run', module='experiments.sweep', cwd=tmp_path)
  commands = [shlex.split(line) for line in listed.stdout.splitlines() if not line.startswith('#')]
  assert len(commands) == 4 and commands[0][1:3] == ['-m', 'experiments.train']
  assert not (tmp_path / 'runs').exists()

  result = call(*sweep, '--parallel=2', module='experiments.sweep', cwd=tmp_path)
  assert result.returncode == 1
  assert '4 to run, 0 finished already' in result.stdout and '2 done, 2 failed' in result.stdout
  done = tmp_path / 'runs' / 'small_weight_decay0.01_seed1'
  failed = tmp_path / 'runs' / 'small_weight_decay-1_seed0'
  assert (done / 'result.json').exists() and str(failed) in result.stdout
  assert '--weight_decay=-1.0 is out of range' in (failed / 'log.txt').read_text()

  again = call(*sweep, '--dry_run', module='experiments.sweep', cwd=tmp_path)
  assert '# 2 to run, 2 finished already' in again.stdout


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--presets=none/*.flags'], "sweep: --presets: no file matches 'none/*.flags'."),
    (['--set=weight_decay'], "sweep: --set takes name=value or name=a,b,c, found 'weight_decay'."),
  ],
)
def test_wrong_sweeps_are_one_line(arguments, message, preset, tmp_path):
  result = call(f'--presets={preset}', *arguments, module='experiments.sweep', cwd=tmp_path)
  assert result.returncode == 2 and result.stderr.strip() == message


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
