# SPDX-License-Identifier: Apache-2.0
"""What a round's input costs, against training on it: `python -m benchmarks.input`.

A round of CIFAR-10 in the paper's shape: 20 clients x 20 steps x batches of 50, cropped and
flipped. The parts take turns: the index tensors made in NumPy; the batches gathered, augmented and
normalised in a loop; the small CNN trained on batches that are ready. The median over the turns is
printed, with its ratio to the training. The goal is at most 10 %.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')  # As `experiments.train` does.

import argparse
import collections
import functools
import statistics
import sys

import tensorflow as tf

from benchmarks import results, timing
from fednar_tff import runtime, tasks
from fednar_tff.tasks import cifar, models

CLIENTS, STEPS, BATCH = 20, 20, 50
TURNS = 5
AUGMENTATIONS = {
  'per image': cifar.augment_per_image,
  'per batch': cifar.augment_per_batch,
}
_normalise = functools.partial(
  cifar.normalise, **dict(zip(('mean', 'deviation'), cifar.STATISTICS['cifar10']))
)


def make_packed(task):
  """Makes the packed clients of a round; returns their elements."""
  return [
    task.packed_client(c, 0, batch_size=BATCH, local_steps=STEPS, seed=0).get_single_element()
    for c in task.partition.client_ids[:CLIENTS]
  ]


def make_ordinary(task):
  """Makes and goes through the same batches as ordinary datasets, not augmented."""
  for c in task.partition.client_ids[:CLIENTS]:
    for _ in task.client_batches(c, 0, batch_size=BATCH, local_steps=STEPS, seed=0):
      pass


def build_make_batches(augment):
  """Returns a function that makes one client's batches and ends in a scalar that needs them."""

  @tf.function
  def make_batches(data, index):
    total = 0.0
    for k in tf.range(tf.shape(index)[0]):
      images = tf.gather(data['x']['image'], index[k])
      images = augment(_normalise(images), data['x']['seed'][k])
      total += images[0, 0, 0, 0] + tf.cast(tf.gather(data['y'], index[k])[0], tf.float32)
    return total

  return make_batches


def build_train():
  """Returns a function that trains the small CNN on one ready batch, again and again."""
  spec = collections.OrderedDict(
    x=tf.TensorSpec([None, 32, 32, 3], tf.float32), y=tf.TensorSpec([None], tf.int32)
  )
  model = models.build_model_fns(models.build_cnn(10), spec)[0]()

  @tf.function
  def train(batch):
    loss = 0.0
    for _ in tf.range(STEPS):
      with tf.GradientTape() as tape:
        loss = model.forward_pass(batch).loss
      gradients = tape.gradient(loss, model.trainable_variables)
      for variable, gradient in zip(model.trainable_variables, gradients):
        variable.assign_sub(0.01 * gradient)
    return loss

  return train


def main():
  # In place of TFF's, which complains at the end of a program that never used it.
  runtime.set_in_process_context()
  try:
    task = tasks.create_task('cifar10', model='cnn')
  except tasks.DataError as e:
    sys.exit(str(e))
  clients = make_packed(task)
  train = build_train()
  images = tf.gather(clients[0]['data']['x']['image'], clients[0]['index'][0])
  labels = tf.gather(clients[0]['data']['y'], clients[0]['index'][0])
  ready = collections.OrderedDict(x=_normalise(images), y=labels)
  parts = {
    'train the small CNN': lambda: [float(train(ready)) for _ in range(CLIENTS)],
    'packed clients (index tensors)': lambda: make_packed(task),
  }
  for name, augment in AUGMENTATIONS.items():
    make_batches = build_make_batches(augment)
    parts[f'gather, augment {name}, normalise'] = lambda make_batches=make_batches: [
      float(make_batches(c['data'], c['index'])) for c in clients
    ]
  parts['tf.data form, not augmented'] = lambda: make_ordinary(task)
  seconds = timing.take_turns(parts, TURNS)
  results.save('input', {'kind': 'input', 'seconds': seconds})
  medians = {name: statistics.median(values) for name, values in seconds.items()}
  training = medians['train the small CNN']
  print(f'\nOne round of {CLIENTS} clients x {STEPS} steps x {BATCH} images (median of {TURNS})')
  print(f'{"":44}{"s":>8}{"of training":>13}')
  for name, value in medians.items():
    print(f'{name:44}{value:8.3f}{100 * value / training:12.1f}%')


if __name__ == '__main__':
  argparse.ArgumentParser(description=__doc__).parse_args()
  main()
