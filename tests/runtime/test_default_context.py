# SPDX-License-Identifier: Apache-2.0
"""Scripts that import the package end in silence and leave no worker, whichever context they
use."""

import contextlib
import os
import signal
import subprocess

import pytest

_COMPUTATION = """
@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def add(x):
  return tff.federated_sum(x)

print(add([1, 2]))
"""
_OWN_CONTEXT = """
tff.backends.native.set_sync_local_cpp_execution_context(default_num_clients=3)
own = id(tff.framework.get_context_stack().current)
"""
_UNTOUCHED = """
assert id(tff.framework.get_context_stack().current) == own
"""
_TFF = 'import numpy as np, tensorflow_federated as tff\n'
_OURS = 'import fednar_tff\n'
_IGNORES_CTRL_C = 'import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n'


@pytest.mark.parametrize(
  'program',
  [
    pytest.param(_TFF + _OURS, marks=pytest.mark.slow),
    pytest.param(_OURS + _TFF + _COMPUTATION, marks=pytest.mark.slow),
    # As a shell starts programs in the background.
    _IGNORES_CTRL_C + _TFF + _OURS + _COMPUTATION,
    pytest.param(_TFF + _OWN_CONTEXT + _OURS + _UNTOUCHED + _COMPUTATION, marks=pytest.mark.slow),
    pytest.param(_OURS + _TFF + _OWN_CONTEXT + _UNTOUCHED + _COMPUTATION, marks=pytest.mark.slow),
  ],
  ids=['import_only', 'no_context', 'no_context_tff_first', 'own_before', 'own_after'],
)
def test_a_script_ends_in_silence_and_its_pipe_with_it(start_python, program):
  process = start_python(program, stderr=subprocess.PIPE, start_new_session=True)
  try:
    # Returns when the last process that holds the pipe has ended.
    output, errors = process.communicate(timeout=60)
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
  assert process.returncode == 0, errors
  assert output == ('3\n' if _COMPUTATION in program else '')
  assert 'Traceback' not in errors and '__del__' not in errors
