# SPDX-License-Identifier: Apache-2.0
"""Runs commands in processes that begin with TensorFlow imported, half of what a short one takes.

A server has imported what TFF imports, but neither TFF nor this package, and uses none of it. Each
command is a fork of it with its own arguments, environment, folder, output and exit status. Tests
that kill a process, or look at how one starts, start it in the ordinary way.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence

_CONTEXT = multiprocessing.get_context('forkserver')
_CONTEXT.set_forkserver_preload(['tensorflow', 'tensorflow_datasets', 'jax', 'sklearn'])


def _be_the_command(module, arguments, cwd, environment, outputs):
  """Does what `python -m module` does, and what Python does at its end, which a fork leaves out."""
  for number, path in outputs.items():
    file = os.open(path, os.O_WRONLY)
    os.dup2(file, number)
    os.close(file)
  os.environ.clear()
  os.environ.update(environment)
  os.chdir(cwd)
  sys.argv = [module, *arguments]
  sys.path.insert(0, os.getcwd())
  status: int | str | None = 0
  try:
    runpy.run_module(module, run_name='__main__', alter_sys=True)
  except SystemExit as e:
    status = e.code
  except BaseException:
    traceback.print_exc()
    status = 1
  if isinstance(status, str):
    print(status, file=sys.stderr)
    status = 1
  threading._shutdown()
  atexit._run_exitfuncs()
  sys.exit(status or 0)


def run(
  module: str, arguments: Sequence[str], cwd: str, environment: Mapping[str, str]
) -> subprocess.CompletedProcess:
  """Runs `python -m module` with arguments to its end.

  Args:
    module: The module.
    arguments: Its arguments.
    cwd: The folder in which it runs.
    environment: All variables of its environment.

  Returns:
    Its exit status, and what it has printed.
  """
  with tempfile.NamedTemporaryFile() as stdout, tempfile.NamedTemporaryFile() as stderr:
    outputs = {1: stdout.name, 2: stderr.name}
    process = _CONTEXT.Process(
      target=_be_the_command, args=(module, arguments, cwd, dict(environment), outputs)
    )
    process.start()
    process.join()
    printed = (file.read().decode() for file in (stdout, stderr))
    return subprocess.CompletedProcess([module, *arguments], process.exitcode, *printed)
