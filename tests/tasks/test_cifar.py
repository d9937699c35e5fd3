# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf

from fednar_tff import tasks
from fednar_tff.tasks import cifar, models

_SEED = tf.constant([11, 12])


def _images(n):
  return np.random.RandomState(0).randint(1, 256, [n, 32, 32, 3]).astype(np.uint8)


def _recover(original, augmented):
  """Finds the (top, left, flip) that turns one image into another, by trying all."""
  padded = np.pad(original, [(4, 4), (4, 4), (0, 0)])
  found = [
    (top, left, flip)
    for top in range(9)
    for left in range(9)
    for flip in (False, True)
    if np.array_equal(padded[top : top + 32, left : left + 32][:, :: -1 if flip else 1], augmented)
  ]
  assert len(found) == 1
  return found[0]


def test_per_image_augmentation_is_a_crop_and_flip_of_each_image():
  images = _images(200)
  augmented = cifar.augment_per_image(tf.constant(images), _SEED).numpy()
  assert augmented.dtype == np.uint8
  drawn = [_recover(a, b) for a, b in zip(images, augmented)]
  tops, lefts, flips = zip(*drawn)
  assert set(tops) == set(lefts) == set(range(9))
  assert 70 < sum(flips) < 130
  assert abs(np.corrcoef(tops, lefts)[0, 1]) < 0.3


def test_per_batch_augmentation_is_the_same_for_a_whole_batch():
  images = _images(5)
  seen = set()
  for i in range(30):
    augmented = cifar.augment_per_batch(tf.constant(images), tf.constant([i, 0])).numpy()
    drawn = {_recover(a, b) for a, b in zip(images, augmented)}
    assert len(drawn) == 1
    seen |= drawn
  assert len(seen) > 20
  assert {flip for _, _, flip in seen} == {False, True}


@pytest.mark.parametrize('augment', [cifar.augment_per_image, cifar.augment_per_batch])
def test_augmentation_is_a_function_of_its_seed(augment):
  images = tf.constant(_images(8))
  np.testing.assert_array_equal(augment(images, _SEED), augment(images, _SEED))
  assert np.any(augment(images, _SEED) != augment(images, _SEED + 1))


MEAN, DEVIATION = [0.491, 0.482, 0.447], [0.247, 0.243, 0.262]


@pytest.mark.parametrize('padding', ['mean', 'black'])
@pytest.mark.parametrize('augmentation', ['per_image', 'per_batch', 'none'])
def test_model_normalises_and_augments_in_training_only(augmentation, padding, fake_cifar10):
  switches = {} if augmentation == 'none' else {'padding': padding}
  task = tasks.create_task(
    'cifar10', model='mlp', num_clients=3, augmentation=augmentation, **switches
  )
  model = task.model_fn()
  k0, b0, k1, b1 = (v.numpy() for v in model.trainable_variables)

  def expected(pixels):
    return np.maximum(pixels.reshape(len(pixels), -1) @ k0 + b0, 0) @ k1 + b1

  images = _images(4)
  normalised = (images / 255.0 - MEAN) / DEVIATION
  x = {'image': images, 'seed': _SEED}
  np.testing.assert_allclose(
    model.predict_on_batch(x, training=False), expected(normalised), rtol=1e-4, atol=1e-5
  )
  augment = {
    'per_image': cifar.augment_per_image,
    'per_batch': cifar.augment_per_batch,
    'none': lambda images, seed: images,
  }[augmentation]
  # Black is 0 before normalising, the mean 0 after it.
  if padding == 'mean':
    pixels = np.asarray(augment(tf.constant(normalised), _SEED))
  else:
    pixels = (np.asarray(augment(tf.constant(images), _SEED)) / 255.0 - MEAN) / DEVIATION
  np.testing.assert_allclose(
    model.predict_on_batch(x, training=True), expected(pixels), rtol=1e-4, atol=1e-4
  )


@pytest.mark.parametrize('padding', [None, 'mean', 'black'])
def test_padded_pixels_are_the_mean_or_black(padding, fake_cifar10, monkeypatch):
  """-1.99, -1.98 and -1.71 are what black becomes by normalising."""
  # A model that shows the pixels it is given.
  monkeypatch.setattr(
    models, 'build_mlp', lambda _: lambda param, x, training: tf.reshape(x, [-1, 32 * 32 * 3])
  )
  switches = {'padding': padding} if padding else {}
  model = tasks.create_task('cifar10', model='mlp', num_clients=3, **switches).model_fn()
  x = {'image': np.full([500, 32, 32, 3], 200, np.uint8), 'seed': _SEED}
  pixels = model.predict_on_batch(x, training=True).numpy().reshape([-1, 3])
  inside = np.all(np.abs(pixels - (200 / 255 - np.array(MEAN)) / DEVIATION) < 1e-3, axis=1)
  outside = [-1.988, -1.984, -1.706] if padding == 'black' else [0.0, 0.0, 0.0]
  np.testing.assert_allclose(
    pixels[~inside], np.broadcast_to(outside, pixels[~inside].shape), atol=1e-3
  )
  # A shift by |0 - 4| to |8 - 4| pixels, 20 / 9 on average, each way: 1 - (1 - 20 / 9 / 32)^2.
  assert abs(np.mean(~inside) - 0.134) < 0.01


def test_padding_without_augmentation_is_an_error(fake_cifar10):
  with pytest.raises(ValueError, match="`padding` must be 'mean' .* found 'black'"):
    tasks.create_task('cifar10', num_clients=3, augmentation='none', padding='black')
  with pytest.raises(ValueError, match="`padding` must be one of mean, black, found 'white'"):
    tasks.create_task('cifar10', num_clients=3, padding='white')


def test_pooling_switch_reaches_resnet18(fake_cifar10, monkeypatch):
  asked = []
  build = models.build_resnet18
  monkeypatch.setattr(
    models, 'build_resnet18', lambda *args, **kwargs: asked.append(kwargs) or build(*args, **kwargs)
  )
  tasks.create_task('cifar10', num_clients=3, pooling='top_left')
  assert asked == [{'pooling': 'top_left'}]


def test_cifar100_comes_with_tffs_clients(tmp_path, write_database):
  generator = np.random.RandomState(0)

  def rows(n):
    return [
      {
        'coarse_label': [0],
        'image': generator.randint(0, 256, [32, 32, 3]),
        'label': [int(generator.randint(100))],
      }
      for _ in range(n)
    ]

  examples = {'train': {'1': rows(3), '0': rows(2)}, 'test': {'9': rows(4)}}
  write_database(tmp_path / 'cifar100.sqlite', examples)
  task = tasks.create_task('cifar100', model='cnn', data_dir=str(tmp_path))
  assert task.partition.client_ids == ('0', '1')
  for client_id, expected in examples['train'].items():
    dataset = task.datasets.train_data.create_tf_dataset_for_client(client_id)
    for example, row in zip(dataset.as_numpy_iterator(), expected, strict=True):
      np.testing.assert_array_equal(example['x']['image'], row['image'])
      assert example['y'] == row['label'][0]
  (batch,) = task.datasets.get_centralized_test_data()
  assert batch['y'].numpy().tolist() == [row['label'][0] for row in examples['test']['9']]
  assert task.model_fn().trainable_variables[-1].shape == [100]
