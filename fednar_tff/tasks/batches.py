# SPDX-License-Identifier: Apache-2.0
"""A client's batches of one round, as a function of (seed, round, client id) alone.

The order of the examples and the seeds of dropout and augmentation come from Philox streams, keyed
by a hash. So they are the same in any process and on any number of threads. They are the same in
any version of NumPy, too: the raw bits of a stream are all that NumPy promises to keep.
"""

import hashlib
import json
from typing import TYPE_CHECKING, TypedDict

import numpy as np

if TYPE_CHECKING:
  from typing_extensions import Unpack as Unpack

# Of one client's round: 128 MB of row numbers, and five times that for a moment while they are
# made.
_MAX_POSITIONS = 2**25


class _BatchSize(TypedDict):
  batch_size: int


class RoundSize(_BatchSize, total=False):
  """The arguments that say how large a client's round is; `check_size` tells what they mean."""

  local_steps: int | None
  local_epochs: int | None


class RoundArguments(RoundSize):
  """These, and the run's seed for batches."""

  seed: int


def check_size(
  num_examples: int,
  *,
  batch_size: int,
  local_steps: int | None = None,
  local_epochs: int | None = None,
) -> tuple[int, int]:
  """Checks the size of a client's round, before anything is made of it.

  Args:
    num_examples: How many examples the client holds.
    batch_size: Examples per batch.
    local_steps: The number of batches; this or `local_epochs`.
    local_epochs: The number of epochs; this or `local_steps`.

  Returns:
    The number of epochs, begun ones too, and of batches.

  Raises:
    ValueError: If not exactly one of `local_steps` and `local_epochs` is given, a number is not
      positive, or the round is too large to hold in memory.
  """
  if (local_steps is None) == (local_epochs is None):
    raise ValueError(
      'Exactly one of `local_steps` and `local_epochs` must be given, '
      f'found local_steps={local_steps} and local_epochs={local_epochs}.'
    )
  for name, value in [
    ('num_examples', num_examples),
    ('batch_size', batch_size),
    ('local_steps', local_steps),
    ('local_epochs', local_epochs),
  ]:
    if value is not None and value < 1:
      raise ValueError(f'`{name}` must be at least 1, found {value}.')
  columns = min(batch_size, num_examples)
  steps_per_epoch = -(-num_examples // columns)
  # An epoch always fits, so that no data set is too large.
  max_epochs = max(1, _MAX_POSITIONS // (steps_per_epoch * columns))
  if local_epochs is None:
    assert local_steps is not None  # One of them is given, see above.
    name, found, limit = 'local_steps', local_steps, max_epochs * steps_per_epoch
    local_epochs = -(-local_steps // steps_per_epoch)
  else:
    name, found, limit = 'local_epochs', local_epochs, max_epochs
    local_steps = local_epochs * steps_per_epoch
  if found > limit:
    raise ValueError(
      f'`{name}` must be at most {limit} for batches of {columns} '
      f'of the {num_examples} examples of a client, found {found}.'
    )
  return local_epochs, local_steps


def count_examples(num_examples: int, **size: 'Unpack[RoundSize]') -> int:
  """Returns how many examples, with repetitions, the batches of `make_index` have.

  >>> count_examples(5, batch_size=2, local_steps=4)  # 2 + 2 + 1, and 2 of the next epoch.
  7

  Args:
    num_examples: How many examples the client holds.
    **size: The other arguments of `check_size`.
  """
  _, steps = check_size(num_examples, **size)
  columns = min(size['batch_size'], num_examples)
  epochs, rest = divmod(steps, -(-num_examples // columns))
  return epochs * num_examples + rest * columns


def make_index(
  num_examples: int,
  client_id: str,
  round_num: int,
  *,
  seed: int,
  **size: 'Unpack[RoundSize]',
) -> np.ndarray:
  """Makes the batches of a round, as positions among the client's own examples.

  Each epoch visits every example once in a new order, and its last batch may be short. With
  `local_steps`, epochs follow one another until that many batches are made.

  Args:
    num_examples: How many examples the client holds.
    client_id: The client's name.
    round_num: The round, from 0.
    seed: The run's seed for batches.
    **size: The other arguments of `check_size`.

  Returns:
    An int32 array `[steps, batch_size]`, or narrower if the client has fewer examples; -1 fills up
    short batches.

  Raises:
    ValueError: See `check_size`.
  """
  local_epochs, local_steps = check_size(num_examples, **size)
  columns = min(size['batch_size'], num_examples)
  steps_per_epoch = -(-num_examples // columns)
  keys = _stream('order', seed, round_num, client_id).random_raw((local_epochs, num_examples))
  index = np.full((local_epochs, steps_per_epoch * columns), -1, np.int32)
  index[:, :num_examples] = np.argsort(keys, axis=1, kind='stable')
  return index.reshape(-1, columns)[:local_steps]


def make_step_seeds(num_steps: int, client_id: str, round_num: int, *, seed: int) -> np.ndarray:
  """Makes the seed of each local step, for dropout and augmentation.

  Args:
    num_steps: The number of steps.
    client_id: The client's name.
    round_num: The round, from 0.
    seed: The run's seed for batches.

  Returns:
    An int32 array `[num_steps, 2]`.
  """
  raw = _stream('step', seed, round_num, client_id).random_raw(num_steps)
  return raw.astype('<u8').view('<i4').astype(np.int32).reshape(num_steps, 2)


def _stream(purpose: str, seed: int, round_num: int, client_id: str) -> np.random.Philox:
  # JSON, not a plain join: a client id may contain any character.
  key = json.dumps([purpose, int(seed), int(round_num), client_id]).encode()
  return np.random.Philox(key=int.from_bytes(hashlib.sha256(key).digest()[:16], 'little'))
