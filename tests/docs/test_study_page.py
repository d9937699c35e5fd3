# SPDX-License-Identifier: Apache-2.0
"""The page of the study, and the README, say what its results hold."""

import collections
import pathlib
import statistics

import pytest

from experiments.definition import parsing, study
from experiments.reading import results, runs, study_page

ROOT = pathlib.Path(__file__).parents[2]


def test_page_and_readme_are_made_of_the_results_in_the_repository():
  page = (ROOT / 'docs' / study_page.PAGE).read_text()
  records = results.read(ROOT / 'results' / 'study.jsonl')
  seconds = results.read_seconds_of_rounds(ROOT / 'benchmarks' / 'results.json')
  # `make results` mends them.
  made = study_page.blocks(records, seconds)
  assert page == study_page.fill(page, made)
  readme = (ROOT / study_page.README).read_text()
  assert readme == study_page.fill(readme, {study_page.VERDICTS: made[study_page.VERDICTS]})


def decay_factor(run):
  """Returns by what NAR multiplies the weight decay of a run of the study on average.

  It is the sum of `l wd s` over all steps, over that of `l wd`, where `s` is `A / ||g + wd x||` of
  a step that is clipped, and 1 of another. Of the norms only the mean is kept, so it is too
  small, at A = 1 by an eighth.
  """
  rounds, clipped = run.series('clipped_steps')
  _, total = run.series('total_steps')
  norms = dict(zip(*run.series('mean_clipped_norm')))
  scaled = whole = 0.0
  for start, end, n, steps in zip([0, *rounds], rounds, clipped, total):
    rate = sum(run.identity['learning_rate_decay'] ** t for t in range(int(start), int(end)))
    share = n / steps
    scale = run.identity['max_norm'] / norms[end] if share else 1.0
    scaled += rate * (1 - share + share * scale)
    whole += rate
  return scaled / whole


def test_decay_factor_is_the_mean_scale_of_steps_by_their_rates():
  settings = parsing.parse(['--learning_rate_decay=0.5', '--max_norm=2.0', '--total_rounds=3'])
  rows = [
    {'round_num': 1, 'clipped_steps': 0.0, 'total_steps': 10.0},
    {'round_num': 3, 'clipped_steps': 5.0, 'total_steps': 10.0, 'mean_clipped_norm': 8.0},
  ]
  run = runs.Run('here', settings, rows, is_finished=True)
  # The rates are 1, and 0.5 + 0.25 of two rounds in which half of the steps are scaled by 2 / 8.
  assert decay_factor(run) == pytest.approx((1 + 0.75 * 0.625) / 1.75)


def test_matched_weight_decays_are_what_those_of_nar_come_to():
  records = results.read(ROOT / 'results' / 'study.jsonl')
  factors = collections.defaultdict(list)
  for name in records.keys() & study.runs(['bounds']).keys():
    run = results.to_run(records[name])
    if run.identity['client_optimizer'] == 'nar':
      cell = run.identity['max_norm'], run.identity['weight_decay']
      factors[cell].append(decay_factor(run))
  for (bound, decay), (matched, *measured) in study.MATCHED_DECAYS.items():
    assert f'{decay * statistics.mean(factors[bound, decay]):.3g}' == f'{matched:g}'
    assert all(matched < other for other in measured)  # By the mean norm it is too small.


def test_every_image_of_the_page_is_there():
  page = (ROOT / 'docs' / study_page.PAGE).read_text()
  for line in page.splitlines():
    if line.startswith('!['):
      assert (ROOT / 'docs' / line.split('](')[1].rstrip(')')).is_file(), line
