# SPDX-License-Identifier: Apache-2.0
"""Ends TFF's own local worker, whoever made it the runtime, when this process ends.

TFF tries to end it in a destructor, which runs at exit when the modules that it needs are gone: it
prints a traceback, and the worker stays and holds the output open, so that a pipe from this process
never ends.
"""

import atexit
import gc
import os

import psutil
import tensorflow_federated as tff

from fednar_tff.runtime.workers import native


def _let_go() -> None:
  # First the process: the destructor sends it Ctrl-C, which a program in the background ignores,
  # and waits.
  for child in psutil.Process().children():
    try:
      if os.path.basename(child.exe()) == 'worker_binary':
        child.kill()
    except psutil.Error:
      pass  # It ended meanwhile.
  # Then the context, so that its destructor runs here, where it still can. Ours starts nothing
  # before it is used.
  tff.framework.set_default_context(native.create_native_context())
  gc.collect()


def register() -> None:
  """Ends what TFF's own context started, when this process ends."""
  atexit.register(_let_go)
