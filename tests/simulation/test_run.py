# SPDX-License-Identifier: Apache-2.0
"""Runs on the synthetic task: what they write, and that they resume to the same bits."""

import csv
import errno
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, simulation, tasks
from tests.simulation.small_runs import build, start

pytestmark = pytest.mark.usefixtures('in_process_runtime')


def weights_of(run):
  return [np.asarray(w) for w in tf.nest.flatten(list(run.model_weights.trainable))]


def assert_same_run(found, expected, found_dir, expected_dir):
  for x, y in zip(weights_of(found), weights_of(expected)):
    np.testing.assert_array_equal(x, y)
  assert (found_dir / 'metrics.csv').read_bytes() == (expected_dir / 'metrics.csv').read_bytes()
  if expected.client_states is not None:
    assert found.client_states.client_ids() == expected.client_states.client_ids()
    for client_id in expected.client_states.client_ids():
      for x, y in zip(
        tf.nest.flatten(found.client_states.get([client_id])),
        tf.nest.flatten(expected.client_states.get([client_id])),
      ):
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope='module')
def uninterrupted(task, processes, tmp_path_factory):
  """One whole run of each algorithm, to compare with."""
  found = {}
  for name in ('fed_avg', 'scaffold', 'fed_adam'):
    process = processes[name]
    path = tmp_path_factory.mktemp(name)
    run = start(task, process, path)
    run.finish()
    found[name] = (run, path)
  return found


