# SPDX-License-Identifier: Apache-2.0
"""The count of a round's operations, against numbers computed by hand."""

import pytest
import tensorflow as tf

from benchmarks import arithmetic, scaling, workloads
from benchmarks.contenders import tff_models


def test_logistic_regression_by_hand():
  # 784 x 10 multiply-adds forwards and as many for the weights' gradient; two operations each;
  # 500 clients of 20 examples.
  assert arithmetic.round_flop(workloads.get('S')) == 2 * 2 * 7840 * 10_000


def test_cnn_of_the_paper_by_hand():
  # 5x5 kernels: 28 x 28 x 32 results of 75 products, 10 x 10 x 64 of 800; 1600 x 128; 128 x 10.
  first, rest = 28 * 28 * 32 * 75, 10 * 10 * 64 * 800 + 1600 * 128 + 128 * 10
  assert arithmetic.round_flop(workloads.get('B')) == 2 * (2 * first + 3 * rest) * 20 * 20 * 50
  assert (first, rest) == (1_881_600, 5_326_080)


def test_cnn_of_pfl_by_hand():
  first, rest = 30 * 30 * 32 * 27, 28 * 28 * 64 * 288 + 12_544 * 128 + 128 * 10
  assert arithmetic.round_flop(workloads.get('A')) == 2 * (2 * first + 3 * rest) * 50 * 5 * 10


def test_transformer_by_hand():
  # A whole layer on 80 positions of width 128: three projections and one after attention, scores
  # and means over 80 positions, a hidden layer of 512 and back.
  whole = 80 * (4 * 128 * 128 + 2 * 80 * 128 + 2 * 128 * 512)
  # The last one: keys and values everywhere, the rest for one position.
  last = 80 * 2 * 128 * 128 + 2 * 128 * 128 + 2 * 80 * 128 + 2 * 128 * 512
  expected = 2 * 3 * (5 * whole + last + 128 * 80) * 10 * 2 * 50
  assert arithmetic.round_flop(workloads.get('T')) == expected


@pytest.mark.parametrize(
  ('name', 'num_weights'), [('A', 1_626_442), ('B', 259_914), ('S', 7_850), ('mlp280x50', None)]
)
def test_models_have_the_weights_that_are_stated(name, num_weights):
  with tf.Graph().as_default():
    model = tff_models.model_fn(workloads.get(name))()
    found = sum(v.shape.num_elements() for v in model.trainable_variables)
  assert found == (num_weights or scaling.num_weights(280))


@pytest.mark.parametrize(('width', 'millions'), zip(scaling.WIDTHS, (0.1, 1, 10)))
def test_models_of_the_scaling_have_their_size(width, millions):
  assert scaling.num_weights(width) == pytest.approx(1e6 * millions, rel=0.02)


def test_unknown_workload_is_named():
  with pytest.raises(ValueError, match="`workload` must be one of .*, found 'X'"):
    workloads.get('X')
