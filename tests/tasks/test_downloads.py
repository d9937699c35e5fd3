# SPDX-License-Identifier: Apache-2.0
"""The real builders of tfds and TFF, from an archive of the original layout to a trained round,
without a network."""

import functools
import http.server
import io
import lzma
import re
import shlex
import socket
import tarfile
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow_datasets as tfds

from fednar_tff import algorithms, doctor, fetch, optimizers, tasks
from fednar_tff.tasks import sources

pytestmark = pytest.mark.usefixtures('in_process_runtime')


def _train_one_round(task):
  process = algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.001, 1.0),
    loop_implementation=algorithms.PACKED,
  )
  ids = task.partition.client_ids[:2]
  clients = [task.packed_client(i, 0, batch_size=4, local_steps=1, seed=0) for i in ids]
  metrics = process.next(process.initialize(), clients).metrics['client_work']['train']
  assert metrics['num_non_finite_clients'] == 0
  assert metrics['loss'] > 0


def _run_recommended_command(message):
  """Runs what a message tells the user to run; in this process, where the downloads are local."""
  command = re.search('fetch it by: (python -m fednar_tff.fetch .*)$', message)[1]
  assert fetch.main(shlex.split(command)[3:]) == 0


def _cifar_archive(images, labels):
  """Returns `cifar-10-binary.tar.gz`: for each example a byte of label, then 1,024 of red, green
  and blue each."""
  records = np.concatenate(
    [labels[:, np.newaxis], np.transpose(images, [0, 3, 1, 2]).reshape(len(images), -1)], axis=1
  ).astype(np.uint8)
  batches = np.array_split(records, 6)
  names = [f'data_batch_{i}.bin' for i in range(1, 6)] + ['test_batch.bin']
  files = {name: batch.tobytes() for name, batch in zip(names, batches)}
  classes = 'airplane automobile bird cat deer dog frog horse ship truck'.split()
  files['batches.meta.txt'] = '\n'.join(classes).encode() + b'\n\n'
  archive = io.BytesIO()
  with tarfile.open(fileobj=archive, mode='w:gz') as tar:
    for name, content in files.items():
      member = tarfile.TarInfo(f'cifar-10-batches-bin/{name}')
      member.size = len(content)
      tar.addfile(member, io.BytesIO(content))
  return archive.getvalue()


class _Storage(urllib.request.BaseHandler):
  """Answers for the servers that urllib asks, which TFF downloads with."""

  handler_order = 100  # Before urllib's own.

  def __init__(self):
    self.files = {}

  def https_open(self, request):
    name = request.full_url.rpartition('/')[2]
    if name not in self.files:
      raise urllib.error.URLError('no network')
    response = urllib.request.addinfourl(io.BytesIO(self.files[name]), {}, request.full_url, 200)
    response.msg = 'OK'
    return response


@pytest.fixture
def storage():
  storage = _Storage()
  urllib.request.install_opener(urllib.request.build_opener(storage))
  yield storage.files
  urllib.request.install_opener(None)


@pytest.fixture
def serve(monkeypatch):
  """Makes tfds fetch CIFAR-10 from this process instead of from its homepage."""
  folder = {}

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      content = folder.get(self.path)
      self.send_response(404 if content is None else 200)
      self.send_header('Content-Length', str(len(content or b'')))
      self.end_headers()
      self.wfile.write(content or b'')

    def log_message(self, *_):
      pass

  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  builder = tfds.builder_cls('cifar10')
  original = builder._cifar_info
  url = f'http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz'
  info = property(lambda self: original.fget(self)._replace(url=url))
  monkeypatch.setattr(builder, '_cifar_info', info)
  monkeypatch.setenv('NO_PROXY', '127.0.0.1')
  yield lambda content: folder.update({'/cifar-10-binary.tar.gz': content})
  server.shutdown()
  server.server_close()


def _as_set(images, labels):
  return sorted((int(label), image.tobytes()) for image, label in zip(images, labels))


def test_cifar10_goes_from_its_archive_through_tfds_to_a_trained_round(tmp_path, serve, storage):
  generator = np.random.RandomState(0)
  images = generator.randint(0, 256, [60, 32, 32, 3]).astype(np.uint8)
  labels = np.arange(60) % 10
  arguments = {'model': 'cnn', 'num_clients': 5, 'partition': 'iid', 'data_dir': str(tmp_path)}
  with pytest.raises(tasks.DataError, match='Data set cifar10 is missing') as error:
    tasks.create_task('cifar10', **arguments)
  assert 'No module' not in str(error.value)
  serve(_cifar_archive(images, labels))
  _run_recommended_command(str(error.value))
  serve(b'')  # What is prepared is not fetched again.
  assert f'cifar10: ok: in {tmp_path}/cifar10' in doctor.describe_data(str(tmp_path))
  task = tasks.create_task('cifar10', **arguments)
  train = task.datasets.train_data.create_tf_dataset_from_all_clients().as_numpy_iterator()
  assert _as_set(*zip(*((e['x']['image'], e['y']) for e in train))) == _as_set(
    images[:50], labels[:50]
  )
  (test,) = task.datasets.get_centralized_test_data().as_numpy_iterator()
  assert _as_set(test['x']['image'], test['y']) == _as_set(images[50:], labels[50:])
  _train_one_round(task)


