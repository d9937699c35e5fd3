# SPDX-License-Identifier: Apache-2.0
"""Runs in half precision: as reproducible as others, and never mixed with them."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, runtime, simulation, tasks

pytestmark = pytest.mark.usefixtures('in_process_runtime')


def start(task, output_dir=None, **changes):
  process = algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    loop_implementation=algorithms.PACKED,
  )
  arguments = {'total_rounds': 4, 'clients_per_round': 4, 'batch_size': 10, 'local_steps': 2}
  arguments |= {'rounds_per_evaluation': 2, 'rounds_per_checkpoint': 1, 'seed': 4, **changes}
  return simulation.run(task, process, output_dir=output_dir, **arguments)


def weights_of(run):
  return [np.asarray(w) for w in tf.nest.flatten(list(run.model_weights.trainable))]


@pytest.fixture(scope='module')
def task():
  return tasks.create_task('digits', model='cnn', num_clients=6, precision='bfloat16')


@pytest.fixture(scope='module')
def finished(task, tmp_path_factory):
  path = tmp_path_factory.mktemp('bfloat16')
  run = start(task, path)
  run.finish(quiet=True)
  return run, path


def test_a_run_resumes_to_the_bit(task, finished, tmp_path):
  first = start(task, tmp_path)
  next(first)
  next(first)
  first.close()
  second = start(task, tmp_path)
  assert second.round_num == 2
  second.finish(quiet=True)
  for x, y in zip(weights_of(second), weights_of(finished[0]), strict=True):
    np.testing.assert_array_equal(x, y)
  assert (tmp_path / 'metrics.csv').read_bytes() == (finished[1] / 'metrics.csv').read_bytes()


@pytest.mark.parametrize('threads', [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_number_of_threads_changes_nothing(task, finished, threads):
  context = runtime.create_in_process_context(clients_per_device=threads)
  with tff.framework.get_context_stack().install(context):
    run = start(task)
    run.finish(quiet=True)
  for x, y in zip(weights_of(run), weights_of(finished[0]), strict=True):
    np.testing.assert_array_equal(x, y)


def test_it_learns_nearly_the_same_but_not_the_same(finished):
  usual = start(tasks.create_task('digits', model='cnn', num_clients=6))
  usual.finish(quiet=True)
  moved = [
    np.linalg.norm(x - y) / np.linalg.norm(y)
    for x, y in zip(weights_of(finished[0]), weights_of(usual), strict=True)
  ]
  assert 1e-5 < max(moved) < 0.02


def test_a_run_of_another_precision_is_refused_and_float32_says_nothing(finished, tmp_path):
  path = finished[1]
  usual = tasks.create_task('digits', model='cnn', num_clients=6)
  with pytest.raises(simulation.RunDirectoryError, match='precision'):
    start(usual, path)
  assert finished[0].description['precision'] == 'bfloat16'
  # As before there was a precision, so that earlier runs resume.
  assert 'precision' not in start(usual).description


def test_the_saved_model_is_loaded_in_its_precision(finished):
  run, path = finished
  assert json.loads((path / 'task.json').read_text())['precision'] == 'bfloat16'
  model = simulation.load_model(path)
  assert model.task.precision == 'bfloat16'
  evaluate = simulation.build_evaluation(
    model.task.model_fn, model.task.datasets.get_centralized_test_data()
  )
  expected = run.last.metrics['test_accuracy']
  assert np.float32(evaluate(model.model_weights)['accuracy']) == expected


@pytest.mark.parametrize('format', ['keras', 'saved_model'])
def test_an_exported_model_is_as_good_as_the_runs(finished, format, tmp_path):
  run, path = finished
  model = simulation.load_model(path)
  target = tmp_path / ('model' + simulation.EXPORT_FORMATS[format])
  simulation.export_model(model, target, format)
  if format == 'keras':
    predict = tf.keras.models.load_model(target)
  else:
    predict = tf.saved_model.load(str(target))
  (batch,) = model.task.datasets.get_centralized_test_data().unbatch().batch(1000)
  raw = tf.cast(tf.round(batch['x'] * 16.0), tf.uint8)
  accuracy = np.mean(np.argmax(predict(raw), axis=-1) == batch['y'].numpy())
  # A SavedModel is the model itself; Keras rounds in a few more places, see `keras_models`.
  tolerance = {'keras': 0.01, 'saved_model': 1e-6}[format]
  assert abs(accuracy - run.last.metrics['test_accuracy']) <= tolerance


def test_clients_whose_scaled_gradient_overflows_are_dropped():
  """Of float16: they are counted, and the model stays as it is."""
  task = tasks.create_task('synthetic', num_clients=3, precision='float16')
  process = algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    loop_implementation=algorithms.PACKED,
  )
  state = process.initialize()
  weights = process.get_model_weights(state)
  for factor, num_dropped in ((1.0, 0), (1e6, 3)):
    scaled = type(weights)(tuple(w * np.float32(factor) for w in weights.trainable), ())
    start_state = process.set_model_weights(state, scaled)
    data = [
      task.packed_client(c, 0, batch_size=10, local_steps=1, seed=0)
      for c in task.partition.client_ids
    ]
    output = process.next(start_state, data)
    assert output.metrics['client_work']['train']['num_non_finite_clients'] == num_dropped
    after = process.get_model_weights(output.state).trainable
    same = [np.array_equal(x, y) for x, y in zip(after, scaled.trainable, strict=True)]
    assert all(same) == bool(num_dropped)


@pytest.mark.parametrize('is_slow', [True, False])
def test_a_slow_machine_is_told_once_at_the_start(task, monkeypatch, caplog, is_slow):
  ratio = 3.0 if is_slow else 0.5
  monkeypatch.setattr('fednar_tff.tasks.precision.relative_time', lambda _: ratio)
  with caplog.at_level('WARNING'):
    start(task, total_rounds=1)
    start(tasks.create_task('synthetic', num_clients=6), total_rounds=1)  # float32: no word.
  lines = [r.getMessage() for r in caplog.records if 'float32' in r.getMessage()]
  assert len(lines) == is_slow
  if is_slow:
    assert 'takes 3.00 x the time of float32' in lines[0] and '\n' not in lines[0]
