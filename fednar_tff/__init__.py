"""Weight decay, clipping and normalisation in federated optimization, on TensorFlow Federated."""

import importlib.util

__version__ = '0.1.0'

if importlib.util.find_spec('tensorflow_federated') is None:
  raise ImportError(
    'fednar_tff needs TensorFlow Federated, which pip cannot install with its dependencies. Run:\n'
    '  pip install --no-deps tensorflow-federated==0.87.0'
  )

# The rooms come after the check: each of them imports TFF.
from fednar_tff import algorithms as algorithms
from fednar_tff import optimizers as optimizers
from fednar_tff import runtime as runtime
from fednar_tff import simulation as simulation
from fednar_tff import tasks as tasks
