# SPDX-License-Identifier: Apache-2.0
"""The page of the study, and the README, say what its results hold."""

import pathlib

from experiments.reading import results, study_page

ROOT = pathlib.Path(__file__).parents[2]


def test_page_and_readme_are_made_of_the_results_in_the_repository():
  page = (ROOT / 'docs' / study_page.PAGE).read_text()
  records = results.read(ROOT / 'results' / 'study.jsonl')
  # `make results` mends them.
  made = study_page.blocks(records)
  assert page == study_page.fill(page, made)
  readme = (ROOT / study_page.README).read_text()
  assert readme == study_page.fill(readme, {study_page.VERDICTS: made[study_page.VERDICTS]})


def test_every_image_of_the_page_is_there():
  page = (ROOT / 'docs' / study_page.PAGE).read_text()
  for line in page.splitlines():
    if line.startswith('!['):
      assert (ROOT / 'docs' / line.split('](')[1].rstrip(')')).is_file(), line
