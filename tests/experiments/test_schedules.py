# SPDX-License-Identifier: Apache-2.0
"""Schedules as flags: the rates that they give, and that a longer run continues a shorter one."""

import csv

import numpy as np
import pytest

from experiments.definition import identity, settings
from experiments.running import building, training


@pytest.mark.parametrize(
  ('given', 'expected'),
  [
    ({}, [0.4, 0.4 * 0.998, 0.4 * 0.998**2]),
    ({'schedule': 'constant', 'warm_up': 1}, [0.2, 0.4, 0.4]),
    ({'decay': 0.5, 'warm_up': 2}, [0.4 / 3, 0.2 * 2 / 3, 0.1]),
    ({'schedule': 'cosine', 'decay_rounds': 2, 'final_fraction': 0.5}, [0.4, 0.3, 0.2]),
    ({'schedule': 'step', 'decay_rounds': 2, 'decay': 0.25}, [0.4, 0.4, 0.1]),
    ({'schedule': 'step', 'decay_rounds': 1}, [0.4, 0.04, 0.004]),
  ],
)
@pytest.mark.parametrize('rate', ['learning_rate', 'weight_decay'])
def test_a_run_has_the_rates_of_its_flags(rate, given, expected):
  flags = {f'{rate}_{name}': value for name, value in given.items()}
  if rate == 'weight_decay' and not given:
    expected = [0.4] * 3
  resolved = identity.resolve({rate: 0.4, **flags})
  settings.check(resolved, flags)
  schedule = building._schedule(resolved, rate)
  np.testing.assert_allclose([float(schedule(t)) for t in range(3)], expected, rtol=1e-6)


def test_a_longer_run_continues_a_shorter_one_along_its_schedules(tmp_path):
  flags = {
    'task': 'synthetic',
    'clients_per_round': 2,
    'local_steps': 1,
    'rounds_per_evaluation': 1,
    'learning_rate': 0.1,
    'weight_decay': 0.2,
    'learning_rate_schedule': 'cosine',
    'learning_rate_decay_rounds': 4,
    'learning_rate_warm_up': 1,
    'weight_decay_schedule': 'step',
    'weight_decay_decay_rounds': 2,
    'weight_decay_decay': 0.5,
  }

  def train(folder, total_rounds):
    chosen = {**flags, 'output_dir': str(tmp_path / folder), 'total_rounds': total_rounds}
    return training.train(identity.resolve(chosen), quiet=True)

  train('longer', 2)
  longer, whole = train('longer', 6), train('whole', 6)
  assert (longer / 'metrics.csv').read_bytes() == (whole / 'metrics.csv').read_bytes()
  with open(whole / 'metrics.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  cosine = 0.05 * (1 + np.cos(np.pi * np.array([0, 1, 2, 3, 4, 4]) / 4))
  found = [float(row['learning_rate']) for row in rows]
  np.testing.assert_allclose(found, cosine * [0.5, 1, 1, 1, 1, 1], atol=1e-7)
  found = [float(row['weight_decay']) for row in rows]
  np.testing.assert_allclose(found, [0.2, 0.2, 0.1, 0.1, 0.05, 0.05], rtol=1e-6)
