# SPDX-License-Identifier: Apache-2.0
import re

import numpy as np
import pytest

from fednar_tff.tasks import batches


def _index(n=10, client='a', round_num=0, batch_size=4, seed=0, **work):
  return batches.make_index(n, client, round_num, batch_size=batch_size, seed=seed, **work)


def test_each_epoch_visits_every_example_once_and_ends_with_a_short_batch():
  index = _index(local_epochs=3)
  assert index.shape == (9, 4) and index.dtype == np.int32
  for epoch in index.reshape(3, 12):
    np.testing.assert_array_equal(np.sort(epoch[:10]), np.arange(10))
    np.testing.assert_array_equal(epoch[10:], [-1, -1])
  assert not np.array_equal(index[:3], index[3:6])


def test_steps_are_the_first_batches_of_the_epochs():
  np.testing.assert_array_equal(_index(local_steps=7), _index(local_epochs=3)[:7])
  np.testing.assert_array_equal(_index(local_steps=2), _index(local_epochs=3)[:2])


def test_a_batch_larger_than_the_client_is_all_its_examples_and_takes_no_more_room():
  index = _index(n=3, batch_size=100_000_000, local_steps=2)
  np.testing.assert_array_equal(np.sort(index, axis=1), [[0, 1, 2]] * 2)


@pytest.mark.parametrize('batch_size', [1, 4, 10, 100_000_000])
@pytest.mark.parametrize('name', ['local_steps', 'local_epochs'])
def test_a_round_that_fits_no_memory_says_what_fits(name, batch_size, monkeypatch):
  monkeypatch.setattr(batches, '_MAX_POSITIONS', 1000)
  with pytest.raises(
    ValueError, match=rf'`{name}` must be at most \d+ .*, found 100000000'
  ) as error:
    _index(batch_size=batch_size, **{name: 100_000_000})
  limit = int(re.search(r'at most (\d+)', str(error.value))[1])
  index = _index(batch_size=batch_size, **{name: limit})
  assert index.size <= 1000
  with pytest.raises(ValueError, match=f'found {limit + 1}'):
    _index(batch_size=batch_size, **{name: limit + 1})


def test_order_depends_on_seed_round_and_client():
  orders = [
    _index(n=50, local_epochs=1, **key).tobytes()
    for key in ({}, {'seed': 1}, {'round_num': 1}, {'client': 'b'})
  ]
  assert len(set(orders)) == 4


def test_step_seeds_depend_on_everything_but_the_number_of_steps():
  seeds = batches.make_step_seeds(6, 'a', 0, seed=0)
  assert seeds.shape == (6, 2) and seeds.dtype == np.int32
  np.testing.assert_array_equal(batches.make_step_seeds(4, 'a', 0, seed=0), seeds[:4])
  others = [
    batches.make_step_seeds(6, *key, seed=seed)
    for key, seed in [(('a', 0), 1), (('a', 1), 0), (('b', 0), 0)]
  ]
  assert len({tuple(pair) for s in [seeds, *others] for pair in s}) == 24


def test_batches_never_drift():
  # Resumed and repeated runs depend on these numbers.
  np.testing.assert_array_equal(_index(n=6, local_epochs=1, batch_size=6), [[4, 1, 3, 5, 2, 0]])
  np.testing.assert_array_equal(batches.make_step_seeds(1, 'a', 0, seed=0), [[26127063, 891924635]])


def test_first_example_of_a_round_is_uniform():
  first = [_index(n=8, client=str(i), local_steps=1)[0, 0] for i in range(4000)]
  counts = np.bincount(first, minlength=8)
  # Mean 500, deviation 21.
  assert np.abs(counts - 500).max() < 100


@pytest.mark.parametrize(
  'work, message',
  [
    ({}, 'Exactly one of `local_steps` and `local_epochs`'),
    ({'local_steps': 1, 'local_epochs': 1}, 'local_steps=1 and local_epochs=1'),
    ({'local_steps': 0}, '`local_steps` must be at least 1, found 0'),
    ({'local_epochs': -1}, '`local_epochs` must be at least 1, found -1'),
    ({'local_epochs': 1, 'batch_size': 0}, '`batch_size` must be at least 1, found 0'),
    ({'local_epochs': 1, 'n': 0}, '`num_examples` must be at least 1, found 0'),
  ],
)
def test_bad_arguments_are_named(work, message):
  with pytest.raises(ValueError, match=message):
    _index(**work)
