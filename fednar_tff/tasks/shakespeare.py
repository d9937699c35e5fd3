# SPDX-License-Identifier: Apache-2.0
"""Shakespeare, one role a client: 80 characters, and the next one to predict."""

import collections
import hashlib
import re
import string
from typing import Any

import numpy as np
import tensorflow as tf

from fednar_tff import signatures
from fednar_tff.tasks import assembly, keras_models, models, sources, task
from fednar_tff.tasks import partition as partition_lib

WINDOW = 80
# 79 characters and, last, one entry for all others: 80 in all.
VOCABULARY = '\n !"$&\'(),-.' + string.digits + ':;?[]' + string.ascii_letters
UNKNOWN = len(VOCABULARY)
VOCABULARY_SIZE = UNKNOWN + 1

_WINDOWS = {'train': 2000, 'test': 400}
_CODES = np.full(256, UNKNOWN, np.uint8)
_CODES[np.frombuffer(VOCABULARY.encode(), np.uint8)] = np.arange(UNKNOWN)


@signatures.with_arguments_of(assembly.CommonArguments)
def build_shakespeare(
  *,
  model='transformer',
  data_dir=None,
  num_clients=100,
  partition_seed=0,
  crop_windows=True,
  text='tff',
  dropout=0.1,
  input_dropout=False,
  initialization='released',
  identical_layers=False,
  prediction='last',
  **arguments,
):
  """Builds the Shakespeare task.

  The clients are `num_clients` roles, drawn by `partition_seed` among those with more than 2,000
  train and 400 test windows. With `crop_windows`, as in the released code (docs/paper.md, D17), a
  client holds 2,000 and 400 consecutive windows from a random start on; without, all its windows.
  `text` is 'tff' for the text as TFF has it, 'leaf' for the released code's, which is LEAF's: line
  breaks become spaces, and several spaces one. With `prediction='every'`, the label of a window is
  not the character after it but those after each of its positions; see `build_transformer` for this
  and the other switches of the model.
  """
  common = assembly.CommonArguments(**arguments)
  precision = common.precision
  builder = assembly.choose(
    'model of task shakespeare', model, {'transformer': models.build_transformer}
  )
  assembly.check_dropout(dropout)
  network = builder(
    VOCABULARY_SIZE,
    dropout_rate=dropout,
    input_dropout=input_dropout,
    initialization=initialization,
    identical_layers=identical_layers,
    prediction=prediction,
  )
  clean = assembly.choose('text', text, {'tff': lambda raw: raw, 'leaf': _leaf_text})
  codes = {
    split: {role: encode(clean(raw)) for role, raw in _text_by_role(examples).items()}
    for split, examples in sources.load_shakespeare(data_dir).items()
  }
  roles = _choose_roles(codes, num_clients, partition_seed)
  examples: dict[str, Any] = {}
  owners = labels = np.array([])
  for split, count in _WINDOWS.items():
    windows = [_windows(codes[split][role]) for role in roles]
    if crop_windows:
      windows = [
        _cropped(w, count, f'{split}/{partition_seed}/{role}') for w, role in zip(windows, roles)
      ]
    joined = np.concatenate(windows)
    if split == 'train':
      owners = np.repeat(roles, [len(w) for w in windows])
      labels = joined[:, WINDOW].astype(np.int32)
    else:
      # Mixed once, so that the first batches are a fair sample of all roles.
      joined = joined[np.random.RandomState(0).permutation(len(joined))]
    examples[split] = collections.OrderedDict(
      x=collections.OrderedDict(tokens=joined[:, :WINDOW]),
      y=joined[:, 1:] if prediction == 'every' else joined[:, WINDOW].astype(np.int32),
    )
  return assembly.assemble(
    'shakespeare',
    common,
    train=examples['train'],
    test=examples['test'],
    partition=partition_lib.build_natural(labels, owners.tolist()),
    network=network,
    needs_seed=True,
    raw_input=task.RawInput(
      tf.TensorSpec([None], tf.string),
      lambda raw: collections.OrderedDict(
        tokens=encode_last_window(_leaf_text_in_graph(raw) if text == 'leaf' else raw)
      ),
    ),
    keras_model_fn=keras_models.of_codes(
      WINDOW, VOCABULARY_SIZE, causal=prediction == 'every', precision=precision
    ),
  )


def encode(text: bytes) -> np.ndarray:
  """Returns the codes of a text's characters, uint8."""
  return _CODES[np.frombuffer(text, np.uint8)]


def encode_last_window(texts: tf.Tensor) -> tf.Tensor:
  """Returns the codes of the last `WINDOW` characters of each text.

  A shorter text has spaces before it.

  Args:
    texts: Strings `[batch]`.

  Returns:
    uint8 `[batch, WINDOW]`.
  """
  padded = tf.strings.join([' ' * WINDOW, texts])
  last = tf.strings.substr(padded, -WINDOW, WINDOW)
  return tf.gather(_CODES, tf.cast(tf.io.decode_raw(last, tf.uint8, fixed_length=WINDOW), tf.int32))


def _text_by_role(examples):
  """Joins each role's speeches by newlines."""
  speeches = collections.defaultdict(list)
  for role, snippet in zip(examples['client_id'], examples['snippets']):
    speeches[role.decode()].append(snippet)
  return {role: b'\n'.join(parts) for role, parts in speeches.items()}


def _leaf_text(raw):
  return re.sub(b' {2,}', b' ', raw.replace(b'\n', b' '))


def _leaf_text_in_graph(texts):
  return tf.strings.regex_replace(tf.strings.regex_replace(texts, '\n', ' '), ' {2,}', ' ')


def _choose_roles(codes, num_clients, seed):
  eligible = sorted(
    role
    for role in codes['train']
    if all(len(codes[split].get(role, ())) - WINDOW > count for split, count in _WINDOWS.items())
  )
  if not 1 <= num_clients <= len(eligible):
    raise ValueError(
      f'`num_clients` must be between 1 and {len(eligible)}, the number of roles with enough text, '
      f'found {num_clients}.'
    )
  return sorted(eligible, key=lambda role: _digest(f'role/{seed}/{role}'))[:num_clients]


def _windows(codes):
  return np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)


def _cropped(windows, count, key):
  start = _digest(key) % (len(windows) - count + 1)
  return windows[start : start + count]


def _digest(key):
  return int.from_bytes(hashlib.sha256(f'shakespeare/{key}'.encode()).digest()[:8], 'little')