def test_each_round_is_a_line_of_metrics(uninterrupted):
  _, path = uninterrupted['fed_avg']
  with open(path / 'metrics.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['round_num'] for row in rows] == list('1234567')
  assert {
    'train_loss',
    'train_accuracy',
    'test_loss',
    'test_accuracy',
    'learning_rate',
    'weight_decay',
    'clipped_steps',
    'total_steps',
    'mean_clipped_norm',
    'num_non_finite_clients',
    'server_step_size',
    'model_norm',
  } <= set(rows[0])
  assert [bool(row['test_accuracy']) for row in rows] == [
    False,
    False,
    True,
    False,
    False,
    True,
    True,
  ]
  np.testing.assert_allclose(
    [float(row['learning_rate']) for row in rows], 0.1 * 0.9 ** np.arange(7), rtol=1e-6
  )
  assert {row['total_steps'] for row in rows} == {'6'}
  assert len((path / 'timing.csv').read_text().splitlines()) == 8
  assert list((path / 'events').iterdir())


def test_accuracy_is_that_of_the_model_on_the_test_set(task, uninterrupted):
  run, path = uninterrupted['fed_avg']
  model = task.functional_model_fn()
  correct = count = 0
  for batch in task.datasets.get_centralized_test_data():
    logits = model.predict_on_batch((tuple(weights_of(run)), ()), batch['x'], training=False)
    correct += int(np.sum(np.argmax(logits, -1) == np.asarray(batch['y'])))
    count += len(batch['y'])
  with open(path / 'metrics.csv', newline='') as file:
    last = list(csv.DictReader(file))[-1]
  np.testing.assert_allclose(float(last['test_accuracy']), correct / count, rtol=1e-6)
  np.testing.assert_allclose(run.evaluate()['accuracy'], correct / count, rtol=1e-6)


def test_two_equal_runs_write_equal_bytes_with_and_without_checkpoints(
  task, processes, uninterrupted, tmp_path
):
  run = start(task, processes['fed_avg'], tmp_path / 'again', rounds_per_checkpoint=100)
  run.finish()
  assert_same_run(run, uninterrupted['fed_avg'][0], tmp_path / 'again', uninterrupted['fed_avg'][1])


def test_packed_clients_and_datasets_of_batches_train_alike(task, uninterrupted):
  process = algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    learning_rate_fn=algorithms.exponential_decay(0.1, 0.9),
  )
  run = start(task, process, packed=False)
  run.finish()
  for x, y in zip(weights_of(run), weights_of(uninterrupted['fed_avg'][0])):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_clients_that_weigh_as_their_data_are_handed_its_size():
  task = tasks.create_task('synthetic', num_clients=6, partition='dirichlet_unequal')
  sizes = dict(zip(task.partition.client_ids, map(len, task.partition.rows)))
  assert len(set(sizes.values())) > 3

  def build_weighted(weighting):
    return algorithms.build_fed_avg(
      task.functional_model_fn(),
      client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
      client_weighting=weighting,
      loop_implementation=algorithms.PACKED,
    )

  run = start(task, build_weighted(algorithms.DATA_SIZE), total_rounds=1, local_steps=1)
  run.finish()
  # The same round, each client by itself, and the mean by hand.
  alone = build_weighted(tff.learning.ClientWeighting.UNIFORM)
  seeds = simulation.derive_seeds(4)
  clients = simulation.sample_clients(task.partition.client_ids, 3, 0, seeds.sampling)
  models = []
  for client_id in clients:
    data = task.packed_client(client_id, 0, batch_size=10, local_steps=1, seed=seeds.batches)
    state, _ = alone.next(alone.initialize(), [data])
    models.append(state.global_model_weights.trainable)
  for found, *leaves in zip(weights_of(run), *models):
    expected = np.average(leaves, axis=0, weights=[sizes[c] for c in clients])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert not np.allclose(found, np.mean(leaves, axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  ('name', 'stop_after'),
  # Before, at and after a checkpoint; the most to lose has SCAFFOLD, with states of clients.
  [('scaffold', 1), ('scaffold', 2), ('scaffold', 5), ('fed_avg', 1), ('fed_adam', 5)],
)
def test_a_run_that_was_dropped_resumes_to_the_same_bits(
  task, processes, uninterrupted, tmp_path, name, stop_after
):
  run = start(task, processes[name], tmp_path)
  for _ in range(stop_after):
    next(run)
  run.close()  # Without saving: what is lost is what a kill loses.
  again = start(task, processes[name], tmp_path)
  assert again.round_num == stop_after // 2 * 2
  again.finish()
  assert_same_run(again, uninterrupted[name][0], tmp_path, uninterrupted[name][1])


def test_client_states_on_disk_give_the_same_bits(task, processes, uninterrupted, tmp_path):
  run = start(task, processes['scaffold'], tmp_path, client_states_in_memory=False)
  for _ in range(5):
    next(run)
  run.close()
  again = start(task, processes['scaffold'], tmp_path, client_states_in_memory=False)
  again.finish()
  assert_same_run(again, uninterrupted['scaffold'][0], tmp_path, uninterrupted['scaffold'][1])


def test_ctrl_c_saves_the_rounds_that_are_done(
  task, processes, uninterrupted, tmp_path, monkeypatch
):
  run = start(task, processes['scaffold'], tmp_path, rounds_per_checkpoint=100)
  for _ in range(3):
    next(run)
  monkeypatch.setattr(run, '_next_round', lambda: (_ for _ in ()).throw(KeyboardInterrupt))
  with pytest.raises(KeyboardInterrupt):
    next(run)
  again = start(task, processes['scaffold'], tmp_path, rounds_per_checkpoint=100)
  assert again.round_num == 3
  again.finish()
  assert_same_run(again, uninterrupted['scaffold'][0], tmp_path, uninterrupted['scaffold'][1])


def truncate(path):
  data = path / 'variables' / 'variables.data-00000-of-00001'
  data.write_bytes(data.read_bytes()[:100])


@pytest.mark.parametrize(
  'damage',
  [
    truncate,
    shutil.rmtree,
    lambda path: (path / 'saved_model.pb').unlink(),
    lambda path: (path / 'saved_model.pb').write_bytes(b''),
  ],
  ids=['truncated', 'deleted', 'part_deleted', 'emptied'],
)
def test_damaged_newest_checkpoint_resumes_from_the_one_before(
  task, processes, uninterrupted, tmp_path, damage, caplog
):
  run = start(task, processes['scaffold'], tmp_path)
  for _ in range(5):
    next(run)
  run.close()
  damage(tmp_path / 'checkpoints' / 'program_state_4')
  again = start(task, processes['scaffold'], tmp_path)
  assert again.round_num == 2
  if damage is not shutil.rmtree:
    assert 'program_state_4 is damaged and set aside' in caplog.text
  again.finish()
  assert_same_run(again, uninterrupted['scaffold'][0], tmp_path, uninterrupted['scaffold'][1])


def test_half_a_line_of_metrics_is_dropped(task, processes, uninterrupted, tmp_path):
  run = start(task, processes['fed_avg'], tmp_path)
  for _ in range(3):
    next(run)
  run.close()
  for name in ('metrics.csv', 'timing.csv'):
    with open(tmp_path / name, 'a') as file:
      file.write('1')  # The beginning of a line of round 10-something.
  (tmp_path / 'metrics.csv_temp1234').write_text('left over')
  again = start(task, processes['fed_avg'], tmp_path)
  again.finish()
  assert_same_run(again, uninterrupted['fed_avg'][0], tmp_path, uninterrupted['fed_avg'][1])
  assert not (tmp_path / 'metrics.csv_temp1234').exists()


def test_full_disk_is_a_clear_error_and_loses_nothing(
  task, processes, uninterrupted, tmp_path, monkeypatch
):
  run = start(task, processes['fed_avg'], tmp_path)
  for _ in range(3):
    next(run)

  async def fail(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(run._directory._checkpoints, 'save', fail)
  with pytest.raises(
    simulation.RunDirectoryError, match='the disk is full. What was saved before is whole'
  ):
    run.finish()
  again = start(task, processes['fed_avg'], tmp_path)
  assert again.round_num == 2
  again.finish()
  assert_same_run(again, uninterrupted['fed_avg'][0], tmp_path, uninterrupted['fed_avg'][1])


def test_second_run_on_a_directory_is_refused(task, processes, tmp_path):
  run = start(task, processes['fed_avg'], tmp_path)
  with pytest.raises(simulation.RunDirectoryError, match='is in use by another process'):
    start(task, processes['fed_avg'], tmp_path)
  run.close()
  start(task, processes['fed_avg'], tmp_path).close()


def test_finished_run_has_nothing_left_to_do_and_returns_its_last_round(
  task, processes, uninterrupted
):
  first, path = uninterrupted['fed_avg']
  again = start(task, processes['fed_avg'], path)
  assert again.round_num == 7
  last = again.finish()
  assert last == again.last
  assert (last.round_num, dict(last.metrics)) == (7, dict(first.last.metrics))
  assert last.seconds == pytest.approx(first.last.seconds, abs=1e-4)


def test_a_log_without_a_terminal_has_plain_lines(task, processes, capsys):
  start(task, processes['fed_avg']).finish('digits')
  lines = capsys.readouterr().out.splitlines()
  assert [line.split(',')[0] for line in lines] == [f'digits: round {i}/7' for i in range(1, 8)]
  assert 'test accuracy      -' in lines[1] and 'test accuracy' in lines[2]
  start(task, processes['fed_avg'], total_rounds=2).finish(quiet=True)
  captured = capsys.readouterr()
  assert captured.out == captured.err == ''


@pytest.fixture(scope='module')
def diverging(task):
  """With this weight decay, each step multiplies the weights by -1e19: float32 ends in the first
  round."""
  return algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_clipped_sgd(1.0, 1e19, 1.0),
    learning_rate_fn=lambda t: tf.where(t < 1, 0.0, 1.0),
    loop_implementation=algorithms.PACKED,
  )


def test_a_metric_without_a_client_is_missing(task, diverging, tmp_path, caplog):
  run = start(task, diverging, tmp_path, local_steps=4, total_rounds=3, rounds_per_evaluation=1)
  run.finish()
  with open(tmp_path / 'metrics.csv', newline='') as file:
    first, *lost = csv.DictReader(file)
  assert first['train_loss'] and first['mean_clipped_norm'] and first['total_steps'] == '12'
  for row in lost:
    assert row['train_loss'] == row['train_accuracy'] == row['mean_clipped_norm'] == ''
    assert (row['total_steps'], row['num_non_finite_clients']) == ('0', '3')
    assert row['test_accuracy'] == first['test_accuracy']
  assert run.diverged_rounds == 2
  warnings = [r.getMessage() for r in caplog.records if 'finite' in r.getMessage()]
  assert len(warnings) == 1 and warnings[0].startswith('Round 2: no client had a finite update')


def test_a_run_that_diverged_stops_and_says_what_to_change(task, diverging, tmp_path):
  arguments = {'local_steps': 4, 'total_rounds': 9, 'rounds_per_checkpoint': 100}
  run = start(task, diverging, tmp_path, stop_on_divergence=3, **arguments)
  with pytest.raises(simulation.DivergedError, match='smaller learning rate') as error:
    run.finish()
  assert '\n' not in str(error.value)
  assert (error.value.round_num, error.value.diverged_rounds) == (4, 3)
  # Everything is saved, and a second start comes to the same end at once.
  again = start(task, diverging, tmp_path, stop_on_divergence=3, **arguments)
  assert (again.round_num, again.diverged_rounds, again.last.round_num) == (4, 3, 4)
  with pytest.raises(simulation.DivergedError):
    next(again)
  assert len((tmp_path / 'metrics.csv').read_text().splitlines()) == 5


def test_the_count_of_lost_rounds_survives_a_kill(task, diverging, tmp_path):
  arguments = {'local_steps': 4, 'total_rounds': 9, 'stop_on_divergence': 4}
  run = start(task, diverging, tmp_path, **arguments)
  for _ in range(3):
    next(run)
  run.close()
  again = start(task, diverging, tmp_path, **arguments)
  assert (again.round_num, again.diverged_rounds) == (2, 1)
  with pytest.raises(simulation.DivergedError):
    again.finish()
  assert again.round_num == 5
  resumed = start(task, diverging, tmp_path, **{**arguments, 'stop_on_divergence': None})
  assert resumed.finish().round_num == 9


@pytest.mark.parametrize(
  ('loop', 'packed'),
  [(algorithms.PACKED, False), (tff.learning.LoopImplementation.DATASET_ITERATOR, True)],
)
@pytest.mark.parametrize('name', ['fed_avg', 'scaffold'])
def test_packed_has_to_fit_the_process(task, processes, name, loop, packed):
  process = processes[name] if loop is algorithms.PACKED else build(task, name, loop)
  expected = (
    rf'`packed` must be {not packed} .*`loop_implementation=.*PACKED`, found packed={packed}'
  )
  with pytest.raises(ValueError, match=expected):
    start(task, process, packed=packed)


def test_an_output_dir_that_cannot_be_written_is_one_line(task, processes, tmp_path):
  (tmp_path / 'file').write_text('not a folder')
  with pytest.raises(simulation.RunDirectoryError, match='Cannot write to .*Not a directory') as e:
    start(task, processes['fed_avg'], tmp_path / 'file' / 'run')
  assert '\n' not in str(e.value)
  with pytest.raises(simulation.RunDirectoryError, match='Cannot write to'):
    simulation.check_output_dir(tmp_path / 'file')
  simulation.check_output_dir(tmp_path / 'new')
  assert not list((tmp_path / 'new').iterdir())


def test_a_disk_that_is_full_for_client_states_is_a_clear_error(
  task, processes, uninterrupted, tmp_path
):
  run = start(task, processes['scaffold'], tmp_path)
  for _ in range(2):
    next(run)
  # SQLite then fails as on a full disk.
  (pages,) = run.client_states._database.execute('PRAGMA page_count').fetchone()
  run.client_states._database.execute(f'PRAGMA max_page_count = {pages}')
  with pytest.raises(
    simulation.RunDirectoryError, match='sqlite: the disk is full. What was saved before is whole'
  ):
    run.finish()
  again = start(task, processes['scaffold'], tmp_path)
  assert again.round_num == 2
  again.finish()
  assert_same_run(again, uninterrupted['scaffold'][0], tmp_path, uninterrupted['scaffold'][1])


def test_a_round_that_fits_no_memory_is_refused_at_once(task, processes):
  with pytest.raises(ValueError, match='`local_steps` must be at most [0-9]+ .*found 100000000'):
    start(task, processes['fed_avg'], local_steps=100_000_000)


@pytest.mark.parametrize('name', ['total_rounds', 'rounds_per_evaluation', 'rounds_per_checkpoint'])
def test_numbers_out_of_range_are_named(task, processes, name):
  with pytest.raises(ValueError, match=f'`{name}` must be a positive integer, found 0'):
    start(task, processes['fed_avg'], **{name: 0})


def test_only_checkpoints_that_may_be_needed_are_kept(uninterrupted):
  _, path = uninterrupted['scaffold']
  assert sorted(p.name for p in (path / 'checkpoints').iterdir()) == [
    f'program_state_{v}' for v in (4, 6, 7)
  ]


def files_of(path):
  return {
    p.relative_to(path): p.read_bytes() if p.is_file() else None for p in sorted(path.rglob('*'))
  }


@pytest.fixture(scope='module')
def other_processes(task):
  """By what sets it apart from the algorithm that a directory was begun with."""
  larger = tasks.create_task('synthetic', num_clients=6, dropout=0.5)
  return {
    'another type of the state': (task, build(task, 'scaffold')),
    'another partition of the data': (
      tasks.create_task('synthetic', num_clients=7),
      build(task, 'fed_avg'),
    ),
    'hparams/client_work/max_norm: 0.5 in the directory, 2.0 now': (
      larger,
      algorithms.build_fed_avg(
        task.functional_model_fn(),
        client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 2.0),
        loop_implementation=algorithms.PACKED,
      ),
    ),
  }


