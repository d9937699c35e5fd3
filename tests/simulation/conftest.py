# SPDX-License-Identifier: Apache-2.0
"""What the tests of runs share, so that it is built and compiled once."""

import pytest

from fednar_tff import tasks
from tests.simulation import small_runs


@pytest.fixture(scope='session')
def task():
  return tasks.create_task('synthetic', num_clients=small_runs.NUM_CLIENTS)


@pytest.fixture(scope='session')
def processes(task):
  """A process of each algorithm, packed."""
  return {name: small_runs.build(task, name) for name in small_runs.ALGORITHMS}
