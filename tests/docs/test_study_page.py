# SPDX-License-Identifier: Apache-2.0
"""The page of the study says what its results hold."""

import pathlib

from experiments.reading import results, study_page

ROOT = pathlib.Path(__file__).parents[2]


def test_the_page_is_made_of_the_results_in_the_repository():
  page = (ROOT / 'docs' / study_page.PAGE).read_text()
  records = results.read(ROOT / 'results' / 'study.jsonl')
  # `make results` mends it.
  assert page == study_page.fill(page, study_page.blocks(records))


def test_every_image_of_the_page_is_there():
  page = (ROOT / 'docs' / study_page.PAGE).read_text()
  for line in page.splitlines():
    if line.startswith('!['):
      assert (ROOT / 'docs' / line.split('](')[1].rstrip(')')).is_file(), line
