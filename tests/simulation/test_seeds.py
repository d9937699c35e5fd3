# SPDX-License-Identifier: Apache-2.0
"""Random choices are pure functions of their seeds."""

import collections

import numpy as np
import pytest

from fednar_tff import simulation


def test_seeds_are_derived_from_one_and_differ():
  seeds = simulation.derive_seeds(5)
  assert seeds == simulation.derive_seeds(5)
  assert len(set(seeds)) == 4
  assert set(seeds).isdisjoint(simulation.derive_seeds(6))
  assert all(0 <= s < 2**31 for s in seeds)


def test_a_given_seed_changes_only_itself():
  seeds, changed = simulation.derive_seeds(5), simulation.derive_seeds(5, sampling=9, model=None)
  assert changed == seeds._replace(sampling=9)


def test_negative_seed_is_refused():
  with pytest.raises(ValueError, match='`seed` must be a nonnegative integer, found -1'):
    simulation.derive_seeds(-1)


def test_sampling_is_pure_without_replacement_and_uniform():
  ids = [f'c{i}' for i in range(10)]
  rounds = [simulation.sample_clients(ids, 4, t, seed=3) for t in range(2000)]
  assert rounds[17] == simulation.sample_clients(ids, 4, 17, seed=3)
  assert rounds[17] != simulation.sample_clients(ids, 4, 17, seed=4)
  assert all(len(set(chosen)) == 4 for chosen in rounds)
  counts = collections.Counter(c for chosen in rounds for c in chosen)
  expected, deviation = 800, np.sqrt(2000 * 0.4 * 0.6)
  assert all(abs(counts[c] - expected) < 5 * deviation for c in ids)


@pytest.mark.parametrize('clients_per_round', [0, 11])
def test_too_many_or_no_clients_are_refused(clients_per_round):
  with pytest.raises(
    ValueError, match=f'from 1 to the number of clients, 10, found {clients_per_round}'
  ):
    simulation.sample_clients([str(i) for i in range(10)], clients_per_round, 0, 0)
