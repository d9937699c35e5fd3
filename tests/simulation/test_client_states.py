# SPDX-License-Identifier: Apache-2.0
"""The store of client states: what survives, and what is forgotten."""

import collections

import numpy as np
import pytest

from fednar_tff import simulation

INITIAL = collections.OrderedDict(
  a=np.zeros([2], np.float32), b=(np.zeros([], np.float64), np.zeros([1, 2], np.int32))
)


def state(value):
  return collections.OrderedDict(
    a=np.array([value, -value], np.float32),
    b=(np.float64(value / 3), np.array([[value, value + 1]], np.int32)),
  )


def assert_state(found, expected):
  np.testing.assert_array_equal(found['a'], expected['a'])
  np.testing.assert_array_equal(found['b'][0], expected['b'][0])
  np.testing.assert_array_equal(found['b'][1], expected['b'][1])
  assert [found['a'].dtype, found['b'][0].dtype, found['b'][1].dtype] == [
    np.float32,
    np.float64,
    np.int32,
  ]


STORES = pytest.mark.parametrize('keep_in_memory', [True, False], ids=['memory', 'disk'])


@STORES
def test_unknown_clients_have_the_initial_state_and_take_no_room(tmp_path, keep_in_memory):
  store = simulation.ClientStates(INITIAL, tmp_path / 'states', keep_in_memory=keep_in_memory)
  assert_state(store.get(['x'])[0], INITIAL)
  assert store.client_ids() == []


def test_without_a_path_states_are_kept_in_memory():
  store = simulation.ClientStates(INITIAL)
  store.put(['x', 'y'], [state(1), state(2)], 1)
  store.commit(1)
  assert_state(store.get(['y'])[0], state(2))
  assert store.client_ids() == ['x', 'y']


def test_neither_path_nor_memory_is_refused():
  with pytest.raises(ValueError, match='`path` must be given if `keep_in_memory` is False'):
    simulation.ClientStates(INITIAL, keep_in_memory=False)


@STORES
def test_what_is_committed_survives_and_what_is_not_does_not(tmp_path, keep_in_memory):
  path = tmp_path / 'states'
  store = simulation.ClientStates(INITIAL, path, keep_in_memory=keep_in_memory)
  store.put(['x', 'y'], [state(1), state(2)], 1)
  store.commit(1)
  store.put(['x'], [state(7)], 2)
  assert_state(store.get(['x'])[0], state(7))
  store.close()  # As when the process ends: nothing is committed by it.
  again = simulation.ClientStates(INITIAL, path, keep_in_memory=keep_in_memory)
  again.restore(1)
  assert_state(again.get(['x'])[0], state(1))
  assert_state(again.get(['y'])[0], state(2))


@STORES
def test_restore_goes_back_to_any_checkpoint_that_is_kept(tmp_path, keep_in_memory):
  path = tmp_path / 'states'
  store = simulation.ClientStates(INITIAL, path, keep_in_memory=keep_in_memory)
  for round_num, (client, value) in enumerate([('x', 1), ('y', 2), ('x', 3), ('x', 4)], 1):
    store.put([client], [state(value)], round_num)
    store.commit(round_num)
  store.prune(2)
  store.close()
  store = simulation.ClientStates(INITIAL, path, keep_in_memory=keep_in_memory)
  store.restore(3)
  assert_state(store.get(['x'])[0], state(3))
  store.restore(2)
  assert_state(store.get(['x'])[0], state(1))
  assert_state(store.get(['y'])[0], state(2))
  store.restore(0)
  assert store.client_ids() == []


def test_prune_keeps_one_state_a_client_when_only_the_newest_checkpoint_is_kept(tmp_path):
  store = simulation.ClientStates(INITIAL, tmp_path / 'states', keep_in_memory=False)
  for round_num in range(1, 6):
    store.put(['x', 'y'], [state(round_num), state(-round_num)], round_num)
    store.commit(round_num)
  store.prune(5)
  count = store._database.execute('SELECT COUNT(*) FROM states').fetchone()[0]
  assert count == 2
  assert_state(store.get(['y'])[0], state(-5))


def test_the_disk_store_holds_nothing_in_memory(tmp_path):
  store = simulation.ClientStates(INITIAL, tmp_path / 'states', keep_in_memory=False)
  store.put([str(i) for i in range(100)], [state(i) for i in range(100)], 1)
  assert store._memory is None and not store._uncommitted


@pytest.mark.slow
def test_a_hundred_thousand_clients_on_disk_need_the_memory_of_a_cohort(tmp_path):
  """100,000 clients with 100,000 parameters would be 40 GB in memory; rounds of 20 touch few of
  them."""
  import resource

  initial = np.zeros([100_000], np.float32)
  store = simulation.ClientStates(initial, tmp_path / 'states', keep_in_memory=False)
  generator = np.random.default_rng(0)

  def run_rounds(rounds):
    for round_num in rounds:
      ids = [f'client_{i}' for i in generator.choice(100_000, 20, replace=False)]
      store.put(ids, [s + 1 for s in store.get(ids)], round_num)
      if round_num % 10 == 0:
        store.commit(round_num)
        store.prune(round_num)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

  before = run_rounds(range(1, 21))
  after = run_rounds(range(21, 301))
  assert after - before < 100  # 6,000 states of 0.4 MB would be 2,400 MB.
