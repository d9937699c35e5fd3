# SPDX-License-Identifier: Apache-2.0
"""Reading the data sets of tfds and TFF: once per process, whole, and checked."""

import contextlib
import functools
import logging
import os
import pathlib
import shlex
import socket
import sqlite3
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

_TFF_DEFAULT_DIR = '~/.tff'
_TFDS_DEFAULT_DIR = '~/tensorflow_datasets'
# Where TFF's `load_data` gets its files from.
_TFF_URL = 'https://storage.googleapis.com/tff-datasets-public/{name}.sqlite.lzma'
_SECONDS_TO_ANSWER = 5.0


class DataError(RuntimeError):
  """A data set is missing and cannot be downloaded, or a file of it is damaged."""


def load_cifar10(data_dir: str | None = None) -> dict[str, dict[str, tf.Tensor]]:
  """Reads CIFAR-10 through tfds.

  Args:
    data_dir: The folder of tfds; its default folder if None.

  Returns:
    For 'train' and 'test', the tensors 'image' (uint8) and 'label', in host memory.

  Raises:
    DataError: If the data is missing and the download failed, or a file is damaged.
  """
  return _load_tfds('cifar10', _tfds_folder(data_dir))


def load_cifar100(data_dir: str | None = None) -> dict[str, dict[str, Any]]:
  """Reads TFF's federated CIFAR-100.

  Args:
    data_dir: The cache folder of TFF; its default folder if None.

  Returns:
    For 'train' and 'test', the array 'client_id' and the tensors 'image' (uint8) and 'label', in
    host memory.

  Raises:
    DataError: If the data is missing and the download failed, or the file is damaged.
  """
  return _load_tff('cifar100', _absolute(data_dir or _TFF_DEFAULT_DIR))


def load_shakespeare(data_dir: str | None = None) -> dict[str, dict[str, np.ndarray]]:
  """Reads TFF's federated Shakespeare.

  Args:
    data_dir: The cache folder of TFF; its default folder if None.

  Returns:
    For 'train' and 'test', the arrays 'client_id' and 'snippets' (bytes).

  Raises:
    DataError: If the data is missing and the download failed, or the file is damaged.
  """
  return _load_tff('shakespeare', _absolute(data_dir or _TFF_DEFAULT_DIR))


# The data sets that are fetched before the first use, by name.
LOADERS = {
  'cifar10': load_cifar10,
  'cifar100': load_cifar100,
  'shakespeare': load_shakespeare,
}


class DataStatus(NamedTuple):
  """What is known of a data set without reading it all.

  Attributes:
    path: Where the data set is, or would be.
    is_there: Whether it is there.
    problem: None, or why it is damaged or cannot be fetched, in one line.
  """

  path: str
  is_there: bool
  problem: str | None


def check(name: str, data_dir: str | None = None) -> DataStatus:
  """Looks whether a data set of `LOADERS` is there and, if not, whether it could be fetched.

  Args:
    name: The name of the data set.
    data_dir: See the data set's loader.
  """
  if name == 'cifar10':
    folder = _tfds_folder(data_dir)
    path = os.path.join(folder, name)
    try:
      import tensorflow_datasets as tfds

      with _no_warnings():
        builder = tfds.builder(name, data_dir=folder)
      if builder.is_prepared():
        return DataStatus(path, True, None)
      # Reading the addresses imports all that tfds needs for a download.
      (url,) = builder.url_infos
    except Exception as e:  # tfds raises many kinds.
      return DataStatus(path, False, _reason(e))
  else:
    path = _database_path(name, _absolute(data_dir or _TFF_DEFAULT_DIR))
    if os.path.exists(path):
      try:
        _check_database(path)
        return DataStatus(path, True, None)
      except DataError as e:
        return DataStatus(path, False, str(e))
    url = _TFF_URL.format(name=name)
  return DataStatus(path, False, _unreachable(url))


def fetch_command(name: str, folder: str | None = None) -> str:
  """Returns the command that fetches a data set of `LOADERS`."""
  command = f'python -m fednar_tff.fetch {name}'
  return command if folder is None else f'{command} --data_dir={shlex.quote(folder)}'


def _unreachable(url):
  """Returns None if a server offers a file, else why not."""
  try:
    request = urllib.request.Request(url, method='HEAD')
    with urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER):
      return None
  except OSError as e:
    return f'{url} cannot be reached from here ({_one_line(e)})'


def _tfds_folder(data_dir):
  return _absolute(data_dir or os.environ.get('TFDS_DATA_DIR') or _TFDS_DEFAULT_DIR)


def _absolute(folder):
  return os.path.abspath(os.path.expanduser(folder))


def _database_path(name, folder):
  return os.path.join(folder, f'{name}.sqlite')


def _is_prepared_in_part(path):
  """Returns whether a folder of tfds holds data: a download that failed leaves folders, too."""
  files = (file.relative_to(path) for file in pathlib.Path(path).rglob('*') if file.is_file())
  return any(not any('.incomplete' in part for part in file.parts) for file in files)


def _reason(error):
  """Says why a download failed, and what to install if that is the reason."""
  if isinstance(error, ModuleNotFoundError) and error.name:
    return f'tensorflow-datasets lacks a package: pip install {error.name}'
  return _one_line(error)


@contextlib.contextmanager
def _no_warnings():
  """Keeps tfds from telling that there is no data, which is what is being found out."""
  logger = logging.getLogger('absl')
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    yield
  finally:
    logger.setLevel(level)


