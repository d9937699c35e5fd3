"""What all tests share: a runtime that leaves no process behind, and repeatable examples."""

import os
import signal

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import hypothesis
import pytest

import fednar_tff

# A shell starts background jobs with Ctrl-C ignored, and so would be all processes that tests start and interrupt.
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
