# SPDX-License-Identifier: Apache-2.0
"""The doctor finds what works, and says so in words."""

import pytest

from fednar_tff import doctor
from fednar_tff.tasks import precision


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


@pytest.mark.parametrize(
  ('ratio', 'is_slow', 'advice'),
  [
    (0.5, False, 'worth choosing'),
    (1.0, False, 'float32 is not slower'),
    (2.5, True, 'choose float32'),
  ],
)
def test_the_speed_of_bfloat16_is_in_words(monkeypatch, ratio, is_slow, advice):
  monkeypatch.setattr(precision, 'relative_time', lambda _: ratio)
  assert precision.is_slow('bfloat16') == is_slow
  line = precision.describe_speed('bfloat16')
  assert f'{ratio:.2f} x the time of float32' in line and advice in line
  assert not precision.is_slow('float32')


def test_the_speed_of_bfloat16_is_measured():
  assert 0.1 < precision.relative_time('bfloat16') < 1000
  # The same type twice: what is measured is a ratio of times of equal work.
  assert 0.2 < precision.relative_time('float32') < 5


def test_the_report_has_a_line_on_bfloat16(monkeypatch, capsys):
  monkeypatch.setattr(doctor, 'check_runtime', lambda name: (True, 'tried'))
  assert doctor.main([]) == 0
  assert 'Precision: bfloat16: a product of matrices takes' in capsys.readouterr().out
