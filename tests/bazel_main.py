# SPDX-License-Identifier: Apache-2.0
"""What a `py_test` of BUILD runs: pytest, on the file that its argument names."""

import os
import sys

import pytest

if __name__ == '__main__':
  # In Bazel's tree, the repository is the folder that the test starts in; pytest's options are
  # those of pyproject.toml.
  sys.path.insert(0, os.getcwd())
  sys.exit(pytest.main(['--import-mode=importlib', '-p', 'no:cacheprovider', *sys.argv[1:]]))
