# SPDX-License-Identifier: Apache-2.0
"""The least that TensorFlow needs: a `tf.range` loop over arrays, a thread on each core."""

import collections
import concurrent.futures

import numpy as np
import tensorflow as tf

from benchmarks import workloads
from benchmarks.contenders import tff_models


def _build_client(workload, arrays):
  """Returns a function from weights and rows to a client's update, and the initial weights."""
  model = tff_models.model_fn(workload)()
  variables = model.trainable_variables

  @tf.function
  def train(weights, rows):
    for variable, weight in zip(variables, weights, strict=True):
      variable.assign(weight)
    for step in tf.range(tf.shape(rows)[0]):
      x, y = (tf.gather(arrays[name], rows[step]) for name in ('x', 'y'))
      with tf.GradientTape() as tape:
        # A seed that changes: TensorFlow would compute the dropout of a constant one only once.
        batch = tff_models.structure(workload, x, y, tf.stack([step, 0]))
        loss = model.forward_pass(batch, training=True).loss
      gradients = tape.gradient(loss, variables)
      gradients, _ = tf.clip_by_global_norm(gradients, workloads.MAX_NORM)
      for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign_sub(workloads.LEARNING_RATE * gradient)
    return [weight - variable for weight, variable in zip(weights, variables, strict=True)]

  return train, [tf.identity(variable) for variable in variables]


def bare(workload: workloads.Workload):
  """Returns a function that runs a round; on S it draws a new order of each client's rows first."""
  tf.config.threading.set_intra_op_parallelism_threads(1)
  arrays = {name: tf.constant(array) for name, array in workloads.arrays(workload).items()}
  index, rng = workloads.index(workload), np.random.default_rng(0)
  threads = workloads.num_threads()
  built = [_build_client(workload, arrays) for _ in range(threads)]
  weights = built[0][1]
  free = collections.deque(train for train, _ in built)

  def run_client(rows):
    train = free.pop()
    try:
      return train(weights, tf.constant(rows))
    finally:
      free.append(train)

  pool = concurrent.futures.ThreadPoolExecutor(threads)

  def run_round():
    nonlocal weights
    rows = [workloads.shuffled(r, rng) for r in index] if workload.makes_data else index
    updates = list(pool.map(run_client, rows))
    means = [tf.add_n(leaf) / len(updates) for leaf in zip(*updates, strict=True)]
    weights = [weight - mean for weight, mean in zip(weights, means, strict=True)]

  return run_round
