# SPDX-License-Identifier: Apache-2.0
"""Who takes part in `benchmarks.rounds`. This list imports none of the frameworks."""

import dataclasses
import importlib
import pathlib
from collections.abc import Callable

from benchmarks import workloads

# Opponents want other versions of packages than TFF does, so each has an environment of its own,
# made from benchmarks/opponents/NAME.txt by `make opponents`.
OPPONENTS_DIR = pathlib.Path('.venv-opponents')


@dataclasses.dataclass(frozen=True)
class Contender:
  """A way to run a round.

  Attributes:
    title: What it is called in tables.
    module: The module with its function, imported in a process of its own.
    function: From a workload, and `arguments`, to a function that runs one round.
    arguments: More arguments of the function.
    environment: Its folder in `OPPONENTS_DIR`; None if it runs in this environment.
    runs: The workloads that it is written for.
    packages: Whose versions are told.
    precision: The type of its products of matrices.
    one_dnn: Whether TensorFlow multiplies with oneDNN, as in `experiments.train`.
  """

  title: str
  module: str
  function: str
  arguments: tuple = ()
  environment: str | None = None
  runs: tuple[str, ...] = tuple(workloads.WORKLOADS)
  packages: tuple[str, ...] = ('tensorflow', 'tensorflow-federated')
  precision: str = 'float32'
  one_dnn: bool = True

  def build(self, workload: workloads.Workload) -> Callable[[], object]:
    """Returns a function that runs one round of a workload."""
    function = getattr(importlib.import_module(self.module), self.function)
    return function(workload, *self.arguments)


_TFF = 'benchmarks.contenders.tff_processes'
_TORCH = 'benchmarks.contenders.torch_threads'
_REDUCE, _ITERATOR = ('DATASET_REDUCE',), ('DATASET_ITERATOR',)
_TORCH_PLACE = {'environment': 'torch', 'packages': ('torch',)}
_NO_TRANSFORMER = ('A', 'B', 'S')
_BFLOAT16 = 'bfloat16'

CONTENDERS = {
  'native_reduce': Contender('TFF native, DATASET_REDUCE', _TFF, 'native', _REDUCE),
  'native_iterator': Contender('TFF native, DATASET_ITERATOR', _TFF, 'native', _ITERATOR),
  'in_process_reduce': Contender('in-process, DATASET_REDUCE', _TFF, 'in_process', _REDUCE),
  'in_process_iterator': Contender('in-process, DATASET_ITERATOR', _TFF, 'in_process', _ITERATOR),
  'packed': Contender('in-process, our FedAvg-NAR, packed', _TFF, 'packed'),
  'packed_bfloat16': Contender(
    'in-process, our FedAvg-NAR, packed, bfloat16',
    _TFF,
    'packed',
    (_BFLOAT16,),
    precision=_BFLOAT16,
  ),
  'packed_no_one_dnn': Contender(
    'in-process, our FedAvg-NAR, packed, without oneDNN', _TFF, 'packed', one_dnn=False
  ),
  'clipped': Contender(
    'in-process, our FedAvg with clipped SGD, packed', _TFF, 'clipped', runs=('B',)
  ),
  'cluster': Contender(
    'cluster, 2 local workers, our FedAvg-NAR, packed',
    _TFF,
    'cluster',
    packages=('tensorflow', 'tensorflow-federated', 'ray'),
    runs=('B',),
  ),
  'remote': Contender('remote, 2 local workers, DATASET_ITERATOR', _TFF, 'remote'),
  'bare': Contender('bare tf.range loop', 'benchmarks.contenders.bare', 'bare'),
  'torch': Contender('PyTorch', _TORCH, 'threads', **_TORCH_PLACE),
  'torch_bfloat16': Contender(
    'PyTorch, bfloat16', _TORCH, 'threads', (_BFLOAT16,), precision=_BFLOAT16, **_TORCH_PLACE
  ),
  'pfl': Contender(
    'pfl-research',
    'benchmarks.contenders.pfl_research',
    'simulation',
    environment='pfl',
    runs=_NO_TRANSFORMER,
    packages=('pfl', 'torch'),
  ),
  'flower': Contender(
    'Flower, Ray actors',
    'benchmarks.contenders.flower',
    'simulation',
    environment='flower',
    runs=_NO_TRANSFORMER,
    packages=('flwr', 'ray', 'torch'),
  ),
  'fedjax': Contender(
    'FedJAX',
    'benchmarks.contenders.fedjax_for_each',
    'for_each_client',
    environment='fedjax',
    runs=_NO_TRANSFORMER,
    packages=('fedjax', 'jax'),
  ),
}
# Run beside the contenders in every turn: how fast the machine multiplies at that time.
MATRICES = {
  f'matrix_{precision}': Contender(
    f'matrix product, {precision}',
    'benchmarks.contenders.matrix',
    'products',
    (precision,),
    precision=precision,
  )
  for precision in ('float32', _BFLOAT16)
}


def get(key: str) -> Contender:
  """Returns a contender, or a product of matrices, by its key or its title."""
  everyone = CONTENDERS | MATRICES
  by_title = {contender.title: contender for contender in everyone.values()}
  found = everyone.get(key) or by_title.get(key)
  if found is None:
    raise ValueError(f'`contender` must be one of {list(everyone)}, found {key!r}.')
  return found
