# SPDX-License-Identifier: Apache-2.0
"""Which processor this is, and which library multiplies on it."""

import os
import pathlib
import subprocess
import sys

import pytest

from fednar_tff import processor


def test_the_processor_is_told_by_what_linux_says(tmp_path, monkeypatch):
  monkeypatch.delenv('TF_ENABLE_ONEDNN_OPTS', raising=False)
  info = tmp_path / 'cpuinfo'
  info.write_text('model name\t: A B\nflags\t\t: fpu amx_bf16 avx2 avx512f_x\nmodel name\t: C\n')
  expected = {'name': 'A B', 'extensions': ['avx2', 'amx_bf16'], 'one_dnn': True}
  assert processor.describe(info) == expected
  info.write_text('flags: avx2 avx512f\n')
  assert processor.describe(info)['one_dnn'] is False
  monkeypatch.setenv('TF_ENABLE_ONEDNN_OPTS', '1')
  assert processor.describe(info)['one_dnn'] is True
  monkeypatch.setenv('TF_ENABLE_ONEDNN_OPTS', '0')
  assert processor.describe(tmp_path / 'none')['extensions'] is None
  assert processor.describe(tmp_path / 'none')['one_dnn'] is False


_LIBRARY = """
import gc, sys
from experiments.running import tensorflow_import
if sys.argv[1] == 'before':
  tensorflow_import.import_tensorflow()
  assert gc.isenabled() and gc.get_freeze_count() > 100_000
from fednar_tff import processor
from tensorflow.python.framework import test_util  # Only it knows.
tensorflow_import.import_tensorflow()
print(test_util.IsMklEnabled(), processor.describe()['one_dnn'])
"""


@pytest.mark.parametrize('when', ['before', pytest.param('too late', marks=pytest.mark.slow)])
def test_one_dnn_is_chosen_before_tensorflow_is_imported(when):
  done = subprocess.run(
    [sys.executable, '-c', _LIBRARY, when],
    cwd=pathlib.Path(__file__).parents[1],
    env={k: v for k, v in os.environ.items() if k != 'TF_ENABLE_ONEDNN_OPTS'},
    capture_output=True,
    text=True,
    check=True,
  )
  used, told = (word == 'True' for word in done.stdout.split())
  assert used == told
  assert used or when == 'too late'  # On some processors TensorFlow does so by itself.