@pytest.mark.parametrize('stop_after', [3, 7])
def test_another_run_is_refused_and_the_directory_stays_as_it_was(
  task, processes, other_processes, tmp_path, stop_after
):
  run = start(task, processes['fed_avg'], tmp_path)
  for _ in range(stop_after):
    next(run)
  run.close()
  with open(tmp_path / 'metrics.csv', 'a') as file:
    file.write('1')  # Half a line, as a kill leaves it: not even this is touched.
  before = files_of(tmp_path)
  for reason, (other_task, process) in other_processes.items():
    with pytest.raises(simulation.RunDirectoryError, match='holds a run with other settings') as e:
      start(other_task, process, tmp_path)
    assert reason in str(e.value)
  for name, value in (
    ('batch_size', 20),
    ('seed', 5),
    ('local_steps', 3),
    ('clients_per_round', 2),
  ):
    with pytest.raises(simulation.RunDirectoryError, match=f'{name.replace("seed", "_seed")}: '):
      start(task, processes['fed_avg'], tmp_path, **{name: value})
  assert files_of(tmp_path) == before
  start(task, processes['fed_avg'], tmp_path, rounds_per_checkpoint=3).close()


def test_another_model_is_refused_in_a_directory_without_a_description(task, processes, tmp_path):
  """As earlier versions wrote it."""
  run = start(task, processes['fed_avg'], tmp_path)
  for _ in range(2):
    next(run)
  run.close()
  (tmp_path / 'run.json').unlink()
  before = files_of(tmp_path / 'checkpoints')
  with pytest.raises(simulation.RunDirectoryError, match='of another model or algorithm'):
    start(task, processes['scaffold'], tmp_path)
  assert files_of(tmp_path / 'checkpoints') == before
  start(task, processes['fed_avg'], tmp_path).close()  # Not claimed by the other.


def test_more_rounds_continue_a_finished_run(task, processes, uninterrupted, tmp_path):
  start(task, processes['scaffold'], tmp_path, total_rounds=4).finish()
  run = start(task, processes['scaffold'], tmp_path)
  assert run.round_num == 4
  run.finish()
  for x, y in zip(weights_of(run), weights_of(uninterrupted['scaffold'][0])):
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize('content', ['x\n', 'round_num,loss\nlast,1.0\n'], ids=['names', 'round'])
def test_damaged_metrics_are_one_line_and_stay_as_they_are(task, processes, tmp_path, content):
  (tmp_path / 'metrics.csv').write_text(content)
  for _ in range(2):  # The second time, the directory is not in use.
    with pytest.raises(simulation.RunDirectoryError, match='metrics.csv is damaged: it must ') as e:
      start(task, processes['fed_avg'], tmp_path)
    assert '\n' not in str(e.value)
  assert (tmp_path / 'metrics.csv').read_text() == content
