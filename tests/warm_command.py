# SPDX-License-Identifier: Apache-2.0
"""Runs Python in processes that begin with TensorFlow imported, half of what a short one takes.

A server has imported what TFF imports, but neither TFF nor this package, and uses none of it. Each
program is a fork of it with its own arguments, environment, folder, output and exit status. Tests
that kill a process, or look at how one starts, start it in the ordinary way.
"""

import atexit
import contextlib
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence

import psutil

_CONTEXT = multiprocessing.get_context('forkserver')
_CONTEXT.set_forkserver_preload(
  [
    'tensorflow',
    'tensorflow_datasets',
    'tensorflow_privacy',
    'tensorflow_model_optimization',
    'jax',
    'sklearn',
    'matplotlib.figure',
    'matplotlib.backends.backend_agg',
  ]
)


def _be_python(arguments, cwd, environment, outputs):
  """Does what `python` does with these arguments, and at its end, which a fork leaves out."""
  for number, path in outputs.items():
    file = os.open(path, os.O_WRONLY)
    os.dup2(file, number)
    os.close(file)
  os.environ.clear()
  os.environ.update(environment)
  os.chdir(cwd)
  gc.freeze()  # What the server has made stays, and the fork shares it until it is looked at.
  option, program, *rest = arguments
  sys.path.insert(0, os.getcwd())
  status: int | str | None = 0
  try:
    if option == '-m':
      sys.argv = [program, *rest]
      runpy.run_module(program, run_name='__main__', alter_sys=True)
    else:
      sys.argv = [option, *rest]
      main = sys.modules['__main__'] = types.ModuleType('__main__')
      exec(compile(program, '<string>', 'exec'), vars(main))
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
  arguments: Sequence[str], cwd: str, environment: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess:
  """Runs Python to the end, its own and that of every process that it has started.

  Args:
    arguments: Those of `python`: `-m`, a module and its arguments, or `-c` and a program.
    cwd: The folder in which it runs.
    environment: All variables of its environment.
    timeout: How many seconds it may take. What still runs then is killed.

  Returns:
    Its exit status, and what it has printed.

  Raises:
    subprocess.TimeoutExpired: It, or a process that it has left behind, took longer.
  """
  deadline = time.monotonic() + timeout
  with tempfile.NamedTemporaryFile() as stdout, tempfile.NamedTemporaryFile() as stderr:
    outputs = {1: stdout.name, 2: stderr.name}
    process = _CONTEXT.Process(target=_be_python, args=(arguments, cwd, dict(environment), outputs))
    process.start()
    process.join(timeout)
    while writers := _writers(set(outputs.values())):
      if time.monotonic() > deadline:
        for writer in writers:
          writer.kill()
        raise subprocess.TimeoutExpired(arguments, timeout, *_printed(stdout, stderr))
      time.sleep(0.05)
    return subprocess.CompletedProcess(arguments, process.exitcode, *_printed(stdout, stderr))


def _writers(paths):
  """Lists the other processes that have one of the files open."""
  found = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error):
      if process.pid != os.getpid() and paths & {file.path for file in process.open_files()}:
        found.append(process)
  return found


def _printed(*files):
  return (file.read().decode() for file in files)
