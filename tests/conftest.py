# SPDX-License-Identifier: Apache-2.0
"""What all tests share: a runtime that leaves no process behind, and repeatable examples.

TensorFlow is imported in fixtures: the process that hands tests to others needs none of it.
"""

import gc
import os
import signal

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import hypothesis
import pytest

# A shell starts background jobs with Ctrl-C ignored, and so would be all processes that tests start
# and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run: a red suite means that the code changed.
hypothesis.settings.register_profile('repeatable', derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.load_profile('repeatable')


def pytest_collection_finish():
  # What was imported stays, and so does most of what tests trace. To look through it for garbage,
  # again and again, took a tenth of the time of tests.
  gc.freeze()
  gc.set_threshold(50_000, 20, 100)


def pytest_sessionfinish():
  gc.freeze()  # At its end pytest looks for garbage five times.


@pytest.fixture(scope='session', autouse=True)
def _native_context():
  """The default of all tests. Without it, TFF would start a worker that outlives the test run."""
  import tensorflow_federated as tff

  import fednar_tff

  context = fednar_tff.runtime.create_native_context()
  tff.framework.set_default_context(context)
  return context


@pytest.fixture(scope='session')
def _in_process_context():
  """One for all tests: what a computation was compiled to serves the next test too."""
  import fednar_tff

  return fednar_tff.runtime.create_in_process_context()


@pytest.fixture
def native_runtime(_native_context):
  """Runs a test on TFF's own runtime, whatever the other tests use."""
  import tensorflow_federated as tff

  tff.framework.set_default_context(_native_context)


@pytest.fixture(scope='module')
def in_process_runtime(_native_context, _in_process_context):
  """Runs the tests of a module on the in-process runtime."""
  import tensorflow_federated as tff

  tff.framework.set_default_context(_in_process_context)
  yield
  tff.framework.set_default_context(_native_context)


@pytest.fixture
def fake_cifar10(monkeypatch):
  """Replaces CIFAR-10 by random images, 300 to train and 40 to test on."""
  import numpy as np
  import tensorflow as tf

  from fednar_tff.tasks import sources

  generator = np.random.RandomState(5)

  def split(n):
    return {
      'image': tf.constant(generator.randint(0, 256, [n, 32, 32, 3]).astype(np.uint8)),
      'label': tf.constant((np.arange(n) % 10).astype(np.int32)),
    }

  data = {'train': split(300), 'test': split(40)}
  monkeypatch.setattr(sources, 'load_cifar10', lambda data_dir=None: data)
  return data
