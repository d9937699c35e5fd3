# SPDX-License-Identifier: Apache-2.0
"""Validation: a part of the clients' training examples in place of the test set."""

import numpy as np
import pytest

from fednar_tff import tasks


def labels_of(dataset):
  return np.concatenate([batch['y'].numpy() for batch in dataset])


def test_held_out_examples_are_a_share_of_each_client_and_no_client_keeps_one():
  whole = tasks.create_task('digits', num_clients=7, seed=3)
  split = tasks.create_task('digits', num_clients=7, seed=3, validation_share=0.25)
  assert split.partition.client_ids == whole.partition.client_ids
  held_out = []
  for before, after in zip(whole.partition.rows, split.partition.rows, strict=True):
    missing = np.setdiff1d(before, after)
    assert len(missing) == len(before) // 4
    assert set(after) < set(before)
    held_out.append(missing)
  held_out = np.sort(np.concatenate(held_out))
  found = labels_of(split.datasets.get_centralized_test_data())
  np.testing.assert_array_equal(found, whole.partition.labels[held_out])


def test_which_examples_are_held_out_follows_the_seed():
  rows = [
    np.concatenate(task.partition.rows)
    for seed in (0, 0, 1)
    for task in [tasks.create_task('digits', seed=0).with_validation(0.1, seed=seed)]
  ]
  np.testing.assert_array_equal(rows[0], rows[1])
  assert set(rows[0]) != set(rows[2])


def test_the_task_says_what_it_was_made_with():
  arguments = tasks.create_task('digits', validation_share=0.1).arguments
  assert arguments['validation_share'] == 0.1
  again = tasks.create_task(**arguments)
  np.testing.assert_array_equal(
    labels_of(again.datasets.get_centralized_test_data()),
    labels_of(tasks.create_task(**arguments).datasets.get_centralized_test_data()),
  )
  assert tasks.create_task('digits').arguments['validation_share'] == 0.0


@pytest.mark.parametrize('share', [-0.1, 1.0, 1e-9])
def test_a_share_that_holds_out_nothing_or_all_is_refused(share):
  with pytest.raises(ValueError, match='`share` must'):
    tasks.create_task('digits').with_validation(share)
