# SPDX-License-Identifier: Apache-2.0
"""What all binaries share: how they end."""

import subprocess
import sys

import pytest

from tests.experiments.command import ROOT

# The signal arrives in a `__del__`, where Python reports its exception and goes on.
_LOST = """
import os, sys, time
from experiments import command_line

class Object:
  def __del__(self):
    os.kill(os.getpid(), int(os.environ['LOST_SIGNAL']))

def main():
  Object()
  for _ in range(600):
    time.sleep(0.1)
  return 'it was never told to end'

command_line.run('program', main, interrupted='stopped.')
"""


@pytest.mark.parametrize(
  ('signum', 'status', 'errors'), [(2, 130, 'program: stopped.\n'), (15, 143, '')]
)
def test_a_signal_that_python_loses_ends_the_program(signum, status, errors):
  result = subprocess.run(
    [sys.executable, '-c', _LOST],
    cwd=ROOT,
    env={'LOST_SIGNAL': str(signum)},
    capture_output=True,
    text=True,
    timeout=30,
    check=False,
  )
  assert (result.returncode, result.stderr) == (status, errors)
