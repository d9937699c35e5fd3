# SPDX-License-Identifier: Apache-2.0
"""Weight decay, clipping and normalisation in federated optimization, on TensorFlow Federated."""

import importlib.util
import os
import sys
import warnings

__version__ = '0.1.0'

if sys.argv[:1] == ['-m']:
  # So it reads while Python looks for a command, as `python -m fednar_tff.doctor`. What TensorFlow
  # says at its start would bury the command's own lines; a program that imports this package
  # decides about that itself.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

if importlib.util.find_spec('tensorflow_federated') is None:
  raise ImportError(
    'fednar_tff needs TensorFlow Federated, which pip cannot install with its dependencies. Run:\n'
    '  pip install --no-deps tensorflow-federated==0.87.0'
  )

with warnings.catch_warnings():
  # A requirement of TFF's uses pkg_resources, which says so at length; the lock files keep a
  # setuptools that has it.
  warnings.filterwarnings('ignore', message='pkg_resources is deprecated')
  _nobody_has_chosen_a_runtime = 'tensorflow_federated' not in sys.modules
  import tensorflow_federated as _tff  # noqa: F401

# The rooms come after the check: each of them imports TFF.
from fednar_tff import algorithms as algorithms
from fednar_tff import optimizers as optimizers
from fednar_tff import runtime as runtime
from fednar_tff import simulation as simulation
from fednar_tff import tasks as tasks
from fednar_tff.runtime.workers import at_exit as _at_exit

if _nobody_has_chosen_a_runtime:
  # TFF's own default, but its worker ends with this process.
  runtime.set_native_context()
_at_exit.register()
