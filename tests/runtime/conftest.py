# SPDX-License-Identifier: Apache-2.0
"""Helpers that the tests of the runtimes share."""

import gc
import os
import pathlib
import subprocess
import sys

import pytest

from fednar_tff import runtime
from fednar_tff.runtime.cluster import local_ray
from tests import warm_command

_ROOT = pathlib.Path(__file__).parents[2]


def _environment(log_level: str = '3') -> dict[str, str]:
  return {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': log_level, 'PYTHONPATH': str(_ROOT)}


@pytest.fixture(scope='module', autouse=True)
def end_ray():
  """Ends the Ray of the file before, which goes with its contexts: this file may want a larger one.

  Not when that file ends: pytest keeps the arguments of a test until its last fixture has ended.
  """
  if local_ray.running() is not None:
    runtime.set_in_process_context()  # The default context may be one of them.
    gc.collect()
    assert local_ray.running() is None, 'a test keeps its cluster context'


@pytest.fixture
def start_python():
  """Starts Python programs in processes of their own, and ends those that a failed test leaves."""
  started = []

  def start(source: str, *arguments: str, log_level: str = '3', **options) -> subprocess.Popen:
    process = subprocess.Popen(
      [sys.executable, '-c', source, *arguments],
      cwd=_ROOT,
      env=_environment(log_level),
      stdout=subprocess.PIPE,
      text=True,
      **options,
    )
    started.append(process)
    return process

  yield start
  for process in started:
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def run_python():
  """Runs a Python program and returns what it prints; the test fails when the program does."""

  def run(source: str, *arguments: str) -> str:
    done = warm_command.run(['-c', source, *arguments], str(_ROOT), _environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

  return run
