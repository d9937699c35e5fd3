# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10, split by us, and CIFAR-100 as TFF splits it.

The images stay uint8 in memory; normalisation and augmentation are part of the network, so that all
clients share one copy. Augmentation is a crop of the image padded by 4 pixels and a horizontal
flip, drawn per image, or once for a whole batch as the released code does (docs/paper.md, D15).
The pixels around the image are of the mean colour, which normalisation makes 0, or black (F3).
"""

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fednar_tff import signatures
from fednar_tff.tasks import assembly, keras_models, models, sources, step_seeds, task
from fednar_tff.tasks import partition as partition_lib

_SIDE, _PADDING = 32, 4
_SHIFTS = 2 * _PADDING + 1
# Mean and deviation of each colour.
STATISTICS = {
  'cifar10': ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
  'cifar100': ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}


@signatures.with_arguments_of(assembly.CommonArguments)
def _build(
  name,
  num_classes,
  load,
  divide,
  *,
  model='resnet18',
  augmentation='per_image',
  padding='mean',
  pooling=None,
  **arguments,
):
  """Builds a task of what `load` returns, divided as `divide` does, after a look at the rest."""
  network = _build_network(name, model, num_classes, augmentation, padding, pooling)
  common = assembly.CommonArguments(**arguments)
  data = load()
  return assembly.assemble(
    name,
    common,
    train=_examples(data['train']),
    test=_examples(data['test']),
    partition=divide(data['train']),
    network=network,
    needs_seed=True,
    **_outside_of_training(name, model, pooling, common.precision),
  )


@signatures.with_arguments_of(_build)
def build_cifar10(
  *,
  data_dir=None,
  num_clients=100,
  alpha=None,
  partition='dirichlet',
  partition_seed=0,
  **arguments,
):
  """Builds the CIFAR-10 task; alpha is 0.3 by default."""

  def divide(train):
    return assembly.make_partition(
      partition,
      train['label'].numpy(),
      num_clients,
      alpha,
      default_alpha=0.3,
      seed=partition_seed,
    )

  return _build('cifar10', 10, lambda: sources.load_cifar10(data_dir), divide, **arguments)


@signatures.with_arguments_of(_build)
def build_cifar100(*, data_dir=None, **arguments):
  """Builds the CIFAR-100 task with TFF's own 500 clients."""

  def divide(train):
    owners = [client_id.decode() for client_id in train['client_id']]
    return partition_lib.build_natural(train['label'], owners)

  return _build('cifar100', 100, lambda: sources.load_cifar100(data_dir), divide, **arguments)


def _examples(split):
  return collections.OrderedDict(
    x=collections.OrderedDict(image=split['image']), y=np.asarray(split['label'], np.int32)
  )


def _outside_of_training(name, model, pooling, precision):
  """Returns what the trained model takes, and its form in Keras."""
  mean, deviation = (255.0 * np.array(s) for s in STATISTICS[name])
  shape = [_SIDE, _SIDE, 3]
  return {
    'raw_input': task.RawInput(
      tf.TensorSpec([None, *shape], tf.uint8), lambda raw: collections.OrderedDict(image=raw)
    ),
    'keras_model_fn': keras_models.of_images(
      model,
      shape,
      offset=mean,
      scale=deviation,
      pooling=pooling or 'global',
      precision=precision,
    ),
  }


