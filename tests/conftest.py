# SPDX-License-Identifier: Apache-2.0
"""What all tests share: a runtime that leaves no process behind, and repeatable examples."""

import os
import signal

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import hypothesis
import pytest

import fednar_tff

# A shell starts background jobs with Ctrl-C ignored, and so would be all processes that tests start
# and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
  signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run: a red suite means that the code changed.
hypothesis.settings.register_profile('repeatable', derandomize=True, deadline=None, max_examples=40)
hypothesis.settings.load_profile('repeatable')


@pytest.fixture(scope='session', autouse=True)
def _runtime():
  """Without this, TFF would start a worker that outlives the test run."""
  fednar_tff.runtime.set_native_context()


@pytest.fixture
def native_runtime():
  """Runs a test on TFF's own runtime, whatever the other tests use."""
  fednar_tff.runtime.set_native_context()


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
