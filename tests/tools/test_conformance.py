# SPDX-License-Identifier: Apache-2.0
"""`make conformance`: what it lays over the installed package, and how it counts."""

import pathlib
import subprocess
import sys

import pytest

from tools import conformance

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
  folder = tmp_path / 'checkout' / 'tensorflow_federated' / 'python' / 'learning'
  folder.mkdir(parents=True)
  (folder / 'small_test.py').write_text('# A test that the wheel does not have.\n')
  (folder / '__init__.py').write_text('raise AssertionError("The installed file is to be used.")\n')
  return tmp_path / 'checkout'


def test_the_installed_package_comes_first_and_tests_are_added(checkout, tmp_path):
  conformance.lay_over(checkout, tmp_path)
  package = tmp_path / 'tensorflow_federated'
  assert (package / 'python' / 'learning' / 'small_test.py').is_file()
  assert 'AssertionError' not in (package / 'python' / 'learning' / '__init__.py').read_text()
  assert (package / 'data' / 'worker_binary').is_file()


def test_only_test_files_of_the_four_folders_are_found(checkout):
  other = checkout / 'tensorflow_federated' / 'python' / 'core'
  other.mkdir()
  (other / 'other_test.py').touch()
  assert conformance.find_tests(checkout, '') == ['learning/small_test.py']
  assert conformance.find_tests(checkout, 'aggregators') == []


def test_counts_are_those_of_the_report(tmp_path):
  report = tmp_path / 'report.xml'
  report.write_text(
    '<testsuites><testsuite>'
    '<testcase name="a" classname="m.T" status="run"/>'
    '<testcase name="b" classname="m.T" status="run"/>'
    '<testcase name="c" classname="m.T" status="run"><failure message="x"/></testcase>'
    '<testcase name="d" classname="m.T" status="run"><error message="x"/></testcase>'
    '<testcase name="e" classname="m.T" status="run"><skipped message="x"/></testcase>'
    '</testsuite></testsuites>'
  )
  counts, failed = conformance._read_counts(report, 1, '')
  assert counts == (2, 2, 1, '')
  assert failed == ['T.c', 'T.d']
  counts, _ = conformance._read_counts(tmp_path / 'none.xml', None, 'line\nlast line\n')
  assert counts.remark == 'time-out: last line' and counts.passed == 0


@pytest.mark.parametrize(
  ('failed', 'remark', 'others', 'found'),
  [
    (['T.a'], '', {'tff_local': []}, ['f: T.a']),
    (['T.a'], '', {'tff_local': ['T.a']}, []),
    ([], 'time-out', {'tff_local': []}, ['f: time-out']),
    ([], '', {'tff_local': ['T.a']}, []),
  ],
)
def test_what_fails_in_process_only_is_found(failed, remark, others, found):
  results = {'in_process': (conformance.Counts(1, len(failed), 0, remark), failed)}
  results |= {name: (conformance.Counts(1, len(f), 0, ''), f) for name, f in others.items()}
  assert conformance.worse_in_process('f', results) == found


def test_without_a_checkout_one_line_says_what_is_missing(tmp_path):
  command = [sys.executable, '-m', 'tools.conformance', f'--tff={tmp_path}']
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 2
  assert 'tag v0.87.0' in done.stderr.splitlines()[-1]
