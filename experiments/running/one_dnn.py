# SPDX-License-Identifier: Apache-2.0
"""Whether TensorFlow multiplies with oneDNN. Imports nothing: it has to be decided before."""

import os
import sys


def choose() -> None:
  """Lets TensorFlow multiply with oneDNN, and keep freed memory, on any processor.

  By itself it does so only on processors with instructions for networks (docs/performance.md). It
  decides when it is imported, so afterwards this does nothing. What the environment says stands.
  """
  if 'tensorflow' not in sys.modules:
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