def _check_connection(name, folder):
  """Raises a `ConnectionError` if the server of a data set of tfds cannot be reached.

  tfds itself would try for minutes.
  """
  import tensorflow_datasets as tfds

  downloads = pathlib.Path(folder, 'downloads')
  if urllib.request.getproxies() or any(path.is_file() for path in downloads.rglob('*')):
    return  # Others connect, or the archive may be there already.
  with _no_warnings():
    builder = tfds.builder(name, data_dir=folder)
  for url in builder.url_infos:
    parts = urllib.parse.urlsplit(url)
    port = parts.port or (80 if parts.scheme == 'http' else 443)
    try:
      socket.create_connection((parts.hostname, port), _SECONDS_TO_ANSWER).close()
    except OSError as e:
      raise ConnectionError(f'{url} cannot be reached from here ({_one_line(e)})') from e


@functools.cache
def _load_tfds(name, folder):
  import tensorflow_datasets as tfds

  load = functools.partial(tfds.load, name, data_dir=folder, split=['train', 'test'])
  path = os.path.join(folder, name)
  is_damaged = _is_prepared_in_part(path)
  try:
    with _no_warnings():
      load(download=False)
  except Exception as first:  # tfds raises many kinds, also AssertionError.
    try:
      _check_connection(name, folder)
      load(download=True)
    except Exception as e:
      problem = (
        f'unreadable in {path} ({_one_line(first)})' if is_damaged else f'missing: looked in {path}'
      )
      raise DataError(_cannot_fetch(name, folder, problem, e)) from e
  try:
    (train, test), info = load(download=False, batch_size=-1, with_info=True)
  except Exception as e:
    raise DataError(_damage(path, e)) from e
  result = {}
  for split, read in (('train', train), ('test', test)):
    expected = info.splits[split].num_examples
    if len(read['label']) != expected:
      files = ', '.join(str(f) for f in info.splits[split].filepaths)
      raise DataError(
        f'{files} holds {len(read["label"])} of {expected} examples; delete it and fetch it again.'
      )
    with tf.device('CPU:0'):
      result[split] = dict(image=tf.identity(read['image']), label=tf.identity(read['label']))
  return result


@functools.cache
def _load_tff(name, folder):
  module = getattr(tff.simulation.datasets, name)
  path = _database_path(name, folder)
  was_there, had_folder = os.path.exists(path), os.path.exists(folder)
  if was_there:
    _check_database(path)
  try:
    train, test = module.load_data(cache_dir=folder)
  except Exception as e:
    if not was_there and os.path.exists(path):
      os.remove(path)  # A download that broke off would pass for the whole next time.
    if not had_folder:
      with contextlib.suppress(OSError):  # It was never made, or something else is in it.
        os.rmdir(folder)
    raise DataError(_cannot_fetch(name, folder, f'missing: looked for {path}', e)) from e
  if not was_there:
    _check_database(path)
  return {'train': _read_all(train), 'test': _read_all(test)}


def _cannot_fetch(name, folder, problem, error):
  return (
    f'Data set {name} is {problem}, and the download failed ({_reason(error)}). '
    f'With a network, fetch it by: {fetch_command(name, folder)}'
  )


def _read_all(client_data):
  """Reads every client's examples in one pass: a dataset per client would take a minute."""

  def of_client(client_id):
    examples = client_data.serializable_dataset_fn(client_id)
    return examples.map(lambda example: dict(example, client_id=client_id))

  dataset = tf.data.Dataset.from_tensor_slices(client_data.client_ids).flat_map(of_client)
  chunks = list(dataset.batch(1000).as_numpy_iterator())
  columns = {key: np.concatenate([chunk[key] for chunk in chunks]) for key in chunks[0]}
  with tf.device('CPU:0'):
    # Numbers as tensors, which a task then uses as they are: of an array it would make a copy.
    return {key: c if c.dtype == object else tf.constant(c) for key, c in columns.items()}


def _check_database(path):
  """Raises a `DataError` if a database is damaged or holds less than it says."""
  try:
    # As a URI: the plain form would create a missing file.
    connection = sqlite3.connect(f'{pathlib.Path(path).as_uri()}?mode=ro', uri=True)
    try:
      (health,) = connection.execute('PRAGMA quick_check(1)').fetchone()
      if health != 'ok':
        raise sqlite3.DatabaseError(health)
      (expected,) = connection.execute('SELECT SUM(num_examples) FROM client_metadata').fetchone()
      (found,) = connection.execute('SELECT COUNT(*) FROM examples').fetchone()
    finally:
      connection.close()
  except sqlite3.Error as e:
    raise DataError(f'{path} is damaged ({_one_line(e)}); delete it and fetch it again.') from e
  if found != expected:
    raise DataError(f'{path} holds {found} of {expected} examples; delete it and fetch it again.')


def _damage(folder, error):
  """Says which record file below a folder cannot be read."""
  for path in sorted(pathlib.Path(folder).rglob('*.tfrecord*')):
    try:
      for _ in tf.data.TFRecordDataset(str(path)):
        pass
    except tf.errors.OpError as e:
      return f'{path} is damaged ({_one_line(e)}); delete {path.parent} and fetch it again.'
  return f'{folder} cannot be read ({_one_line(error)}); delete it and fetch it again.'


def _one_line(error):
  text = ' '.join(str(error).split())
  return text if len(text) <= 200 else text[:200] + '...'
