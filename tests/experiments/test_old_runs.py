# SPDX-License-Identifier: Apache-2.0
"""Runs that an older version of the code began are finished by this one, to the same bits.

`tests/fixtures/runs_of_51d9809.tar.gz` holds the first two rounds of three small runs, made by the
code of commit 51d9809, and what that code wrote when it finished them: `metrics_of_4_rounds.csv`
and `result_of_4_rounds.json`.
"""

import hashlib
import json
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from tests.experiments import command

_OLD_RUNS = command.ROOT / 'tests' / 'fixtures' / 'runs_of_51d9809.tar.gz'
_FLAGS = (
  '--task=synthetic',
  '--client_optimizer=nar',
  '--num_clients=6',
  '--clients_per_round=3',
  '--local_steps=4',
  '--batch_size=5',
  '--learning_rate=0.1',
  '--weight_decay=0.01',
  '--max_norm=0.5',
  '--rounds_per_evaluation=1',
  '--rounds_per_checkpoint=1',
  '--total_rounds=4',
)
# Of the machine that made the runs: another processor may add up in another order.
_ITS_ARITHMETIC = '05e4080a156e3efa5265470a62d020e9fc336a5853c562f05d9a55a8088604f0'


def _arithmetic() -> str:
  """Hashes what this machine computes for products and sums of the size of these runs."""
  parts = []
  for rows in (5, 200):
    x = tf.random.stateless_normal([rows, 8], [1, 2])
    hidden = tf.nn.relu(x @ tf.random.stateless_normal([8, 16], [3, 4]))
    logits = hidden @ tf.random.stateless_normal([16, 4], [5, 6])
    loss = tf.nn.log_softmax(logits)
    gradient = tf.linalg.matmul(hidden, tf.nn.softmax(logits), transpose_a=True)
    parts += [loss, gradient, tf.norm(gradient), tf.reduce_mean(loss)]
  return hashlib.sha256(b''.join(part.numpy().tobytes() for part in parts)).hexdigest()


def _columns(text: str) -> np.ndarray:
  return np.asarray([[float(x) for x in line.split(',')] for line in text.splitlines()[1:]])


@pytest.mark.parametrize(
  'algorithm', ['fed_avg', 'scaffold', pytest.param('fed_dyn', marks=pytest.mark.slow)]
)
def test_a_run_of_older_code_is_finished_to_the_same_bits(algorithm, tmp_path):
  with tarfile.open(_OLD_RUNS) as archive:
    archive.extractall(tmp_path)
  path = tmp_path / algorithm
  done = command.call(f'--algorithm={algorithm}', *_FLAGS, f'--output_dir={path}')
  assert done.returncode == 0, done.stderr
  assert 'resumes after round 2, of 4 rounds' in done.stdout
  metrics, expected = (
    (path / name).read_text() for name in ('metrics.csv', 'metrics_of_4_rounds.csv')
  )
  assert metrics.splitlines()[0] == expected.splitlines()[0]
  np.testing.assert_allclose(_columns(metrics), _columns(expected), rtol=1e-5)
  if _arithmetic() == _ITS_ARITHMETIC:
    assert metrics == expected
    result, expected = (
      json.loads((path / name).read_text()) for name in ('result.json', 'result_of_4_rounds.json')
    )
    assert result['weights_sha256'] == expected['weights_sha256']
