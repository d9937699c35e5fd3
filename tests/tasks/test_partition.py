# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednar_tff import tasks

_LABELS = np.repeat(np.arange(10), 5000)


def _classes_holding_90_percent(partition):
  shares = -np.sort(-partition.class_counts(), axis=1)
  shares = np.cumsum(shares, axis=1) / shares.sum(axis=1, keepdims=True)
  return np.mean([np.searchsorted(s, 0.9 - 1e-12) + 1 for s in shares])


def _assert_complete_and_disjoint(partition, num_examples):
  np.testing.assert_array_equal(np.sort(np.concatenate(partition.rows)), np.arange(num_examples))


def test_paper_split_gives_500_each_and_uses_every_example_once():
  partition = tasks.build_dirichlet(_LABELS, 100, 0.3, seed=7)
  assert [len(rows) for rows in partition.rows] == [500] * 100
  _assert_complete_and_disjoint(partition, 50000)


def test_smaller_alpha_means_fewer_classes():
  few, many = (
    _classes_holding_90_percent(tasks.build_dirichlet(_LABELS, 100, alpha)) for alpha in (0.3, 10.0)
  )
  print(f'classes holding 90 % of a client: alpha 0.3: {few:.2f}, alpha 10: {many:.2f}')
  assert few < 0.6 * many


