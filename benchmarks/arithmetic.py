# SPDX-License-Identifier: Apache-2.0
"""How much a round has to compute, counted from the model: products of matrices and convolutions.

A product of `[m, k]` and `[k, n]` is `m k n` multiply-adds, and one of them counts as two
operations (FLOP). A training step does each product three times: forwards, for the gradient of its
weights, and for the gradient of its input. The first layer of a network needs no gradient of its
input, so there it is two times. Products of two computed tensors, as in attention, also are three.
Not counted are biases, activations, normalisation, softmax, dropout, the loss, the optimizer and
the mean of the updates, since they are of lower order; nor is reading a row of an embedding, which
is no product even where it is written as one. So all contenders of a workload have the same count,
whatever they really do, and the speed that is printed is useful work a second.
"""

from typing import NamedTuple

from benchmarks import workloads

MATRIX_SIZE = 2048


class Product(NamedTuple):
  """The multiply-adds of a layer for one example, and how often a training step does them."""

  multiply_adds: int
  times: int = 3


def _conv(side: int, kernel: int, channels: int, filters: int, times: int = 3) -> Product:
  """An unpadded convolution of a square image; `side` is that of its result."""
  return Product(side * side * filters * kernel * kernel * channels, times)


def _cnn(kernel: int, has_inner_pool: bool) -> list[Product]:
  side = workloads.IMAGE_SHAPE[0] - kernel + 1
  first = _conv(side, kernel, workloads.IMAGE_SHAPE[2], 32, times=2)
  side = (side // 2 if has_inner_pool else side) - kernel + 1
  second = _conv(side, kernel, 32, 64)
  flat = (side // 2) ** 2 * 64
  return [first, second, Product(flat * 128), Product(128 * workloads.NUM_CLASSES)]


def _dense(widths: list[int]) -> list[Product]:
  products = [Product(inputs * units) for inputs, units in zip(widths, widths[1:])]
  return [products[0]._replace(times=2), *products[1:]]


def _transformer(
  *, positions: int, width: int, hidden: int, layers: int, characters: int
) -> list[Product]:
  """Of the last layer, only the last position is computed."""
  products = []
  for layer in range(layers):
    queries = positions if layer < layers - 1 else 1
    projections = (queries + 2 * positions) * width * width
    attention = 2 * queries * positions * width  # Scores, and the mean of the values.
    after = queries * (width * width + 2 * width * hidden)
    products.append(Product(projections + attention + after))
  return [*products, Product(width * characters)]


def products(workload: workloads.Workload) -> list[Product]:
  """Returns the products of matrices that a workload's model has for one example."""
  if workload.model == 'transformer':
    return _transformer(
      positions=workloads.NUM_POSITIONS,
      width=128,
      hidden=512,
      layers=6,
      characters=workloads.NUM_CHARACTERS,
    )
  if workload.model == 'logistic':
    return _dense([workloads.NUM_PIXELS, workloads.NUM_CLASSES])
  if workload.model == 'mlp':
    return _dense([workloads.NUM_FEATURES, workload.width, workload.width, workloads.NUM_CLASSES])
  return _cnn(3, False) if workload.model == 'pfl_cnn' else _cnn(5, True)


def round_flop(workload: workloads.Workload) -> int:
  """Returns the operations of a round: of all steps of all clients."""
  example = sum(2 * product.times * product.multiply_adds for product in products(workload))
  return example * workload.num_examples


def matrix_flop() -> int:
  """Returns the operations of one product of two square matrices of `MATRIX_SIZE`."""
  return 2 * MATRIX_SIZE**3
