"""The doctor finds what works, and says so in words."""

import pytest

from fednar_tff import doctor


def test_a_runtime_that_works_is_reported_with_its_devices():
  works, message = doctor.check_runtime('in_process')
  assert works and 'CPU:0' in message and 'second' in message


def test_a_runtime_that_hangs_is_a_line_in_the_report():
  assert doctor.check_runtime('native', seconds=0.1) == (False, 'no answer within 0 s')


def test_a_runtime_that_fails_is_a_line_in_the_report():
  works, message = doctor.check_runtime('imaginary')
  assert not works and 'set_imaginary_context' in message


@pytest.mark.parametrize(
  ('devices', 'broken', 'expected'),
  [
    (['CPU cpu:0'], [], 'All runtimes work.'),
    (['CPU cpu:0'], [], 'no GPU'),
    (['CPU cpu:0', 'GPU gpu:0'], [], 'train on the GPU'),
    (['CPU cpu:0'], ['native'], 'use the in-process runtime'),
    (['CPU cpu:0'], ['in_process'], 'is broken here'),
    (['CPU cpu:0'], ['cluster'], 'Ray does not run here'),
    (['CPU cpu:0'], [], 'For several machines choose cluster'),
  ],
)
def test_the_diagnosis_is_in_words(devices, broken, expected):
  works = {name: name not in broken for name in ('in_process', 'native', 'remote', 'cluster')}
  assert expected in ' '.join(doctor.diagnose(devices, works))
  assert ('All runtimes work.' in doctor.diagnose(devices, works)) == (not broken)
