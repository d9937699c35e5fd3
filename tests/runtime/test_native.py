# SPDX-License-Identifier: Apache-2.0
"""The native runtime: TFF's results, and no worker left behind."""

import os
import pathlib
import signal
import time

import numpy as np
import pytest
import tensorflow_federated as tff

from fednar_tff import runtime

# The program prints its descendants (the supervisor and the worker), then ends in the way it is
# told.
_PROGRAM = """
import os, pathlib, sys, time
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from fednar_tff import runtime

@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def add(x):
  return tff.federated_sum(x)

@tff.tensorflow.computation(np.int64)
def spin(limit):
  return tf.while_loop(lambda i: i < limit, lambda i: (i + 1,), (tf.constant(0, tf.int64),))

def descendants(pid):
  for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
    for child in (task / 'children').read_text().split():
      yield child
      yield from descendants(child)

runtime.set_native_context()
assert add([1, 2, 3]) == 6
print(*descendants(os.getpid()), flush=True)
end = sys.argv[1]
if end == 'exception':
  raise ValueError('on purpose')
if end == 'busy':
  print('busy', flush=True)
  spin(10**12)
if end == 'wait':
  time.sleep(600)
"""


def _is_running(pid: int) -> bool:
  try:
    return pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] != 'Z'
  except (FileNotFoundError, ProcessLookupError):
    return False


def _assert_all_end(pids: list[int]):
  assert len(pids) == 2, 'one supervisor and one worker are expected'
  deadline = time.monotonic() + 10
  while any(map(_is_running, pids)) and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not [pid for pid in pids if _is_running(pid)]


@pytest.mark.skipif(not os.path.isdir('/proc/self/task'), reason='reads /proc')
@pytest.mark.parametrize(
  ('end', 'signum'),
  [
    # At a normal end: tests/runtime/test_default_context.py.
    pytest.param('exception', None, marks=pytest.mark.slow),
    ('busy', signal.SIGINT),
    pytest.param('wait', signal.SIGTERM, marks=pytest.mark.slow),
    ('busy', signal.SIGKILL),
  ],
)
def test_no_worker_outlives_its_program(start_python, end, signum):
  process = start_python(_PROGRAM, end)
  pids = [int(pid) for pid in process.stdout.readline().split()]
  if end == 'busy':
    process.stdout.readline()
    time.sleep(0.5)
  if signum is not None:
    assert all(map(_is_running, pids))
    process.send_signal(signum)
  process.wait(timeout=20)
  _assert_all_end(pids)


def test_native_context_restarts_a_worker_that_died():
  context = runtime.create_native_context()

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def add(x):
    return tff.federated_sum(x)

  assert context.invoke(add, [1, 2]) == 3
  context._worker._process.stop()
  assert context.invoke(add, [1, 2]) == 3
  context._worker.interrupt()
