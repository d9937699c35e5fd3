# SPDX-License-Identifier: Apache-2.0
"""MLflow and Weights & Biases: what they are told, that a run that resumes is one run, and what is
said if they are not there."""

import csv
import json
import socket
import sys
import types

import pytest

from fednar_tff import simulation

pytestmark = pytest.mark.usefixtures('in_process_runtime')


@pytest.fixture
def start(task, processes, tmp_path):
  def start(tracker):
    return simulation.run(
      task,
      processes['fed_avg'],
      total_rounds=5,
      clients_per_round=2,
      batch_size=10,
      local_steps=1,
      rounds_per_evaluation=2,
      rounds_per_checkpoint=2,
      output_dir=tmp_path / 'run',
      callbacks=[tracker],
    )

  return start


def interrupted_and_resumed(start, make_tracker):
  """Runs three rounds, of which two are saved, and then the rest; returns both trackers."""
  first = make_tracker()
  run = start(first)
  for _ in range(3):
    next(run)
  run._close_files()  # As when the process is killed: nobody is told.
  second = make_tracker()
  run = start(second)
  assert run.round_num == 2
  run.finish(quiet=True)
  return first, second


def written(tmp_path):
  with open(tmp_path / 'run' / 'metrics.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  return {
    name: {int(row['round_num']): float(row[name]) for row in rows if row[name]}
    for name in rows[0]
    if name != 'round_num'
  }


def test_mlflow_has_each_round_once_and_one_run(start, tmp_path):
  mlflow = pytest.importorskip('mlflow', reason='MLflow is not installed')
  folder = tmp_path / 'ml runs'
  first, second = interrupted_and_resumed(
    start, lambda: simulation.MLflowTracker(folder, run_name='mine', params={'task': 'synthetic'})
  )
  assert first.run_id == second.run_id
  client = mlflow.MlflowClient(folder.as_uri())
  experiment = client.get_experiment_by_name('fednar_tff')
  (found,) = client.search_runs([experiment.experiment_id])
  assert (found.info.run_name, found.info.status) == ('mine', 'FINISHED')
  assert found.data.params['task'] == 'synthetic' and found.data.params['batch_size'] == '10'
  for name, values in written(tmp_path).items():
    history = client.get_metric_history(found.info.run_id, name)
    assert [m.step for m in history] == sorted(values), name  # Each once, the third round, too.
    assert [m.value for m in history] == pytest.approx(list(values.values()), rel=1e-6), name
  assert len(client.get_metric_history(found.info.run_id, 'seconds')) == 5
  # A tracker in another place is told all rounds, those that were done before, too.
  other = simulation.MLflowTracker(tmp_path / 'other')
  start(other).close()
  client = mlflow.MlflowClient((tmp_path / 'other').as_uri())
  assert [m.step for m in client.get_metric_history(other.run_id, 'train_loss')] == [1, 2, 3, 4, 5]


def test_mlflow_knows_how_a_run_ended(start, tmp_path):
  mlflow = pytest.importorskip('mlflow', reason='MLflow is not installed')
  client = mlflow.MlflowClient(tmp_path.joinpath('mlruns').as_uri())
  for error, status in ((None, 'FINISHED'), (KeyboardInterrupt(), 'KILLED'), (OSError(), 'FAILED')):
    tracker = simulation.MLflowTracker(tmp_path / 'mlruns')
    run = start(tracker)
    assert client.get_run(tracker.run_id).info.status == 'RUNNING'
    run._end(error)
    assert client.get_run(tracker.run_id).info.status == status


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
  pytest.importorskip('mlflow', reason='MLflow is not installed')
  (tmp_path / 'file').write_text('')
  with pytest.raises(simulation.TrackerError, match='MLflow cannot use .*file/mlruns') as caught:
    simulation.MLflowTracker(tmp_path / 'file' / 'mlruns')
  assert len(str(caught.value).splitlines()) == 1


def test_wandb_writes_offline_under_one_id(start, tmp_path):
  pytest.importorskip('wandb', reason='Weights & Biases is not installed')
  tracker = simulation.WandbTracker(directory=tmp_path, config={'task': 'synthetic'})
  start(tracker).finish(quiet=True)
  run_id = json.loads((tmp_path / 'run' / 'wandb.json').read_text())['run_id']
  (written_file,) = tmp_path.glob(f'wandb/offline-run-*-{run_id}/run-{run_id}.wandb')
  assert b'test_accuracy' in written_file.read_bytes()


def test_wandb_is_told_each_round(start, tmp_path, monkeypatch):
  """What this package asks of W&B, with a stand-in for it."""
  told = []

  class Tracked:
    def log(self, metrics, step):
      told.append((step, sorted(metrics)))

    def finish(self, exit_code):
      told.append(exit_code)

  def init(**arguments):
    told.append((arguments['mode'], arguments['id'], arguments['config']['batch_size']))
    return Tracked()

  stand_in = types.SimpleNamespace(init=init, Settings=lambda **_: None)
  monkeypatch.setitem(sys.modules, 'wandb', stand_in)
  interrupted_and_resumed(start, lambda: simulation.WandbTracker(directory=tmp_path))
  (mode, run_id, batch_size), *rest = told
  assert (mode, batch_size) == ('offline', 10)
  steps = [entry[0] if isinstance(entry, tuple) else entry for entry in rest]
  assert steps == [1, 2, 3, 'offline', 3, 4, 5, 0]
  assert rest[3] == ('offline', run_id, 10)
  metrics = {step: names for step, names in rest[:3] + rest[4:7]}
  assert all('train_loss' in names and 'seconds' in names for names in metrics.values())
  assert ['test_accuracy' in metrics[t] for t in (1, 2, 3, 4, 5)] == [
    False,
    True,
    False,
    True,
    True,
  ]


@pytest.mark.parametrize(
  ('name', 'tracker'),
  [('mlflow', simulation.MLflowTracker), ('wandb', simulation.WandbTracker)],
)
def test_a_package_that_is_missing_is_one_line(name, tracker, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setitem(sys.modules, name, None)
  with pytest.raises(simulation.TrackerError, match=f'{name} cannot be .* pip install {name}$'):
    tracker()
  assert not list(tmp_path.iterdir())


def test_a_server_that_does_not_answer_is_one_line(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  with socket.socket() as unused:
    unused.bind(('localhost', 0))
    url = f'http://localhost:{unused.getsockname()[1]}'
  with pytest.raises(simulation.TrackerError, match=f'No tracking server answers at {url} ') as e:
    simulation.MLflowTracker(url)
  assert len(str(e.value).splitlines()) == 1 and not list(tmp_path.iterdir())
  with pytest.raises(ValueError, match="`mode` must be 'offline' or 'online', found 'maybe'"):
    simulation.WandbTracker(mode='maybe')
