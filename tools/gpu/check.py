# SPDX-License-Identifier: Apache-2.0
r"""Checks this package on the GPU of this machine, for a report in an issue: `make gpu-check`.

It needs no data. Without a GPU it does what it can on the CPU, with a GPU that is only pretended
for the placement, and says what it could not do. Parts:

  placement    What a local step launches and copies (see tools/gpu/placement.py).
  agreement    A round of each algorithm against the same round on the CPU, without TF32.
  speed        Examples a second, and the GPU's utilisation meanwhile, if nvidia-smi is there.
  determinism  Two runs in two processes with deterministic operations: the same bits.
  sharing      Two processes on one device at the same time.

The exit status is 0 if nothing failed, whether or not all could be done.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from tools.gpu import placement

_PARTS = ('placement', 'agreement', 'speed', 'determinism', 'sharing')
# Of the largest weight after a round: convolutions add up their terms in another order on a GPU.
_TOLERANCE = 1e-3
_AIMS = {'resnet18': (1100, 12), 'transformer': (900, 12)}
_SECONDS = 3600


class Report:
  """The lines of the report, printed as they come, and whether something failed."""

  def __init__(self):
    self.failed = False

  def line(self, text: str) -> None:
    print(text, flush=True)

  def verdict(self, part: str, ok: bool, text: str) -> None:
    self.failed |= not ok
    self.line(f'- {part}: {"ok" if ok else "FAILED"}: {text}')

  def skipped(self, part: str, reason: str) -> None:
    self.line(f'- {part}: NOT DONE: {reason}')


def _worker(options) -> None:
  """Runs rounds in this process and writes their models; started by the parts of the check."""
  import tensorflow as tf

  import fednar_tff
  from tools.gpu import workloads

  fednar_tff.runtime.set_in_process_context(
    devices=[options.device],
    clients_per_device=options.clients_per_device,
    deterministic=options.deterministic,
    allow_tf32=options.tf32,
  )
  task = workloads.create_task(options.model)
  found = {}
  for algorithm in options.algorithms:
    process = workloads.create_process(task, algorithm, 'packed')
    data = workloads.client_data(task, 'packed', [options.steps] * 3)
    state = process.initialize()
    workloads.run_round(process, state, data)  # The first one compiles.
    begun = time.monotonic()
    state = workloads.run_round(process, state, data)[0]
    seconds = time.monotonic() - begun
    weights = tf.nest.flatten(process.get_model_weights(state).trainable)
    vector = np.concatenate([np.ravel(w) for w in weights])
    np.save(pathlib.Path(options.output) / f'{algorithm}.npy', vector)
    found[algorithm] = {
      'seconds': seconds,
      'examples': 3 * options.steps * workloads.BATCH_SIZE,
      'sha256': hashlib.sha256(vector.tobytes()).hexdigest(),
      'clients_by_device': fednar_tff.runtime.describe()['clients_by_device'],
    }
  print(json.dumps(found))


def _start_worker(output: str, **options) -> subprocess.Popen:
  arguments = [f'--{k}={v}' for k, v in options.items() if k != 'algorithms']
  arguments += ['--algorithms', *options['algorithms'], '--worker', f'--output={output}']
  return subprocess.Popen(
    [sys.executable, '-m', 'tools.gpu.check', *arguments],
    cwd=placement.ROOT,
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _finish(process: subprocess.Popen) -> dict:
  """Returns what a worker found; its last line of complaint if it failed."""
  try:
    output, errors = process.communicate(timeout=_SECONDS)
  except subprocess.TimeoutExpired:
    process.kill()
    process.communicate()
    raise RuntimeError(f'no end within {_SECONDS} s') from None
  if process.returncode:
    raise RuntimeError((errors.strip().splitlines() or [f'status {process.returncode}'])[-1])
  return json.loads(output.strip().splitlines()[-1])


def _run_worker(output: str, **options) -> dict:
  return _finish(_start_worker(output, **options))


def _gpus() -> list[str]:
  """Lists TensorFlow's GPUs, asked in another process: this one must not take their memory."""
  program = 'import tensorflow as tf; print(len(tf.config.list_physical_devices("GPU")))'
  done = subprocess.run(
    [sys.executable, '-c', program],
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3'},
    capture_output=True,
    text=True,
  )
  return [f'GPU:{i}' for i in range(int(done.stdout.strip() or 0))]


