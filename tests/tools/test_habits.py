# SPDX-License-Identifier: Apache-2.0
"""The small tools that keep habits: licence headers, and coverage of the update rules."""

import json

import pytest

from tools import coverage_check, licence_headers


@pytest.mark.parametrize(
  ('text', 'expected'),
  [
    ('', ''),
    ('"""A module."""\n', licence_headers.HEADER + '"""A module."""\n'),
    ('#!/bin/sh\nset -e\n', '#!/bin/sh\n' + licence_headers.HEADER + 'set -e\n'),
  ],
)
def test_a_header_is_put_first_and_only_once(text, expected):
  once = licence_headers.with_header(text, licence_headers.HEADER)
  assert once == expected
  assert licence_headers.with_header(once, licence_headers.HEADER) == expected


def _report(tmp_path, name, missing_lines=(), missing_branches=()):
  summary = {'covered_lines': 8, 'num_statements': 10, 'covered_branches': 1, 'num_branches': 2}
  files = {
    name: {
      'summary': summary,
      'missing_lines': list(missing_lines),
      'missing_branches': list(missing_branches),
    }
  }
  path = tmp_path / 'coverage.json'
  path.write_text(json.dumps({'files': files}))
  return [str(path)]


def test_a_branch_of_an_update_rule_that_no_test_takes_is_an_error(tmp_path, capsys):
  name = 'fednar_tff/optimizers/nar.py'
  assert coverage_check.main(_report(tmp_path, name)) == 0
  assert coverage_check.main(_report(tmp_path, name, missing_branches=[[3, 5]])) == 1
  assert coverage_check.main(_report(tmp_path, name, missing_lines=[7])) == 1
  assert '75.0 % of lines and branches' in capsys.readouterr().out


def test_elsewhere_it_is_only_counted(tmp_path):
  name = 'fednar_tff/tasks/sources.py'
  assert coverage_check.main(_report(tmp_path, name, missing_lines=[7])) == 0
