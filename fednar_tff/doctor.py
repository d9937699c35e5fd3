# SPDX-License-Identifier: Apache-2.0
"""Says what this machine can run federated computations on: `python -m fednar_tff.doctor`.

Each runtime is tried in a process of its own, with a time-out, so that one that hangs or crashes is
a line in the report and not the end of it.
"""

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import time

from fednar_tff import argument_parser
from fednar_tff.tasks import precision, sources

_PACKAGES = (
  'tensorflow',
  'tensorflow-federated',
  'tensorflow-datasets',
  'tensorflow-privacy',
  'jax',
  'jaxlib',
  'numpy',
  'protobuf',
  'absl-py',
)
_EXPECTED_TFF = '0.87.0'
_SECONDS = 120
_RUNTIMES = ('in_process', 'native', 'remote', 'cluster')

# Three clients take one step each from 0 towards their number, at rate 0.5: the mean of the results
# is 1.
_SELF_TEST = """
import sys, time
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from fednar_tff import runtime
from fednar_tff.runtime.workers import launcher

@tff.tensorflow.computation(np.float32, tff.SequenceType(np.float32))
def train(weight, data):
  return data.reduce(weight, lambda w, x: w - 0.5 * (w - x))

@tff.federated_computation(tff.FederatedType(np.float32, tff.SERVER),
                           tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS))
def run_round(weight, data):
  return tff.federated_mean(
      tff.federated_map(train, tff.federated_zip((tff.federated_broadcast(weight), data))))

# TFF's own context, which this replaces, would print an error of its own when the program fails.
runtime.set_native_context()
name = sys.argv[1]
if name == 'remote':
  workers = [launcher.WorkerProcess() for _ in range(2)]
  runtime.set_remote_context([f'localhost:{worker.port}' for worker in workers])
elif name == 'cluster':
  runtime.set_cluster_context(num_workers=2, object_store_memory=10**8)
else:
  getattr(runtime, f'set_{name}_context')()
data = [tf.data.Dataset.from_tensors(np.float32(x)) for x in (1, 2, 3)]
first = time.monotonic()
result = run_round(0.0, data)
second = time.monotonic()
run_round(0.0, data)
assert abs(result - 1.0) < 1e-6, f'a round gave {result} where it must give 1.0'
devices = runtime.describe().get('executes_on') or runtime.describe()['devices']
third = time.monotonic()
print(f'first round {second - first:.1f} s, second {third - second:.3f} s, on {", ".join(devices)}')
"""

# A convolution and its gradients, in the size of a small CNN's, on one core as a client's are.
_CONVOLUTION = """
import time
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)

@tf.function(autograph=False)
def step(x, kernel):
  with tf.GradientTape() as tape:
    tape.watch((x, kernel))
    y = tf.nn.conv2d(x, kernel, 1, 'VALID')
  return y, tape.gradient(y, (x, kernel))

def measure():
  start = time.perf_counter()
  step(tf.ones([20, 14, 14, 16]), tf.ones([5, 5, 16, 32]))
  return time.perf_counter() - start

measure()
print(min(measure() for _ in range(50)))
"""
_ONE_DNN = {'TF_ENABLE_ONEDNN_OPTS': '1'}


def _versions() -> list[str]:
  lines = [f'Python {platform.python_version()} on {platform.platform()}, {os.cpu_count()} cores']
  for package in _PACKAGES:
    try:
      lines.append(f'{package} {importlib.metadata.version(package)}')
    except importlib.metadata.PackageNotFoundError:
      lines.append(f'{package} is not installed')
  return lines


def _devices() -> list[str]:
  import tensorflow as tf

  return [f'{device.device_type} {device.name}' for device in tf.config.list_physical_devices()]


def check_runtime(name: str, seconds: float = _SECONDS) -> tuple[bool, str]:
  """Runs a small federated round on a runtime, in a process of its own.

  Args:
    name: 'in_process', 'native', 'remote' or 'cluster' (two workers on this machine).
    seconds: After which time the runtime counts as hanging.

  Returns:
    Whether the round gave the right number, and a line that says what happened.
  """
  started = time.monotonic()
  try:
    done = subprocess.run(
      [sys.executable, '-c', _SELF_TEST, name],
      capture_output=True,
      text=True,
      timeout=seconds,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
    )
  except subprocess.TimeoutExpired:
    return False, f'no answer within {seconds:.0f} s'
  if done.returncode != 0:
    lines = done.stderr.strip().splitlines() or [f'exit status {done.returncode}']
    return False, next((line for line in reversed(lines) if 'Error' in line), lines[-1])
  return True, f'{done.stdout.strip()} ({time.monotonic() - started:.0f} s with imports)'