def _check_placement(report: Report, options, gpus: list[str]) -> None:
  kind = 'real' if gpus else 'pretended'
  for model in options.models:
    part = f'placement of {model}'
    try:
      accelerators = [0, 1] if kind == 'pretended' or len(gpus) > 1 else [0]
      found = placement.measure(kind, model, algorithms=['fed_avg'], accelerators=accelerators)
    except placement.UnavailableError as e:
      report.skipped(part, f'there is no GPU, and none can be pretended: {e}')
      continue
    max_launches, max_copies = _AIMS[model]
    for case in found:
      launches = case['launches'][case['device']]
      between = [c for c in case['copies'] if 'host' not in (c['from'], c['to'])]
      ok = launches <= max_launches and case['num_copies'] <= max_copies and not between
      largest = max((c['bytes'] or 0 for c in case['copies']), default=0)
      report.verdict(
        part,
        ok,
        f'{case["loop"]} on {kind} {case["device"]}: {launches} launches (at most {max_launches}), '
        f'{case["num_copies"]} copies (at most {max_copies}), {len(between)} between devices'
        + (f', the largest of {largest:,} bytes' if kind == 'real' else '')
        + (f', without a GPU kernel: {case["without_kernel"]}' if case['without_kernel'] else ''),
      )
  if not gpus:
    report.skipped('placement on a real GPU', 'TensorFlow sees none')


def _check_agreement(report: Report, options, device: str) -> None:
  part = 'agreement with the CPU'
  if device.startswith('CPU'):
    report.skipped(part, 'there is nothing but the CPU')
    return
  for model in options.models:
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
      arguments = dict(model=model, algorithms=options.algorithms, steps=options.steps, tf32=False)
      try:
        _run_worker(here, device=device, **arguments)
        _run_worker(there, device='CPU:0', **arguments)
      except RuntimeError as e:
        report.verdict(part, False, f'{model}: {e}')
        continue
      for algorithm in options.algorithms:
        ours, cpus = (np.load(pathlib.Path(f) / f'{algorithm}.npy') for f in (here, there))
        difference = np.max(np.abs(ours - cpus)) / np.max(np.abs(cpus))
        report.verdict(
          part,
          difference <= _TOLERANCE,
          f'{algorithm} on {model}: largest difference {difference:.1e} of the largest weight '
          f'(at most {_TOLERANCE:g})',
        )


class _Utilisation:
  """Asks nvidia-smi twice a second how busy the GPU is, within the block."""

  def __init__(self):
    self.percent = []
    self._done = threading.Event()
    self._thread = threading.Thread(target=self._ask)

  def __enter__(self):
    if shutil.which('nvidia-smi'):
      self._thread.start()
    return self

  def __exit__(self, *unused):
    self._done.set()
    if self._thread.is_alive():
      self._thread.join()

  def _ask(self):
    command = ['nvidia-smi', '--query-gpu=utilization.gpu', '--format=csv,noheader,nounits']
    while not self._done.wait(0.5):
      done = subprocess.run(command, capture_output=True, text=True)
      self.percent += [int(x) for x in done.stdout.split() if x.isdecimal()]


def _check_speed(report: Report, options, device: str) -> None:
  for model in options.models:
    for clients in (1, 2):
      with tempfile.TemporaryDirectory() as folder, _Utilisation() as utilisation:
        try:
          found = _run_worker(
            folder,
            device=device,
            model=model,
            algorithms=['fed_avg'],
            steps=options.steps,
            clients_per_device=clients,
          )['fed_avg']
        except RuntimeError as e:
          report.verdict('speed', False, f'{model}: {e}')
          continue
      report.verdict(
        'speed',
        True,
        f'{model} on {found["clients_by_device"]}, {clients} at a time: '
        f'{found["examples"] / found["seconds"]:.1f} examples/s',
      )
      if utilisation.percent:
        report.line(f'  utilisation at most {max(utilisation.percent)} %')
  if not shutil.which('nvidia-smi'):
    report.skipped('utilisation', 'there is no nvidia-smi')


