# SPDX-License-Identifier: Apache-2.0
"""What a round of each workload is: its model, its shape, its data.

All contenders of a workload see the same arrays. On A, B and T the batches are ready before a
round starts. On S they are not: each contender makes its clients' data inside of the round that
is timed, in the way that its framework has for it.
"""

import dataclasses
import os
import re

import numpy as np

LEARNING_RATE = 0.1
WEIGHT_DECAY = 0.001
MAX_NORM = 10.0
NUM_CLASSES = 10
IMAGE_SHAPE = (32, 32, 3)
NUM_PIXELS = 784
NUM_CHARACTERS = 80
NUM_POSITIONS = 80
NUM_FEATURES = 64


@dataclasses.dataclass(frozen=True)
class Workload:
  """The shape of a round.

  Attributes:
    model: The model's name, which every framework builds for itself.
    num_clients: Clients of a round.
    num_steps: Steps of a client.
    batch_size: Examples of a step.
    width: The width of the two hidden layers of the model `mlp`.
    makes_data: Whether making the clients' data is a part of the round.
  """

  model: str
  num_clients: int
  num_steps: int
  batch_size: int
  width: int = 0
  makes_data: bool = False

  @property
  def num_examples(self) -> int:
    """All examples of all clients; a client sees each of its own once."""
    return self.num_clients * self.num_steps * self.batch_size


WORKLOADS = {
  'A': Workload('pfl_cnn', 50, 5, 10),
  'B': Workload('paper_cnn', 20, 20, 50),
  'T': Workload('transformer', 10, 2, 50),
  'S': Workload('logistic', 500, 2, 10, makes_data=True),
}
_TINY = '-tiny'
_MLP = re.compile(r'mlp(\d+)x(\d+)')


def get(name: str) -> Workload:
  """Returns a workload by its name.

  Args:
    name: A key of `WORKLOADS`; with `-tiny` behind it, the same model on next to no data; or, for
      example, `mlp960x400`, two hidden layers of 960 on 400 clients.

  Raises:
    ValueError: If there is none of that name.
  """
  found = WORKLOADS.get(name.removesuffix(_TINY))
  if found and name.endswith(_TINY):
    return dataclasses.replace(found, num_clients=3, num_steps=2, batch_size=4)
  if found:
    return found
  match = _MLP.fullmatch(name)
  if not match:
    raise ValueError(f'`workload` must be one of {list(WORKLOADS)}, found {name!r}.')
  width, num_clients = map(int, match.groups())
  return Workload('mlp', num_clients, 2, 10, width=width)


def arrays(workload: Workload) -> dict[str, np.ndarray]:
  """Returns all examples of all clients, `x` and `y`, client after client."""
  rng = np.random.default_rng(0)
  size = workload.num_examples
  if workload.model == 'transformer':
    return {
      'x': rng.integers(0, NUM_CHARACTERS, [size, NUM_POSITIONS], np.int32),
      'y': rng.integers(0, NUM_CHARACTERS, [size], np.int32),
    }
  shape = {'logistic': [NUM_PIXELS], 'mlp': [NUM_FEATURES]}.get(workload.model, IMAGE_SHAPE)
  x = rng.random([size, *shape], np.float32)
  return {'x': x, 'y': rng.integers(0, NUM_CLASSES, [size], np.int32)}


def index(workload: Workload) -> np.ndarray:
  """Returns the examples of each step of each client: `[num_clients, num_steps, batch_size]`."""
  shape = (workload.num_clients, workload.num_steps, workload.batch_size)
  return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def shuffled(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Returns a client's rows, `[num_steps, batch_size]`, in a new order."""
  return rng.permutation(rows.reshape(-1)).reshape(rows.shape)


def num_threads() -> int:
  """Returns how many cores this process may use."""
  return len(os.sched_getaffinity(0))
