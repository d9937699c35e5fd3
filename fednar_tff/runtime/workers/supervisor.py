"""Runs a command that ends when this script's parent does, however the parent ends.

Started by path, as `python -I -S supervisor.py <parent pid> <command> [<argument> ...]`, never
imported: it needs nothing but the standard library, so it is up in milliseconds. A process of its
own is the only watcher that still lives after `kill -9` of the parent.
"""

import ctypes
import os
import signal
import subprocess
import sys

_SECONDS_BETWEEN_LOOKS = 0.1
_PR_SET_PDEATHSIG = 1


def _die_with_supervisor():
  """Asks Linux to kill the command when the supervisor itself is killed with `kill -9`."""
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _supervise(parent_pid: int, command: list[str]) -> int:
  """Waits for the command or for the parent, whichever ends first."""
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


if __name__ == '__main__':
  sys.exit(_supervise(int(sys.argv[1]), sys.argv[2:]))
