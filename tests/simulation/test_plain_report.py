# SPDX-License-Identifier: Apache-2.0
"""The lines of a log: when they come, and what they say."""

import re

import pytest

from fednar_tff.simulation import report

METRICS = {
  'train_loss': 1.25,
  'clipped_steps': 3,
  'total_steps': 12,
  'test_loss': None,
  'test_accuracy': None,
}


@pytest.fixture
def lines_of():
  """Runs `total` rounds of some seconds each, and returns the lines."""

  def run(total, seconds, metrics=METRICS, start=0, title=''):
    lines, now = [], [0.0]
    log = report.PlainReport(total, start, title, print_line=lines.append, clock=lambda: now[0])
    for round_num in range(start + 1, total + 1):
      now[0] += seconds
      log.add(round_num, metrics(round_num) if callable(metrics) else metrics)
    return lines

  return run


def _rounds(lines):
  return [int(re.search(r'round +(\d+)/', line)[1]) for line in lines]


@pytest.mark.parametrize(
  ('total', 'seconds', 'expected'),
  [
    (100, 1, [1, *range(6, 100, 5), 100]),  # 5 %.
    (1000, 1, [1, *range(31, 1000, 30), 1000]),  # 30 seconds.
    (4, 0.01, [1, 2, 3, 4]),
    (3, 50, [1, 2, 3]),
  ],
)
def test_a_line_comes_every_5_percent_and_every_30_seconds(lines_of, total, seconds, expected):
  assert _rounds(lines_of(total, seconds)) == expected


def test_a_run_that_resumes_goes_on_from_its_round(lines_of):
  assert _rounds(lines_of(100, 1, start=90)) == [91, 96, 100]


def test_a_line_tells_the_whole_story(lines_of):
  def metrics(round_num):
    tested = {'test_loss': 1.5, 'test_accuracy': 0.456} if round_num == 3 else {}
    return {**METRICS, **tested}

  first, *_, last = lines_of(200, 2, metrics, title='a title')
  assert first.startswith('a title: round   1/200, train loss   1.2500, test loss        -,')
  assert '- left' in first
  middle = lines_of(200, 2, metrics)[1]
  # The last evaluation stays in sight.
  assert middle.startswith(
    'round  11/200, train loss   1.2500, test loss   1.5000, test accuracy  45.6%, clipped  25%,'
  )
  assert re.search(r', +2.000 s a round, +6m18s left, +[0-9.]+ GB$', middle)
  assert ' 0s left' in last
  assert len({len(line) for line in lines_of(200, 2, metrics)}) == 1, 'columns are aligned'


def test_what_there_is_nothing_to_measure_on_is_a_dash(lines_of):
  (line,) = lines_of(1, 1, {'train_loss': None, 'clipped_steps': 0, 'total_steps': 0})
  assert 'train loss        -' in line and 'clipped    -' in line


def test_loss_of_a_run_that_diverges_stays_in_its_column(lines_of):
  (line,) = lines_of(1, 1, {'train_loss': 1.04e21, 'clipped_steps': 0, 'total_steps': 0})
  (usual,) = lines_of(1, 1, {'train_loss': 1.25, 'clipped_steps': 0, 'total_steps': 0})
  assert 'train loss 1.04e+21, test loss' in line and len(line) == len(usual)
