# SPDX-License-Identifier: Apache-2.0
"""Stops TensorFlow functions that run in other threads.

TensorFlow has no public name for this. Without it, Ctrl-C would wait until the clients that train
at that moment have finished, because Python cannot end a thread that is inside C++ code.
"""

import contextlib

from tensorflow.python.eager import cancellation


@contextlib.contextmanager
def cancelled_on_error():
  """Stops the functions that still run, in any thread, when the block raises an error."""
  manager = cancellation.CancellationManager()
  with cancellation.CancellationManagerContext(manager):
    try:
      yield
    except BaseException:
      manager.start_cancel()
      raise


def cancel_running() -> None:
  """Stops the functions of the block that another thread is in, if any is."""
  manager = cancellation.context()  # TensorFlow has one for all threads.
  if manager is not None:
    manager.start_cancel()
