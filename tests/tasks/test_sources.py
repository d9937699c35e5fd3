# SPDX-License-Identifier: Apache-2.0
import io
import os
import pathlib
import shutil
import socket

import pytest
import tensorflow_federated as tff

from fednar_tff import tasks
from fednar_tff.tasks import sources


@pytest.fixture
def database(tmp_path, write_database):
  path = tmp_path / 'shakespeare.sqlite'
  rows = [{'snippets': b'x' * 500} for _ in range(40)]
  write_database(
    path, {'train': {'A': rows, 'B': rows[:3]}, 'test': {'A': rows[:2], 'B': rows[:1]}}
  )
  return path


def test_every_example_is_read_with_its_client(database):
  data = sources.load_shakespeare(str(database.parent))
  assert sorted(data['train']['client_id'].tolist()) == [b'A'] * 40 + [b'B'] * 3
  assert sorted(data['test']['client_id'].tolist()) == [b'A'] * 2 + [b'B']
  assert set(data['train']['snippets'].tolist()) == {b'x' * 500}


def test_a_database_is_read_once_per_process(database):
  first = sources.load_shakespeare(str(database.parent))
  database.unlink()
  assert sources.load_shakespeare(str(database.parent)) is first


def test_a_truncated_database_is_named(database):
  os.truncate(database, database.stat().st_size // 2)
  with pytest.raises(tasks.DataError, match=f'{database} is damaged') as error:
    tasks.create_task('shakespeare', data_dir=str(database.parent))
  assert '\n' not in str(error.value)


def test_a_file_that_is_no_database_is_named(tmp_path):
  (tmp_path / 'cifar100.sqlite').write_bytes(b'<html>not found</html>' * 100)
  with pytest.raises(tasks.DataError, match='cifar100.sqlite is damaged'):
    tasks.create_task('cifar100', data_dir=str(tmp_path))


def test_a_database_with_missing_rows_is_named(tmp_path, database):
  import sqlite3

  connection = sqlite3.connect(database)
  connection.execute("DELETE FROM examples WHERE client_id = 'B'")
  connection.commit()
  connection.close()
  with pytest.raises(tasks.DataError, match='holds 42 of 46 examples'):
    tasks.create_task('shakespeare', data_dir=str(tmp_path))


def test_missing_tff_data_says_what_where_and_how(tmp_path, monkeypatch):
  def broken_download(cache_dir):
    pathlib.Path(cache_dir, 'shakespeare.sqlite').write_bytes(b'half a file')
    raise OSError('connection\nlost')

  monkeypatch.setattr(tff.simulation.datasets.shakespeare, 'load_data', broken_download)
  with pytest.raises(tasks.DataError) as error:
    tasks.create_task('shakespeare', data_dir=str(tmp_path))
  message = str(error.value)
  assert f'looked for {tmp_path}/shakespeare.sqlite' in message
  assert 'connection lost' in message and '\n' not in message
  assert message.endswith(f'python -m fednar_tff.fetch shakespeare --data_dir={tmp_path}')
  assert list(tmp_path.iterdir()) == [], 'a half download must not stay'


@pytest.fixture
def connected(monkeypatch):
  """Servers of data sets can be reached, whatever they then answer."""
  monkeypatch.setattr(socket, 'create_connection', lambda *_: io.BytesIO())


def test_no_connection_is_said_before_tfds_tries_for_minutes(tmp_path, monkeypatch):
  import tensorflow_datasets as tfds

  asked = []

  def offline(name, *, data_dir, split, download):
    asked.append(download)
    raise OSError('not there')

  def refuse(address, timeout):
    raise OSError(f'no way to {address[0]}')

  monkeypatch.setattr(tfds, 'load', offline)
  monkeypatch.setattr(socket, 'create_connection', refuse)
  with pytest.raises(tasks.DataError, match='cannot be reached from here [(]no way to ') as error:
    tasks.create_task('cifar10', data_dir=str(tmp_path))
  assert str(error.value).endswith(f'python -m fednar_tff.fetch cifar10 --data_dir={tmp_path}')
  assert asked == [False]


@pytest.mark.usefixtures('connected')
def test_missing_tfds_data_says_what_where_and_how(tmp_path, monkeypatch):
  import tensorflow_datasets as tfds

  def offline(name, *, data_dir, split, download):
    raise OSError('no network' if download else 'not there')

  monkeypatch.setattr(tfds, 'load', offline)
  with pytest.raises(tasks.DataError) as error:
    tasks.create_task('cifar10', data_dir=str(tmp_path))
  message = str(error.value)
  assert f'looked in {tmp_path}/cifar10' in message
  assert 'no network' in message and '\n' not in message
  assert message.endswith(f'python -m fednar_tff.fetch cifar10 --data_dir={tmp_path}')


@pytest.mark.usefixtures('connected')
def test_a_package_that_tfds_lacks_is_named_with_its_remedy(tmp_path, monkeypatch):
  import tensorflow_datasets as tfds

  def incomplete(name, *, data_dir, split, download):
    raise ModuleNotFoundError("No module named 'spam'", name='spam')

  monkeypatch.setattr(tfds, 'load', incomplete)
  with pytest.raises(tasks.DataError, match='pip install spam'):
    tasks.create_task('cifar10', data_dir=str(tmp_path))


@pytest.mark.usefixtures('connected')
def test_unreadable_tfds_data_is_not_called_missing(tmp_path, monkeypatch):
  import tensorflow_datasets as tfds

  def offline(name, *, data_dir, split, download):
    raise OSError('no network' if download else 'bad dataset_info.json')

  monkeypatch.setattr(tfds, 'load', offline)
  (tmp_path / 'cifar10' / '3.0.2').mkdir(parents=True)
  (tmp_path / 'cifar10' / '3.0.2' / 'dataset_info.json').write_text('{')
  with pytest.raises(tasks.DataError, match='cifar10 [(]bad dataset_info.json[)]') as error:
    tasks.create_task('cifar10', data_dir=str(tmp_path))
  assert 'missing' not in str(error.value)


def _prepared(*parts):
  path = pathlib.Path.home().joinpath(*parts)
  return pytest.mark.skipif(not path.exists(), reason=f'{path} is absent: prepare the data first')


@pytest.mark.slow
@_prepared('tensorflow_datasets', 'cifar10')
def test_a_truncated_record_file_is_named(tmp_path):
  folder = tmp_path / 'cifar10'
  shutil.copytree(pathlib.Path.home() / 'tensorflow_datasets' / 'cifar10', folder)
  (records,) = folder.rglob('*train*.tfrecord*')
  os.truncate(records, records.stat().st_size - 1000)
  with pytest.raises(tasks.DataError, match=f'{records} is damaged'):
    tasks.create_task('cifar10', data_dir=str(tmp_path))


@pytest.mark.slow
@_prepared('tensorflow_datasets', 'cifar10')
def test_real_cifar10_is_whole():
  task = tasks.create_task('cifar10', model='cnn')
  assert [len(rows) for rows in task.partition.rows] == [500] * 100
  assert task.partition.class_counts().sum(axis=0).tolist() == [5000] * 10
  assert sum(len(b['y']) for b in task.datasets.get_centralized_test_data()) == 10000


@pytest.mark.slow
@_prepared('.tff', 'shakespeare.sqlite')
def test_real_shakespeare_has_100_roles():
  task = tasks.create_task('shakespeare')
  assert [len(rows) for rows in task.partition.rows] == [2000] * 100
  assert sum(len(b['y']) for b in task.datasets.get_centralized_test_data()) == 40000
