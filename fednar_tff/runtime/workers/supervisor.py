# SPDX-License-Identifier: Apache-2.0
"""Runs a command that ends when this script's parent does, however the parent ends.

Started by path, as `python -I -S supervisor.py <parent pid> [--remove=<folder>] <command> ...`,
never imported: it needs nothing but the standard library, so it is up in milliseconds. A process of
its own is the only watcher that still lives after `kill -9` of the parent. With the command end all
processes that it has started, and those that these have; the folder is removed then.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_KILLS = 0.02
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _die_with_supervisor():
  """Asks Linux to kill the command when the supervisor itself is killed with `kill -9`."""
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _adopt_orphans():
  """Asks Linux to make this process the parent of all that the command leaves behind."""
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _descendants(pid: int) -> list[int]:
  found = []
  try:
    for thread in os.listdir(f'/proc/{pid}/task'):
      with open(f'/proc/{pid}/task/{thread}/children') as f:
        found += [int(child) for child in f.read().split()]
  except OSError:
    pass  # It has ended meanwhile, or this system has no such file.
  return found + [below for child in found for below in _descendants(child)]


def _kill_descendants() -> None:
  while left := _descendants(os.getpid()):
    for pid in left:
      try:
        os.kill(pid, signal.SIGKILL)
      except ProcessLookupError:
        pass
    try:
      while os.waitpid(-1, os.WNOHANG)[0]:
        pass
    except ChildProcessError:
      return
    time.sleep(_SECONDS_BETWEEN_KILLS)


def _supervise(parent_pid: int, command: list[str]) -> int:
  """Waits for the command or for the parent, whichever ends first."""
  folder = command.pop(0).partition('=')[2] if command[0].startswith('--remove=') else None
  _adopt_orphans()
  # SIGTERM raises here, so that the command is ended on every way out of this function.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
  process = subprocess.Popen(command, preexec_fn=_die_with_supervisor)
  try:
    while os.getppid() == parent_pid:
      try:
        return process.wait(_SECONDS_BETWEEN_LOOKS)
      except subprocess.TimeoutExpired:
        continue
    return 0
  finally:
    process.kill()
    process.wait()
    _kill_descendants()
    if folder is not None:
      shutil.rmtree(folder, ignore_errors=True)


if __name__ == '__main__':
  sys.exit(_supervise(int(sys.argv[1]), sys.argv[2:]))
