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


@pytest.mark.slow
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


@pytest.mark.parametrize(
  ('with_it', 'ratio', 'advice'),
  [(0.002, '0.50', 'set that before'), (0.005, '1.25', 'nothing has to be set')],
)
def test_the_speed_of_one_dnn_is_in_words(monkeypatch, with_it, ratio, advice):
  monkeypatch.setattr(doctor, '_convolution_time', lambda env: with_it if env else 0.004)
  line = doctor.describe_one_dnn()
  assert f'{ratio} x the time' in line and advice in line


def test_the_speed_of_one_dnn_is_measured_or_said_not_to_be(monkeypatch):
  assert 1e-5 < doctor._convolution_time({}) < 10
  monkeypatch.setattr(doctor, '_CONVOLUTION', 'print("no number")')
  assert doctor.describe_one_dnn() == 'oneDNN: not measured: ValueError'


def test_the_report_has_a_line_on_each_kind_of_speed(monkeypatch, capsys):
  monkeypatch.setattr(doctor, 'check_runtime', lambda name: (True, 'tried'))
  monkeypatch.setattr(doctor, '_convolution_time', lambda environment: 0.004)
  assert doctor.main([]) == 0
  printed = capsys.readouterr().out
  assert 'Precision: bfloat16: a product of matrices takes' in printed
  assert 'oneDNN: with TF_ENABLE_ONEDNN_OPTS=1 a convolution takes 1.00 x' in printed
