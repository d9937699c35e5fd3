# SPDX-License-Identifier: Apache-2.0
"""Whether TensorFlow multiplies with oneDNN. Imports nothing: it has to be decided before."""

import os
import sys

# Models that are slower with it on processors where TensorFlow leaves it off (docs/performance.md).
_SMALL_MODELS = (None, 'mlp')


def choose_library(model: str | None) -> None:
  """Lets TensorFlow multiply with oneDNN on any processor, if that pays for a model.

  TensorFlow decides when it is imported, so afterwards this does nothing. What the environment says
  stands.

  Args:
    model: The model's name. None, or one whose products are too small for it: nothing is changed.
  """
  if 'tensorflow' not in sys.modules and model not in _SMALL_MODELS:
    os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
