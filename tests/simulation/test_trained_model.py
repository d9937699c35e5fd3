# SPDX-License-Identifier: Apache-2.0
"""Models that leave a run: checkpoints with names, `load_model` and the three formats."""

import asyncio
import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, simulation, tasks
from fednar_tff.simulation import checkpoints
from fednar_tff.tasks import keras_models, models, shakespeare

pytestmark = pytest.mark.usefixtures('in_process_runtime')


@pytest.fixture(scope='module')
def task():
  return tasks.create_task('synthetic', num_clients=6, dropout=0.1)


def start(task, path, total_rounds=4, algorithm='fed_avg', **arguments):
  process = algorithms.get_builder(algorithm)(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    loop_implementation=algorithms.PACKED,
    **arguments,
  )
  return simulation.run(
    task, process, total_rounds=total_rounds, clients_per_round=3, batch_size=10, local_steps=2,
    rounds_per_evaluation=2, rounds_per_checkpoint=1, output_dir=path,
  )  # fmt: skip


@pytest.fixture(scope='module')
def finished(task, tmp_path_factory):
  path = tmp_path_factory.mktemp('run') / 'run'
  run = start(task, path)
  run.finish(quiet=True)
  return run, path


def test_checkpoints_can_be_read_with_tensorflow_alone(finished):
  run, path = finished
  found = tf.saved_model.load(str(path / 'checkpoints' / 'program_state_4'))()
  names = [name.decode() for name in found['names'].numpy()]
  assert len(set(names)) == len(names) == len(found['leaves'])
  assert names[:4] == [
    'model/hidden0/kernel',
    'model/hidden0/bias',
    'model/logits/kernel',
    'model/logits/bias',
  ]
  assert 'finalizer/learning_rate' in names
  for leaf, expected in zip(found['leaves'], run.model_weights.trainable):
    np.testing.assert_array_equal(leaf, expected)


def test_load_model_gives_weights_by_name_and_a_callable(finished):
  run, path = finished
  model = simulation.load_model(path)  # The task comes from `task.json`.
  assert model.round_num == 4
  assert model.task.partition.hash == run._task.partition.hash
  x = np.random.default_rng(0).normal(size=[5, 8]).astype(np.float32)
  w = model.weights
  hidden = np.maximum(x @ w['hidden0/kernel'] + w['hidden0/bias'], 0)
  expected = hidden @ w['logits/kernel'] + w['logits/bias']
  np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)
  for found, leaf in zip(w.values(), run.model_weights.trainable):
    np.testing.assert_array_equal(found, leaf)


def test_any_round_that_is_kept_can_be_loaded(task, finished, tmp_path):
  _, path = finished
  run = start(task, tmp_path / 'shorter', total_rounds=3)
  run.finish(quiet=True)
  model = simulation.load_model(path, round_num=3, task=task)
  for found, leaf in zip(model.weights.values(), run.model_weights.trainable):
    np.testing.assert_array_equal(found, leaf)


def as_earlier_version(path):
  """Rewrites the checkpoints of a run as the bare lists that earlier versions saved, without
  `task.json`."""
  manager = tff.program.FileProgramStateManager(path / 'checkpoints', keep_total=0)
  for version in asyncio.run(manager.get_versions()):
    folder = path / 'checkpoints' / f'program_state_{version}'
    leaves = checkpoints.read(folder).leaves
    shutil.rmtree(folder)
    asyncio.run(manager.save(leaves, version))
  (path / 'task.json').unlink()


def test_runs_of_earlier_versions_resume_and_load(task, finished, tmp_path):
  run, _ = finished
  path = tmp_path / 'old'
  start(task, path, total_rounds=2).finish(quiet=True)
  as_earlier_version(path)
  with pytest.raises(simulation.RunDirectoryError, match='does not say how its task is created'):
    simulation.load_model(path)
  model = simulation.load_model(path, task=task)
  assert list(model.weights) == ['hidden0/kernel', 'hidden0/bias', 'logits/kernel', 'logits/bias']
  again = start(task, path)
  assert again.round_num == 2
  again.finish(quiet=True)
  for found, leaf in zip(again.model_weights.trainable, run.model_weights.trainable):
    np.testing.assert_array_equal(found, leaf)


def test_a_model_that_is_not_in_the_state_is_saved_beside_it(task, tmp_path):
  run = start(task, tmp_path, total_rounds=3, algorithm='fed_exp', average_last_two=True)
  run.finish(quiet=True)
  model = simulation.load_model(tmp_path, task=task)
  last = run.state.global_model_weights.trainable
  for found, leaf, other in zip(model.weights.values(), run.model_weights.trainable, last):
    np.testing.assert_array_equal(found, leaf)
    assert not np.array_equal(found, other)
  again = start(task, tmp_path, total_rounds=4, algorithm='fed_exp', average_last_two=True)
  assert again.round_num == 3
  again.close()


def test_directories_and_rounds_that_are_not_there_are_named(task, finished, tmp_path):
  _, path = finished
  with pytest.raises(simulation.RunDirectoryError, match='is no directory of a run'):
    simulation.load_model(tmp_path / 'nothing')
  with pytest.raises(simulation.RunDirectoryError, match='Round 9 .* saved are 2, 3, 4'):
    simulation.load_model(path, round_num=9)
  other = tasks.create_task('digits', num_clients=5)
  with pytest.raises(simulation.RunDirectoryError, match='another model than that of task digits'):
    simulation.load_model(path, task=other)


