# SPDX-License-Identifier: Apache-2.0
"""The page of the study, and the README, say what its results hold."""

import collections
import pathlib
import statistics

from experiments.definition import study
from experiments.reading import claims, results, study_page

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


def test_matched_weight_decays_are_what_those_of_nar_come_to():
  records = results.read(ROOT / 'results' / 'study.jsonl')
  factors = collections.defaultdict(list)
  for name in records.keys() & study.runs(['bounds']).keys():
    run = results.to_run(records[name])
    if run.identity['client_optimizer'] == 'nar':
      cell = run.identity['max_norm'], run.identity['weight_decay']
      factors[cell].append(claims.decay_factor(run))
  for (bound, decay), (matched, *measured) in study.MATCHED_DECAYS.items():
    assert f'{decay * statistics.mean(factors[bound, decay]):.3g}' == f'{matched:g}'
    assert all(matched < other for other in measured)  # By the mean norm it is too small.


def test_every_image_of_the_page_is_there():
  page = (ROOT / 'docs' / study_page.PAGE).read_text()
  for line in page.splitlines():
    if line.startswith('!['):
      assert (ROOT / 'docs' / line.split('](')[1].rstrip(')')).is_file(), line
