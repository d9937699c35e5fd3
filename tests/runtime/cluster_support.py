# SPDX-License-Identifier: Apache-2.0
"""What the tests of the cluster runtime share: a computation that takes its time, and the
workers."""

import time

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32)
def slow_square_root(x):
  end = tf.while_loop(lambda i: i < 20_000, lambda i: (i + 1,), (0,))[0]
  return tf.sqrt(x) + tf.cast(0 * end, tf.float32)


@tff.federated_computation(FLOATS)
def sum_of_roots(x):
  return tff.federated_sum(tff.federated_map(slow_square_root, x))


NUMBERS = [np.float32(x) for x in range(1, 25)]


def worker_pids(context):
  return [worker['process'] for worker in context._team.descriptions]


def wait_for_workers(context, number):
  deadline = time.monotonic() + 120
  while context.describe()['num_workers'] < number and time.monotonic() < deadline:
    context.invoke(sum_of_roots, NUMBERS[:2])
  assert context.describe()['num_workers'] == number