def _check_determinism(report: Report, options, device: str) -> None:
  for model in options.models:
    found = []
    for clients in (1, 2):
      with tempfile.TemporaryDirectory() as folder:
        arguments = dict(model=model, algorithms=['fed_avg'], steps=options.steps, device=device)
        try:
          run = _run_worker(folder, deterministic=True, clients_per_device=clients, **arguments)
        except RuntimeError as e:
          report.verdict('determinism', False, f'{model}: {e}')
          break
        found.append(run['fed_avg']['sha256'])
    else:
      report.verdict(
        'determinism',
        len(set(found)) == 1,
        f'{model} on {device}, two processes, 1 and 2 clients at a time: weights '
        f'{" and ".join(f[:12] for f in found)}',
      )


def _check_sharing(report: Report, options, device: str) -> None:
  with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    arguments = dict(
      model=options.models[0], algorithms=['fed_avg'], steps=options.steps, device=device
    )
    workers = [_start_worker(folder, **arguments) for folder in (one, other)]
    errors = []
    for worker in workers:
      try:
        _finish(worker)
      except RuntimeError as e:
        errors.append(str(e))
    report.verdict(
      'sharing', not errors, '; '.join(errors) or f'two processes trained on {device} at once'
    )


def _versions() -> str:
  import importlib.metadata
  import platform

  versions = [f'Python {platform.python_version()}']
  for package in ('tensorflow', 'tensorflow-federated', 'numpy'):
    versions.append(f'{package} {importlib.metadata.version(package)}')
  return ', '.join(versions)


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m tools.gpu.check',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--parts', nargs='+', choices=_PARTS, default=_PARTS)
  parser.add_argument('--models', nargs='+', choices=tuple(_AIMS), default=list(_AIMS))
  parser.add_argument(
    '--algorithms', nargs='+', default=['fed_avg', 'fed_prox', 'scaffold', 'fed_exp', 'fed_adam']
  )
  parser.add_argument('--steps', type=int, help='local steps of a client; 20 on a GPU, else 2')
  parser.add_argument('--device', help=argparse.SUPPRESS)
  for name in ('--model', '--output'):
    parser.add_argument(name, help=argparse.SUPPRESS)
  parser.add_argument('--clients_per_device', type=int, help=argparse.SUPPRESS)
  for name in ('--deterministic', '--tf32'):
    parser.add_argument(name, type=lambda text: text == 'True', help=argparse.SUPPRESS)
  parser.add_argument('--worker', action='store_true', help=argparse.SUPPRESS)
  options = parser.parse_args(arguments)
  if options.worker:
    _worker(options)
    return 0
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  gpus = _gpus()
  device = gpus[0] if gpus else 'CPU:0'
  options.steps = options.steps or (20 if gpus else 2)
  report = Report()
  report.line(f'# GPU check of fednar_tff: {_versions()}')
  if shutil.which('nvidia-smi'):
    query = ['nvidia-smi', '--query-gpu=name,driver_version,memory.total', '--format=csv,noheader']
    report.line(subprocess.run(query, capture_output=True, text=True).stdout.strip())
  report.line(f'GPUs of TensorFlow: {", ".join(gpus) or "none"}; the checks run on {device}.')
  if not gpus:
    from fednar_tff.runtime.in_process import accelerators

    report.line(accelerators.unused_card() or 'No NVIDIA card was found.')
  if 'placement' in options.parts:
    _check_placement(report, options, gpus)
  for name, check in (
    ('agreement', _check_agreement),
    ('speed', _check_speed),
    ('determinism', _check_determinism),
    ('sharing', _check_sharing),
  ):
    if name in options.parts:
      check(report, options, device)
  report.line('Something FAILED.' if report.failed else 'Nothing failed.')
  return int(report.failed)


if __name__ == '__main__':
  sys.exit(main())
