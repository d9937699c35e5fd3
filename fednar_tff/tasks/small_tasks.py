# SPDX-License-Identifier: Apache-2.0
"""Tasks that need no download: scikit-learn's digits, and generated points."""

import collections

import numpy as np
import tensorflow as tf

from fednar_tff import signatures
from fednar_tff.tasks import assembly, keras_models, models, task

_NUM_DIGITS_TRAIN = 1437  # Four fifths of the 1,797 images.
_DIGITS_LEVELS = 16.0  # Of grey.
_SYNTHETIC_CLASSES, _SYNTHETIC_FEATURES = 4, 8
_SYNTHETIC_TRAIN, _SYNTHETIC_TEST = 400, 200


@signatures.with_arguments_of(assembly.CommonArguments)
def build_digits(
  *,
  model='mlp',
  num_clients=20,
  alpha=None,
  partition='dirichlet',
  partition_seed=0,
  **arguments,
):
  """Builds the digits task: 8x8 grey images of ten digits; alpha is 1.0 by default."""
  common = assembly.CommonArguments(**arguments)
  network = assembly.choose(
    'model of task digits', model, {'mlp': models.build_mlp, 'cnn': models.build_cnn}
  )
  from sklearn import datasets

  digits = datasets.load_digits()
  # The images come ordered by writer: mixed once, the same for every seed, so that the test
  # set has the same writers as the training set.
  order = np.random.RandomState(0).permutation(len(digits.target))
  x = (digits.images[order, :, :, np.newaxis] / _DIGITS_LEVELS).astype(np.float32)
  y = digits.target[order].astype(np.int32)
  return assembly.assemble(
    'digits',
    common,
    train=collections.OrderedDict(x=x[:_NUM_DIGITS_TRAIN], y=y[:_NUM_DIGITS_TRAIN]),
    test=collections.OrderedDict(x=x[_NUM_DIGITS_TRAIN:], y=y[_NUM_DIGITS_TRAIN:]),
    partition=assembly.make_partition(
      partition, y[:_NUM_DIGITS_TRAIN], num_clients, alpha, default_alpha=1.0, seed=partition_seed
    ),
    network=network(10),
    raw_input=task.RawInput(
      tf.TensorSpec([None, *x.shape[1:]], tf.uint8),
      lambda raw: tf.cast(raw, tf.float32) / _DIGITS_LEVELS,
    ),
    keras_model_fn=keras_models.of_images(
      model, x.shape[1:], scale=_DIGITS_LEVELS, precision=common.precision
    ),
  )


@signatures.with_arguments_of(assembly.CommonArguments)
def build_synthetic(
  *,
  model='mlp',
  num_clients=10,
  alpha=None,
  partition='dirichlet',
  partition_seed=0,
  dropout=0.0,
  **arguments,
):
  """Builds the synthetic task: four clouds of points in eight dimensions, alpha 1.0."""
  common = assembly.CommonArguments(**arguments)
  assembly.check_dropout(dropout)
  network = assembly.choose('model of task synthetic', model, {'mlp': models.build_mlp})
  generator = np.random.RandomState(0)
  centers = generator.normal(size=[_SYNTHETIC_CLASSES, _SYNTHETIC_FEATURES])
  y = np.arange(_SYNTHETIC_TRAIN + _SYNTHETIC_TEST, dtype=np.int32) % _SYNTHETIC_CLASSES
  x = (centers[y] + generator.normal(size=[len(y), _SYNTHETIC_FEATURES])).astype(np.float32)

  def examples(rows):
    features = collections.OrderedDict(features=x[rows]) if dropout else x[rows]
    return collections.OrderedDict(x=features, y=y[rows])

  return assembly.assemble(
    'synthetic',
    common,
    train=examples(slice(_SYNTHETIC_TRAIN)),
    test=examples(slice(_SYNTHETIC_TRAIN, None)),
    partition=assembly.make_partition(
      partition, y[:_SYNTHETIC_TRAIN], num_clients, alpha, default_alpha=1.0, seed=partition_seed
    ),
    network=network(_SYNTHETIC_CLASSES, hidden=(16,), dropout_rate=dropout),
    needs_seed=bool(dropout),
    raw_input=task.RawInput(
      tf.TensorSpec([None, _SYNTHETIC_FEATURES]),
      lambda raw: collections.OrderedDict(features=raw) if dropout else raw,
    ),
    keras_model_fn=keras_models.of_numbers([_SYNTHETIC_FEATURES], common.precision),
  )