@pytest.mark.parametrize('build', [tasks.build_dirichlet, tasks.build_dirichlet_unequal])
@given(
  sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(lambda s: sum(s) > 0),
  clients=st.integers(1, 40),
  alpha=st.sampled_from([1e-3, 0.01, 0.3, 1.0, 100.0]),
  seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_every_example_goes_to_one_client_whatever_runs_out(build, sizes, clients, alpha, seed):
  labels = np.repeat(np.arange(len(sizes)), sizes)
  clients = min(clients, len(labels))
  partition = build(labels, clients, alpha, seed=seed)
  _assert_complete_and_disjoint(partition, len(labels))
  lengths = [len(rows) for rows in partition.rows]
  assert min(lengths) >= 1
  if build is tasks.build_dirichlet:
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


def test_extreme_alphas_reach_the_limits():
  one_class = tasks.build_dirichlet(_LABELS, 10, 1e-3, seed=3)
  assert _classes_holding_90_percent(one_class) < 2
  uniform = tasks.build_dirichlet(_LABELS, 10, 1e6, seed=3).class_counts()
  # Multinomial(5000, 1/10): a deviation of 21; five of them are enough.
  assert np.abs(uniform - 500).max() < 110


def test_a_class_that_runs_out_costs_all_clients_alike():
  counts = [tasks.build_dirichlet(_LABELS, 100, 0.05, seed=s).class_counts() for s in range(5)]
  biggest = np.mean([np.sort(c, axis=1)[:, -1] for c in counts], axis=0)
  # A client after client draw would leave the last ones the scraps.
  assert abs(biggest[:50].mean() - biggest[50:].mean()) < 50


@pytest.mark.parametrize('alpha', [0.3, 1.0, 10.0])
def test_split_is_as_uneven_as_one_drawn_image_by_image(alpha):
  """The released code gives one image after the other to a random client that is not full
  (docs/paper.md, F9)."""
  labels = np.repeat(np.arange(10), 500)

  def unevenness(counts):
    return np.mean(np.abs(counts / 50 - 0.1).sum(axis=1) / 2)

  def one_by_one(seed):
    generator = np.random.default_rng(seed)
    proportions = generator.dirichlet(np.full(10, alpha), 100)
    stock, counts = np.full(10, 500), np.zeros([100, 10])
    for client in generator.permutation(np.repeat(np.arange(100), 50)):
      # Drawing again until a class is in stock is drawing among those in stock.
      odds = np.cumsum(np.where(stock > 0, proportions[client] + 1e-12, 0.0))
      c = np.searchsorted(odds, generator.random() * odds[-1], side='right')
      counts[client, c] += 1
      stock[c] -= 1
    return counts

  ours = [
    unevenness(tasks.build_dirichlet(labels, 100, alpha, seed=s).class_counts()) for s in range(8)
  ]
  theirs = [unevenness(one_by_one(seed)) for seed in range(8)]
  # Of 8 splits of each kind; one split differs from another by about 0.01.
  assert abs(np.mean(ours) - np.mean(theirs)) < 0.015


def test_unequal_split_follows_class_proportions():
  partition = tasks.build_dirichlet_unequal(_LABELS, 20, 0.5, seed=1)
  counts = partition.class_counts()
  np.testing.assert_array_equal(counts.sum(axis=0), [5000] * 10)
  lengths = counts.sum(axis=1)
  assert lengths.max() > 2 * lengths.min()


def test_iid_split_is_equal_and_mixed():
  partition = tasks.build_iid(_LABELS, 100, seed=1)
  assert {len(rows) for rows in partition.rows} == {500}
  _assert_complete_and_disjoint(partition, 50000)
  assert partition.class_counts().max() < 90


def test_natural_split_keeps_the_owners():
  partition = tasks.build_natural([0, 1, 2, 3], ['b', 'a', 'b', 'c'])
  assert partition.client_ids == ('a', 'b', 'c')
  assert [rows.tolist() for rows in partition.rows] == [[1], [0, 2], [3]]


def test_hash_tells_partitions_apart_and_never_drifts():
  labels = np.repeat(np.arange(10), 50)
  build = tasks.build_dirichlet
  first = build(labels, 10, 0.3, seed=1).hash
  assert first == build(labels, 10, 0.3, seed=1).hash
  others = {
    build(labels, 10, 0.3, seed=2).hash,
    build(labels, 10, 0.31, seed=1).hash,
    build(labels, 11, 0.3, seed=1).hash,
    tasks.build_iid(labels, 10, seed=1).hash,
  }
  assert len(others - {first}) == 4
  # Runs are compared by this hash: a change of it must be meant.
  assert first.startswith('2c0de31b6c8cf992')


def test_picture_is_drawn(tmp_path):
  tasks.build_dirichlet(_LABELS, 30, 0.3).plot(tmp_path / 'partition.png')
  assert (tmp_path / 'partition.png').read_bytes().startswith(b'\x89PNG')


def test_ticks_of_the_picture_are_clients_and_classes(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr('matplotlib.figure.Figure.savefig', lambda self, path: drawn.append(self))
  tasks.build_dirichlet(np.arange(400) % 4, 5, 0.3).plot(tmp_path / 'partition.png')
  axes = drawn[0].axes[0]
  for ticks in (axes.get_xticks(), axes.get_yticks()):
    np.testing.assert_array_equal(ticks, np.round(ticks))


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda: tasks.build_dirichlet([0, 1], 3, 1.0), 'at most the number of examples, 2, found 3'),
    (lambda: tasks.build_iid([0, 1], 3), 'at most the number of examples, 2, found 3'),
    (lambda: tasks.build_dirichlet([0, 1], 0, 1.0), 'at least 1, found 0'),
    (lambda: tasks.build_dirichlet([0, 1], 2, 0.0), 'positive and finite, found 0.0'),
    (lambda: tasks.build_dirichlet_unequal([0, 1], 2, float('nan')), 'finite, found nan'),
    (lambda: tasks.build_natural([0, 1], ['a']), 'each of 2 examples, found 1'),
    (lambda: tasks.Partition(['a', 'b'], [[0], [0]], np.zeros(1)), 'disjoint'),
    (lambda: tasks.Partition(['a'], [[5]], np.zeros(1)), r'in \[0, 1\), found 5 to 5'),
    (lambda: tasks.Partition(['a', 'a'], [[0], [1]], np.zeros(2)), 'different names'),
  ],
)
def test_bad_arguments_are_named(call, message):
  with pytest.raises(ValueError, match=message):
    call()