def _build_network(name, model, num_classes, augmentation, padding, pooling):
  """Builds a network on uint8 images: augmentation and normalisation, then the model."""
  builder = assembly.choose(
    f'model of task {name}',
    model,
    {
      'resnet18': models.build_resnet18,
      'cnn': models.build_cnn,
      'small_cnn': models.build_small_cnn,
      'small_resnet18': models.build_small_resnet18,
      'mlp': models.build_mlp,
    },
  )
  if pooling is not None and model != 'resnet18':
    raise ValueError(
      f'`pooling` must be None for model {model}, which is not resnet18, found {pooling!r}.'
    )
  if padding != 'mean' and augmentation == 'none':
    raise ValueError(f"`padding` must be 'mean' without augmentation, found {padding!r}.")
  augment = assembly.choose(
    'augmentation',
    augmentation,
    {
      'per_image': augment_per_image,
      'per_batch': augment_per_batch,
      'none': lambda images, seed: images,
    },
  )
  pads_with_mean = assembly.choose('padding', padding, {'mean': True, 'black': False})
  classifier = builder(num_classes, **({} if pooling is None else {'pooling': pooling}))

  def network(param, x, training):
    images = x['image']
    if training and not pads_with_mean:
      # As floats, which a GPU can gather; it cannot gather bytes.
      images = augment(tf.cast(images, tf.float32), x[step_seeds.SEED_KEY])
    images = normalise(images, *STATISTICS[name])
    if training and pads_with_mean:
      images = augment(images, x[step_seeds.SEED_KEY])
    return classifier(param, images, training)

  return network


def normalise(images: tf.Tensor, mean: Sequence[float], deviation: Sequence[float]) -> tf.Tensor:
  """Scales images to mean 0 and deviation 1 in each colour.

  Args:
    images: uint8 `[batch, height, width, 3]`.
    mean: The mean of each colour, of values in [0, 1].
    deviation: The deviation of each colour, of values in [0, 1].

  Returns:
    Images of the same shape, float32.
  """
  # By rows of pixels: with the three colours as the last dimension it takes four times as long.
  _, height, width, colours = images.shape
  center, scale = (np.tile(255.0 * np.array(s, np.float32), width) for s in (mean, deviation))
  rows = tf.cast(tf.reshape(images, [-1, width * colours]), tf.float32)
  return tf.reshape((rows - center) * (1.0 / scale), [-1, height, width, colours])


def augment_per_image(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Crops and flips each image on its own; what is outside of it is 0.

  Args:
    images: `[batch, 32, 32, 3]`.
    seed: An int32 `[2]`.

  Returns:
    Images of the same shape.
  """
  batch = tf.shape(images)[0]
  top, left, flip = _draw([batch, 1], seed)
  # One gather of all pixels from the padded batch: faster than a slice per image.
  side = _SIDE + 2 * _PADDING
  across = tf.range(_SIDE, dtype=tf.int64)
  rows = top + across
  columns = left + tf.where(flip, _SIDE - 1 - across, across)
  image = tf.cast(tf.range(batch), tf.int64)[:, tf.newaxis, tf.newaxis]
  pixels = (image * side + rows[:, :, tf.newaxis]) * side + columns[:, tf.newaxis, :]
  return tf.gather(tf.reshape(_pad(images), [-1, 3]), pixels)


def augment_per_batch(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Crops and flips all images of a batch alike; what is outside of an image is 0.

  Args:
    images: `[batch, 32, 32, 3]`.
    seed: An int32 `[2]`.

  Returns:
    Images of the same shape.
  """
  top, left, flip = _draw([], seed)
  images = tf.slice(_pad(images), [0, top, left, 0], [-1, _SIDE, _SIDE, 3])
  return tf.where(flip, tf.reverse(images, axis=[2]), images)


def _draw(shape, seed):
  """Draws the crop's top and left in [0, 8] and whether to flip, from one number each."""
  drawn = tf.random.stateless_uniform(
    shape, seed, minval=0, maxval=2 * _SHIFTS**2, dtype=tf.int32, alg='philox'
  )
  # Numbers of 64 bits: TensorFlow computes with those of 32 on the host, and would copy the pixels'
  # numbers to a GPU.
  drawn = tf.cast(drawn, tf.int64)
  top = drawn // (2 * _SHIFTS)
  rest = drawn - top * (2 * _SHIFTS)
  left = rest // 2
  return top, left, rest - left * 2 == 1


def _pad(images):
  # By rows, too: twice as fast.
  rows = tf.reshape(images, [-1, _SIDE, 3 * _SIDE])
  rows = tf.pad(rows, [[0, 0], [_PADDING, _PADDING], [3 * _PADDING, 3 * _PADDING]])
  return tf.reshape(rows, [-1, _SIDE + 2 * _PADDING, _SIDE + 2 * _PADDING, 3])
