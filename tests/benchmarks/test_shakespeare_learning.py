# SPDX-License-Identifier: Apache-2.0
"""The counts that stand beside a learned model: by hand."""

import numpy as np

from benchmarks import shakespeare_learning


def _windows(text, length=4):
  codes = np.frombuffer(text.encode(), np.uint8)
  return np.lib.stride_tricks.sliding_window_view(codes, length)


def test_best_guess_of_counted_characters():
  # Ends of the windows: after a comes b twice and c once; after aa always b.
  train = np.stack([_windows(t)[0] for t in ('xaab', 'xaab', 'xyac')])
  test = np.stack([_windows(t)[0] for t in ('xaab', 'xaac', 'xyac', 'xybb', 'xyab')])
  # From `a` the guess is b: right in 2 of 4; `b` is unknown, so the most frequent of all, b: right.
  assert shakespeare_learning.learned_accuracy(train, test, 1) == 3 / 5
  # From `aa` b, right once of twice; from `ya` c, once of twice; from `yb` as before.
  assert shakespeare_learning.learned_accuracy(train, test, 2) == 3 / 5
  # Counted on the test itself: after a come b, c, c, b, so two; after b one.
  assert shakespeare_learning.best_accuracy(test, 1) == 3 / 5
  assert shakespeare_learning.best_accuracy(test, 3) == 3 / 5


def test_windows_of_both_kinds_of_labels_are_the_same():
  import tensorflow as tf

  windows = _windows('abcdefgh', 5)
  x = {'tokens': windows[:, :-1]}
  for prediction, y in (('last', windows[:, -1].astype(np.int32)), ('every', windows[:, 1:])):
    dataset = tf.data.Dataset.from_tensor_slices({'x': x, 'y': y})
    found = shakespeare_learning.whole_windows(dataset, prediction)
    np.testing.assert_array_equal(found, windows)
