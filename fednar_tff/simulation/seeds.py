# SPDX-License-Identifier: Apache-2.0
"""The random choices of a run, each from a seed of its own."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Seeds(NamedTuple):
  """One seed for each kind of random choice, so that one can be varied while the others stay.

  Attributes:
    partition: Which client holds which examples.
    sampling: Which clients take part in which round.
    model: The initial weights.
    batches: The order of a client's examples, dropout and augmentation.
  """

  partition: int
  sampling: int
  model: int
  batches: int


def derive_seeds(seed: int | Seeds, **given: int | None) -> Seeds:
  """Returns the seeds of a run, all derived from one unless given.

  >>> derive_seeds(0) == derive_seeds(0), derive_seeds(0) == derive_seeds(1)
  (True, False)
  >>> derive_seeds(0, partition=7).partition
  7

  Args:
    seed: A nonnegative integer; or `Seeds` that were derived before, which are returned.
    **given: Seeds to use instead of the derived ones, by the names of `Seeds`; None derives it.

  Raises:
    ValueError: If `seed` is negative, or one of `Seeds` is given twice.
  """
  if isinstance(seed, Seeds):
    for name, value in given.items():
      if value is not None and value != getattr(seed, name):
        raise ValueError(
          f'The seed of {name} must be None if `seed` has it, as {getattr(seed, name)}, '
          f'found {value}.'
        )
    return seed
  if seed < 0:
    raise ValueError(f'`seed` must be a nonnegative integer, found {seed!r}.')
  derived = np.random.SeedSequence(seed).generate_state(len(Seeds._fields), np.uint32)
  # Some libraries take no more than 31 bits.
  values = dict(zip(Seeds._fields, (int(s) & 0x7FFFFFFF for s in derived)))
  values.update({name: value for name, value in given.items() if value is not None})
  return Seeds(**values)


def sample_clients(
  client_ids: Sequence[str], clients_per_round: int, round_num: int, seed: int
) -> list[str]:
  """Returns the clients of a round, drawn without replacement: a pure function of its arguments.

  Raises:
    ValueError: If there are not enough clients.
  """
  if not 0 < clients_per_round <= len(client_ids):
    raise ValueError(
      f'`clients_per_round` must be from 1 to the number of clients, {len(client_ids)}, '
      f'found {clients_per_round}.'
    )
  generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, round_num])))
  chosen = generator.choice(len(client_ids), clients_per_round, replace=False)
  return [client_ids[i] for i in chosen]
