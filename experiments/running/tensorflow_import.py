# SPDX-License-Identifier: Apache-2.0
"""How commands import TensorFlow. Imports nothing by itself: flags are checked, and help is shown,
without waiting for it."""

import gc
import os
import sys


def import_tensorflow() -> None:
  """Imports TensorFlow, TFF and this package as commands want them.

  TensorFlow multiplies with oneDNN, and keeps freed memory, on any processor. By itself it does so
  only on processors with instructions for networks (docs/performance.md). It decides when it is
  imported, so afterwards this does nothing. What the environment says stands.
  """
  if 'tensorflow' in sys.modules:
    return
  # At 2, TensorFlow complains of GPU libraries on each start; the runtime says it where there is a
  # card.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
  # What an import makes stays. To look through it for garbage, again and again, took a tenth of the
  # time that a short run takes.
  gc.disable()
  try:
    import fednar_tff  # noqa: F401
  finally:
    gc.freeze()
    gc.enable()
