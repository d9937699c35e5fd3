# SPDX-License-Identifier: Apache-2.0
"""Helpers that the tests of the runtimes share."""

import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def start_python():
  """Starts Python programs in processes of their own, and ends those that a failed test leaves."""
  started = []

  def start(source: str, *arguments: str, log_level: str = '3', **options) -> subprocess.Popen:
    process = subprocess.Popen(
      [sys.executable, '-c', source, *arguments],
      cwd=_ROOT,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': log_level, 'PYTHONPATH': str(_ROOT)},
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
def run_python(start_python):
  """Runs a Python program and returns what it prints; the test fails when the program does."""

  def run(source: str, *arguments: str) -> str:
    process = start_python(source, *arguments)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output

  return run