def _convolution_time(environment: dict[str, str]) -> float:
  """Returns the seconds of a convolution in a process of its own, which has these variables."""
  done = subprocess.run(
    [sys.executable, '-c', _CONVOLUTION],
    capture_output=True,
    text=True,
    timeout=_SECONDS,
    check=True,
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3', **environment},
  )
  return float(done.stdout)


def describe_one_dnn() -> str:
  """Says in a line whether programs should ask TensorFlow for oneDNN on this processor.

  TensorFlow uses that library by itself only on processors with instructions for networks, and
  decides when it is imported.
  """
  try:
    ratio = _convolution_time(_ONE_DNN) / _convolution_time({})
  except (subprocess.SubprocessError, ValueError) as e:
    return f'oneDNN: not measured: {type(e).__name__}'
  advice = 'nothing has to be set'
  if ratio < 0.8:
    advice = 'set that before TensorFlow is imported; experiments.train does so'
  return (
    f'oneDNN: with TF_ENABLE_ONEDNN_OPTS=1 a convolution takes {ratio:.2f} x the time that it '
    f'takes as TensorFlow starts here: {advice}'
  )


def describe_data(data_dir: str | None = None) -> list[str]:
  """Says of each data set that has to be fetched whether it is there, and how to get it if not.

  Args:
    data_dir: Where to look, instead of in the default folders of tfds and TFF.

  Returns:
    One line for each data set.
  """
  lines = []
  for name in sources.LOADERS:
    status = sources.check(name, data_dir)
    command = sources.fetch_command(name, data_dir)
    if status.is_there:
      lines.append(f'{name}: ok: in {status.path}')
    elif status.problem is None:
      lines.append(f'{name}: not in {status.path}; fetch it by: {command}')
    else:
      lines.append(
        f'{name}: not in {status.path}: {status.problem}; '
        f'when that is mended, fetch it by: {command}'
      )
  return lines


def diagnose(
  devices: list[str], works: dict[str, bool], unused_card: str | None = None
) -> list[str]:
  """Says in words what the findings mean.

  Args:
    devices: The devices that TensorFlow sees.
    works: For each runtime, whether it gave the right result.
    unused_card: That there is an NVIDIA card which TensorFlow does not use, and why, if so.

  Returns:
    One line for each conclusion.
  """
  lines = []
  if all(works.values()):
    lines.append('All runtimes work.')
  if not works['in_process']:
    lines.append(
      'The in-process runtime fails: TensorFlow or TFF itself is broken here; '
      'compare the versions above.'
    )
  elif not (works['native'] and works['remote']):
    lines.append(
      "TFF's worker does not run here; use the in-process runtime, which needs no worker."
    )
  if not works.get('cluster', True):
    lines.append('Ray does not run here, so there is no cluster runtime; the others need no Ray.')
  lines.append(
    'For several machines choose cluster, which trains on their GPUs and sends data once; '
    'remote is '
    "for those who have TFF's workers already."
  )
  if any(device.startswith('GPU') for device in devices):
    lines.append(
      'The in-process and cluster runtimes train on the GPU; native and remote use the CPU only.'
    )
  else:
    lines.append(
      'TensorFlow sees no GPU, so clients train on the CPU. With an NVIDIA card, install this '
      'package with its extra [gpu].'
    )
    lines += [unused_card] if unused_card else []
  tff_version = importlib.metadata.version('tensorflow-federated')
  if tff_version != _EXPECTED_TFF:
    lines.append(f'TFF is {tff_version}; this package is made for {_EXPECTED_TFF}.')
  return lines


def main(arguments: list[str] | None = None) -> int:
  """Prints the report; the exit status is 0 if every runtime works."""
  parser = argument_parser.Parser(prog='python -m fednar_tff.doctor', description=__doc__)
  parser.add_argument(
    '--data_dir', help='where to look for data sets, instead of in the default folders'
  )
  options = parser.parse_args(arguments)
  print(*_versions(), sep='\n')
  devices = _devices()
  print('\nDevices of TensorFlow:', *devices, sep='\n  ')
  print(
    '\nData sets (digits and synthetic need none):', *describe_data(options.data_dir), sep='\n  '
  )
  print(f'\nPrecision: {precision.describe_speed("bfloat16")}')
  print(f'\n{describe_one_dnn()}')
  print('\nA federated round on each runtime:', flush=True)
  works = {}
  for name in _RUNTIMES:
    if name == 'cluster' and importlib.util.find_spec('ray') is None:
      print("  cluster: not installed: pip install 'fednar_tff[cluster]'", flush=True)
      continue
    works[name], message = check_runtime(name)
    print(f'  {name}: {"ok" if works[name] else "FAILED"}: {message}', flush=True)
  from fednar_tff.runtime.in_process import accelerators

  print('\nDiagnosis:', *diagnose(devices, works, accelerators.unused_card()), sep='\n  ')
  return 0 if all(works.values()) else 1


if __name__ == '__main__':
  sys.exit(main())
