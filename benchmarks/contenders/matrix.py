# SPDX-License-Identifier: Apache-2.0
"""How fast this machine multiplies: products of two 2048 x 2048 matrices, one on each core."""

import concurrent.futures

from benchmarks import arithmetic, workloads

PRODUCTS_OF_A_ROUND = 3


def products(workload: workloads.Workload, precision: str):
  """Returns a function that runs `PRODUCTS_OF_A_ROUND` products on each core at the same time."""
  del workload  # Any.
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(1)
  threads = workloads.num_threads()
  generator = tf.random.Generator.from_seed(0)
  shape = [arithmetic.MATRIX_SIZE, arithmetic.MATRIX_SIZE]
  pairs = [[tf.cast(generator.normal(shape), precision) for _ in range(2)] for _ in range(threads)]
  pool = concurrent.futures.ThreadPoolExecutor(threads)

  def multiply(pair):
    for _ in range(PRODUCTS_OF_A_ROUND):
      tf.linalg.matmul(*pair)

  return lambda: list(pool.map(multiply, pairs))


def round_flop() -> int:
  """Returns the operations of all products of a round."""
  return workloads.num_threads() * PRODUCTS_OF_A_ROUND * arithmetic.matrix_flop()