def _shakespeare_rows():
  text = 'To be, or not to be, that is the question. ' * 60
  roles = {name: [{'snippets': text.encode()}] for name in ('HAMLET', 'OPHELIA')}
  return {'train': roles, 'test': roles}


def _cifar100_rows():
  generator = np.random.RandomState(0)

  def examples(n):
    return [
      {
        'image': generator.randint(0, 256, [32, 32, 3]),
        'label': [i % 100],
        'coarse_label': [i % 20],
      }
      for i in range(n)
    ]

  return {'train': {'0': examples(8), '1': examples(6)}, 'test': {'0': examples(5)}}


@pytest.mark.parametrize(
  ('name', 'rows', 'arguments', 'num_examples'),
  [
    ('shakespeare', _shakespeare_rows, {'num_clients': 2}, [2000, 2000]),
    ('cifar100', _cifar100_rows, {'model': 'cnn'}, [8, 6]),
  ],
)
def test_tffs_data_sets_go_from_their_files_to_a_task(
  tmp_path, storage, write_database, name, rows, arguments, num_examples
):
  database = tmp_path / f'{name}.sqlite'
  write_database(database, rows())
  data_dir = str(tmp_path / 'cache')
  create = functools.partial(tasks.create_task, name, data_dir=data_dir, **arguments)
  with pytest.raises(tasks.DataError, match=f'{name} is missing: .*no network') as error:
    create()
  compressed = lzma.compress(database.read_bytes())
  storage[f'{name}.sqlite.lzma'] = compressed[: len(compressed) // 2]
  with pytest.raises(tasks.DataError):
    create()
  storage[f'{name}.sqlite.lzma'] = compressed
  _run_recommended_command(str(error.value))
  storage.clear()  # What is in the cache is not fetched again.
  task = create()
  assert [len(r) for r in task.partition.rows] == num_examples
  assert f'{name}: ok: in {tmp_path}/cache/{name}.sqlite' in doctor.describe_data(data_dir)
  if name == 'cifar100':  # The transformer takes too long here, and other tests train it.
    _train_one_round(task)


def test_the_doctor_says_of_each_data_set_whether_it_can_be_fetched(tmp_path, storage):
  lines = doctor.describe_data(str(tmp_path))
  assert len(lines) == 3
  for name, line in zip(('cifar10', 'cifar100', 'shakespeare'), lines):
    assert line.startswith(f'{name}: not in {tmp_path}/{name}')
    assert 'cannot be reached from here' in line and 'no network' in line
  storage.update(dict.fromkeys(('cifar-10-binary.tar.gz', 'shakespeare.sqlite.lzma'), b''))
  (tmp_path / 'cifar100.sqlite').write_bytes(b'half a file' * 1000)
  lines = doctor.describe_data(str(tmp_path))
  assert lines[0] == (
    f'cifar10: not in {tmp_path}/cifar10; fetch it by: '
    f'python -m fednar_tff.fetch cifar10 --data_dir={tmp_path}'
  )
  assert 'is damaged' in lines[1] and 'cannot be reached' not in lines[2]


@pytest.mark.parametrize('program', [doctor, fetch])
def test_help_only_helps_and_unknown_arguments_are_one_line(program, capsys, monkeypatch):
  monkeypatch.setattr(sources, 'LOADERS', {})  # Whatever they did with data would be seen.
  with pytest.raises(SystemExit) as ended:
    program.main(['--help'])
  assert ended.value.code == 0
  assert program.__doc__.split(':')[0] in ' '.join(capsys.readouterr().out.split())
  with pytest.raises(SystemExit) as ended:
    program.main(['--imaginary'])
  assert ended.value.code == 2
  message = capsys.readouterr().err
  assert len(message.splitlines()) == 1 and message.startswith(f'python -m {program.__name__}: ')


@pytest.mark.parametrize('name', ['shakespeare', 'cifar10'])
def test_fetch_without_a_network_is_one_line(name, tmp_path, storage, capsys, caplog, monkeypatch):
  def refuse(*_):
    raise OSError('no network')

  monkeypatch.setattr(socket, 'create_connection', refuse)
  folder = tmp_path / 'data'
  assert fetch.main([name, f'--data_dir={folder}']) == 1
  message = capsys.readouterr().err
  assert len(message.splitlines()) == 1 and 'no network' in message
  assert not caplog.records, 'tfds warns that there is no data, which is what the line says'
  assert not folder.exists()


def test_cifar10_is_prepared_from_an_archive_that_was_put_there_by_hand(tmp_path):
  archive = tmp_path / 'downloads' / 'manual' / 'cifar-10-binary.tar.gz'
  archive.parent.mkdir(parents=True)
  archive.write_bytes(b'not the archive')
  with pytest.raises(tasks.DataError) as error:
    tasks.create_task('cifar10', data_dir=str(tmp_path))
  # It was read, and nothing was downloaded.
  assert f'{archive}, has wrong checksum' in str(error.value.__cause__)
