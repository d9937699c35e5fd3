# SPDX-License-Identifier: Apache-2.0
"""Which processor this is, and whether TensorFlow multiplies with oneDNN on it.

The same float32 run may have other last bits where either differs.
"""

import os
import pathlib
import platform
from typing import Any

# What oneDNN chooses its code by, as Linux calls it.
EXTENSIONS = (
  'sse4_1', 'avx', 'avx2', 'avx_vnni', 'avx512f', 'avx512bw', 'avx512dq', 'avx512vl', 'avx512_vnni',
  'avx512_bf16', 'avx512_fp16', 'amx_tile', 'amx_int8', 'amx_bf16', 'amx_fp16',
)  # fmt: skip
# TensorFlow multiplies with oneDNN by itself only where the processor has one of these.
_FOR_NETWORKS = (
  'avx_vnni', 'avx512_vnni', 'avx512_bf16', 'amx_tile', 'amx_int8', 'amx_bf16',
)  # fmt: skip
_INFO = pathlib.Path('/proc/cpuinfo')


def describe(info: pathlib.Path = _INFO) -> dict[str, Any]:
  """Returns the processor's name and vector extensions, and whether oneDNN multiplies.

  Args:
    info: Where Linux tells. Without it, the extensions are None, which is not the same as none.
  """
  found: dict[str, str] = {}
  if info.exists():
    for line in info.read_text().splitlines():
      key, _, value = line.partition(':')
      found.setdefault(key.strip(), value.strip())
  flags = found['flags'].split() if 'flags' in found else None
  switch = os.environ.get('TF_ENABLE_ONEDNN_OPTS')
  by_itself = None if flags is None else any(e in flags for e in _FOR_NETWORKS)
  return {
    'name': found.get('model name') or platform.processor() or platform.machine(),
    'extensions': None if flags is None else [e for e in EXTENSIONS if e in flags],
    'one_dnn': by_itself if switch not in ('0', '1') else switch == '1',
  }
