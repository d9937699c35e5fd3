# SPDX-License-Identifier: Apache-2.0
"""What a step of NAR costs, against SGD and clipping: `python -m benchmarks.optimizer_step`.

Each contender takes its steps inside one `tf.function`, as in a client's local training. The
contenders take turns, and the median over the turns is printed with its ratio to the opponents. The
ratios, turn by turn, are kept for docs/performance.md.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')  # As `experiments.train` does.

import argparse
import statistics

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import results, timing
from fednar_tff import optimizers, runtime

LEARNING_RATE, WEIGHT_DECAY, MAX_NORM = 0.01, 0.01, 10.0
TURNS = 15


def small_shapes():
  """A convolutional network of about 100,000 parameters."""
  return [[5, 5, 3, 16], [16], [5, 5, 16, 32], [32], [2048, 40], [40], [40, 10], [10]]


def resnet_shapes():
  """The shapes of a ResNet-18 of about 11 million parameters."""
  shapes, channels = [[3, 3, 3, 64], [64], [64]], 64
  for width in (64, 128, 256, 512):
    for block in range(2):
      shapes += [[3, 3, channels, width], [width], [width], [3, 3, width, width], [width], [width]]
      if block == 0 and channels != width:
        shapes += [[1, 1, channels, width], [width], [width]]
      channels = width
  return shapes + [[512, 10], [10]]


def clip_then_sgd():
  """The usual way to write it: `tf.clip_by_global_norm`, then TFF's SGD."""
  sgd = tff.learning.optimizers.build_sgdm(LEARNING_RATE)

  class ClipThenSgd(tff.learning.optimizers.Optimizer):
    def initialize(self, specs):
      return sgd.initialize(specs)

    def next(self, state, weights, gradients):
      clipped, _ = tf.clip_by_global_norm(gradients, MAX_NORM)
      return sgd.next(state, weights, clipped)

  return ClipThenSgd()


def build_run(optimizer, shapes, num_steps):
  """Returns a function that takes some steps and waits for all of them."""
  generator = tf.random.Generator.from_seed(0)
  weights = [generator.normal(s) for s in shapes]
  gradients = [generator.normal(s) for s in shapes]
  next_gradients = [generator.normal(s) for s in shapes]
  state = optimizer.initialize([tf.TensorSpec(s) for s in shapes])
  state = tf.nest.map_structure(tf.convert_to_tensor, state)

  @tf.function
  def run(state, weights, gradients, next_gradients):
    for _ in tf.range(num_steps):
      state, weights = optimizer.next(state, weights, gradients)
      # Two gradients take turns: of a constant one, TensorFlow would compute the norm once, outside
      # of the loop.
      gradients, next_gradients = next_gradients, gradients
    return tf.add_n([tf.reduce_sum(w[..., 0]) for w in weights])

  return lambda: float(run(state, weights, gradients, next_gradients))


def main():
  # In place of TFF's, which complains at the end of a program that never used it.
  runtime.set_native_context()
  contenders = {
    'SGD (build_sgdm)': tff.learning.optimizers.build_sgdm(LEARNING_RATE),
    'clip_by_global_norm, then SGD': clip_then_sgd(),
    'build_clipped_sgd': optimizers.build_clipped_sgd(LEARNING_RATE, WEIGHT_DECAY, MAX_NORM),
    'build_nar': optimizers.build_nar(LEARNING_RATE, WEIGHT_DECAY, MAX_NORM),
  }
  measured = {}
  for shapes, num_steps in ((small_shapes(), 200), (resnet_shapes(), 10)):
    size = sum(tf.TensorShape(s).num_elements() for s in shapes)
    runs = {name: build_run(optimizer, shapes, num_steps) for name, optimizer in contenders.items()}
    seconds = {
      name: [s / num_steps for s in values]
      for name, values in timing.take_turns(runs, TURNS).items()
    }
    measured[f'{size:,}'] = seconds
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    sgd, clip = list(medians.values())[:2]
    print(f'\nOne step on {size:,} parameters in {len(shapes)} leaves (median of {TURNS})')
    print(f'{"":32}{"ms":>9}{"x SGD":>9}{"x clip, SGD":>13}')
    for name, value in medians.items():
      print(f'{name:32}{1e3 * value:9.3f}{value / sgd:9.2f}{value / clip:13.2f}')
  results.save('optimizer_step', {'kind': 'optimizer_step', 'seconds': measured})


if __name__ == '__main__':
  argparse.ArgumentParser(description=__doc__).parse_args()
  main()