def test_variables_of_one_name_are_told_apart():
  variables = [tf.Variable(0.0, name=name) for name in ('a', 'a', 'a_1', 'b', 'a')]
  assert len(set(checkpoints.variable_names(variables))) == 5


def test_export_writes_all_or_nothing(task, finished, tmp_path):
  model = simulation.load_model(finished[1], task=task)
  with pytest.raises(ValueError, match='must be one of npz, keras, saved_model'):
    simulation.export_model(model, tmp_path / 'x.onnx', 'onnx')
  with pytest.raises(ValueError, match='must end in .npz'):
    simulation.export_model(model, tmp_path / 'x.zip', 'npz')
  (tmp_path / 'taken.npz').touch()
  with pytest.raises(simulation.RunDirectoryError, match='exists already'):
    simulation.export_model(model, tmp_path / 'taken.npz', 'npz')
  object.__setattr__(own := simulation.load_model(finished[1], task=task), 'task', _without_keras())
  with pytest.raises(ValueError, match='no form of stock Keras layers.*npz and saved_model'):
    simulation.export_model(own, tmp_path / 'x.keras', 'keras')
  assert [p.name for p in tmp_path.iterdir()] == ['taken.npz']


def _without_keras():
  class NoKeras:
    name, keras_model_fn = 'own', None

  return NoKeras()


def test_missing_package_of_a_format_is_named(task, finished, tmp_path, monkeypatch):
  model = simulation.load_model(finished[1], task=task)
  monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
  with pytest.raises(ValueError, match='pip install h5py'):
    simulation.export_model(model, tmp_path / 'x.keras', 'keras')
  assert not list(tmp_path.iterdir())


IMAGES = np.random.RandomState(0).randint(256, size=[3, 32, 32, 3]).astype(np.uint8)
TEXTS = np.random.RandomState(0).randint(12, size=[3, 10]).astype(np.uint8)
NETWORKS = {
  'mlp': (models.build_mlp(10), {}),
  'cnn': (models.build_cnn(10), {}),
  'small_cnn': (models.build_small_cnn(10), {}),
  'small_resnet18': (models.build_small_resnet18(10), {}),
  'resnet18': (models.build_resnet18(10), {}),
  'resnet18_top_left': (models.build_resnet18(10, 'top_left'), {'pooling': 'top_left'}),
}


def weights_of(network, x_spec):
  """Returns a model of a network with random weights, and those by name."""
  input_spec = {'x': x_spec, 'y': tf.TensorSpec([None], tf.int32)}
  model_fn, _ = tasks.build_model_fns(network, input_spec, 1)
  model = model_fn()
  generator = np.random.default_rng(0)
  weights = {}
  for variable in model.trainable_variables:
    variable.assign_add(0.1 * generator.normal(size=variable.shape))
    weights[variable.name.removesuffix(':0')] = variable.numpy()
  return model, weights


@pytest.mark.parametrize('name', NETWORKS)
def test_keras_form_of_an_image_model_computes_the_same(name):
  network, switches = NETWORKS[name]
  model, weights = weights_of(network, tf.TensorSpec([None, 32, 32, 3]))
  offset, scale = np.array([120.0, 100.0, 90.0]), np.array([60.0, 50.0, 70.0])
  keras_model_fn = keras_models.of_images(
    name.removesuffix('_top_left'), [32, 32, 3], offset=offset, scale=scale, **switches
  )
  x = ((IMAGES - offset) / scale).astype(np.float32)
  expected = model.predict_on_batch(x, training=False)
  np.testing.assert_allclose(keras_model_fn(weights)(IMAGES), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('prediction', ['last', 'every'])
def test_keras_form_of_the_transformer_computes_the_same(prediction):
  network = models.build_transformer(
    12, layers=2, heads=4, width=16, hidden=24, prediction=prediction
  )
  spec = {'tokens': tf.TensorSpec([None, 10], tf.uint8), 'seed': tf.TensorSpec([2], tf.int32)}
  model, weights = weights_of(network, spec)
  expected = model.predict_on_batch(
    {'tokens': TEXTS, 'seed': np.zeros(2, np.int32)}, training=False
  )
  keras_model = keras_models.of_codes(10, 12, causal=prediction == 'every')(weights)
  np.testing.assert_allclose(keras_model(TEXTS), expected, rtol=1e-4, atol=1e-5)


def test_keras_form_refuses_weights_of_another_model():
  _, weights = weights_of(models.build_mlp(10, hidden=(8,)), tf.TensorSpec([None, 32, 32, 3]))
  with pytest.raises((ValueError, KeyError)):
    keras_models.of_images('cnn', [32, 32, 3], scale=1.0)(weights)


def test_text_is_read_as_its_last_window():
  long = 'a' * 30 + 'To be, or not to be: that is the question; 100% of it.\n' + 'b' * 60
  found = shakespeare.encode_last_window(tf.constant([long, 'short', '']))
  np.testing.assert_array_equal(found[0], shakespeare.encode(long[-80:].encode()))
  np.testing.assert_array_equal(found[1], shakespeare.encode((' ' * 75 + 'short').encode()))
  np.testing.assert_array_equal(found[2], shakespeare.encode(b' ' * 80))


def test_task_json_creates_the_same_task(finished):
  arguments = json.loads((pathlib.Path(finished[1]) / 'task.json').read_text())
  assert arguments['name'] == 'synthetic' and arguments['dropout'] == 0.1
  assert 'train_client_spec' not in arguments
