# SPDX-License-Identifier: Apache-2.0
r"""Says what a local step launches and copies on a GPU, without one.

  python -m tools.gpu.placement --device=pretended --model=resnet18 --algorithms fed_avg scaffold

asks TensorFlow itself, in this process, which must not be used for anything else then. With
`--device`

  pretended  TensorFlow gets a GPU that is not there (pretend_gpu.c): its real placer, against the
             CUDA kernels of its wheel. Copies and launches are counted; nothing runs there. It
             needs a C compiler.
  logical    the CPU three times: the first is the host, the others stand for GPUs. All runs, so
             that copies are measured in bytes.
  real       the GPUs of this machine.

For each round that was asked for, a line of JSON goes to standard output. A part of a larger
program calls `measure` instead, which starts a process for it.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]
_SOURCE = pathlib.Path(__file__).with_name('pretend_gpu.c')
DEVICES = ('pretended', 'logical', 'real')


class UnavailableError(RuntimeError):
  """The pretended device cannot be made here; the message says why."""


@functools.cache
def compile_device() -> pathlib.Path:
  """Compiles the pretended device into a temporary folder and returns the library.

  Raises:
    UnavailableError: If there is no C compiler, or TensorFlow's headers or library are not there.
  """
  compiler = shutil.which(os.environ.get('CC', 'cc'))
  if compiler is None:
    raise UnavailableError('there is no C compiler (cc)')
  # Found without importing it: this may be a process that only starts others.
  import importlib.util

  package = pathlib.Path(importlib.util.find_spec('tensorflow').origin).parent
  header = package / 'include/tensorflow/c/experimental/stream_executor/stream_executor.h'
  library = package / 'libtensorflow_framework.so.2'
  for needed in (header, library):
    if not needed.is_file():
      raise UnavailableError(f'TensorFlow has no {needed.name} here')
  target = pathlib.Path(tempfile.mkdtemp(prefix='pretend_gpu_')) / 'libpretend_gpu.so'
  done = subprocess.run(
    [compiler, '-shared', '-fPIC', f'-I{package / "include"}', str(_SOURCE), '-o', str(target)]
    + [f'-L{package}', f'-l:{library.name}', f'-Wl,-rpath,{package}'],
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise UnavailableError(f'the C compiler fails: {done.stderr.strip().splitlines()[-1]}')
  return target


def measure(device: str, model: str, **options) -> list[dict]:
  """Runs this module in a process of its own and returns what it prints.

  Args:
    device: One of `DEVICES`.
    model: One of `workloads.MODELS`, or `cnn`.
    **options: The other flags, `algorithms=['fed_avg']` for example.

  Raises:
    UnavailableError: See `compile_device`.
  """
  if device == 'pretended':
    options['library'] = [str(compile_device())]
  command = [sys.executable, '-m', 'tools.gpu.placement', f'--device={device}', f'--model={model}']
  for name, values in options.items():
    command += [f'--{name}', *map(str, values)]
  environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3', 'PYTHONPATH': str(ROOT)}
  done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
  if done.returncode:
    raise RuntimeError(f'{" ".join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}')
  return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]


def _set_up(device: str, library: str | None) -> None:
  """Gives TensorFlow its devices."""
  os.environ['PRETEND_GPUS'] = '2'
  import tensorflow as tf

  if device == 'pretended':
    from tensorflow.python.framework import load_library

    load_library.load_pluggable_device_library(library or str(compile_device()))
  elif device == 'logical':
    tf.config.set_logical_device_configuration(
      tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * 3
    )


def _devices_of_clients(device: str, index: int) -> list[str]:
  """Returns the devices of a round in which one client trains on accelerator `index`.

  Another one, without data, is elsewhere.

  The pretended GPU runs nothing, so the server's device, which is the first, cannot be one. What
  the caller passes is on GPU:0 nevertheless, as on a machine with GPUs. That is why accelerator 1
  stands for all but the first.
  """
  if device == 'pretended':
    return ['CPU:0', f'GPU:{index}']
  kind, offset = ('GPU', 0) if device == 'real' else ('CPU', 1)
  first = f'{kind}:{offset}'
  return [first] if index == 0 else [first, f'{kind}:{offset + index}']


def _bytes_of_copies(step, trace: dict[str, list[str]]) -> dict[str, int]:
  """Returns the bytes of each copy, from the shapes that its consumers have seen."""
  sizes = {}
  for copy in step.copies:
    known = [trace[name][i] for name, i in copy.consumers if i < len(trace.get(name, ()))]
    found = [size for size in map(_num_bytes, known) if size is not None]
    if found:
      sizes[copy.producer] = max(found)
  return sizes


def _num_bytes(tensor: str) -> int | None:
  """Returns the bytes of a 'float32[20,10]'; None for what has no size, as 'resource[]'."""
  import tensorflow as tf

  match = re.fullmatch(r'(\w+)\[([\d,]*)\]', tensor)
  if match is None or match[1] in ('variant', 'resource', 'string'):
    return None
  name, dimensions = match.groups()
  size = tf.as_dtype({'float': 'float32', 'double': 'float64'}.get(name, name)).size
  for dimension in filter(None, dimensions.split(',')):
    size *= int(dimension)
  return size


def _read_trace(folder: str) -> dict[str, list[str]]:
  """Returns, by 'name:op', the types and shapes of the inputs of each operation that ran."""
  from tensorflow.tsl.profiler.protobuf import xplane_pb2

  seen = {}
  for path in pathlib.Path(folder).rglob('*.xplane.pb'):
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
      for line in plane.lines:
        for event in line.events:
          for stat in event.stats:
            if plane.stat_metadata[stat.metadata_id].name == 'shape':
              shapes = stat.str_value or plane.stat_metadata[stat.ref_value].name
              inputs = shapes.strip('()').split(';')
              seen.setdefault(plane.event_metadata[event.metadata_id].name, inputs)
  return seen


def _summary(step, trace) -> dict:
  sizes = _bytes_of_copies(step, trace)
  copies = [
    {
      'from': copy.source,
      'to': copy.target,
      'dtype': copy.dtype,
      'producer': copy.producer,
      'consumers': [name for name, _ in copy.consumers],
      'bytes': sizes.get(copy.producer),
    }
    for copy in step.copies
  ]
  return {
    'launches': {device: sum(ops.values()) for device, ops in step.launches.items()},
    'launched': {device: dict(ops.most_common()) for device, ops in step.launches.items()},
    'copies': copies,
    'num_copies': len(copies),
    'bytes': sum(copy['bytes'] or 0 for copy in copies),
    'host_ops': dict(step.host_ops.most_common()),
    'without_kernel': dict(step.without_kernel),
  }


def _stop_before_the_first_kernel() -> None:
  """Ends calls for a pretended GPU when their graphs are ready: some kernels would crash."""
  from tensorflow.python.eager import cancellation

  from fednar_tff.runtime.in_process import graph_function

  cancelled = cancellation.CancellationManager()
  cancelled.start_cancel()
  call = graph_function.GraphFunction.__call__

  def call_cancelled(self, arguments, device):
    if 'GPU' not in device:
      return call(self, arguments, device)
    with cancellation.CancellationManagerContext(cancelled):
      return call(self, arguments, device)

  graph_function.GraphFunction.__call__ = call_cancelled


@contextlib.contextmanager
def _graphs_of_functions():
  """Yields a list that gets the parts, on all devices, of each function first called within."""
  import tensorflow as tf
  from tensorflow.python.eager import context

  collected = []
  context.context().enable_graph_collection()
  try:
    yield collected
  finally:
    # Those of a call that was cancelled come with the next one that succeeds.
    with tf.device('CPU:0'):
      tf.function(lambda: tf.constant(0))()
    metadata = context.context().export_run_metadata()
    context.context().disable_graph_collection()
    collected += [list(function.partition_graphs) for function in metadata.function_graphs]


def _run(options):
  """Yields what a step of each round that was asked for costs."""
  import tensorflow as tf

  import fednar_tff
  from tools.gpu import graphs, workloads

  if options.device == 'pretended':
    _stop_before_the_first_kernel()
  task = workloads.create_task(options.model)
  for algorithm in options.algorithms:
    for loop in options.loops:
      process = workloads.create_process(task, algorithm, loop)
      for index in options.accelerators:
        fednar_tff.runtime.set_in_process_context(
          devices=_devices_of_clients(options.device, index), num_threads=1
        )
        state = _initial_state(process)
        steps = [2]
        if len(_devices_of_clients(options.device, index)) > 1:
          # The server and the client without data first: the graphs that follow are those of the
          # client to look at.
          workloads.run_round(process, state, workloads.client_data(task, loop, [0]))
          steps = [0, 2]
        data = workloads.client_data(task, loop, steps)
        trace = {}
        with tempfile.TemporaryDirectory() as profile, _graphs_of_functions() as functions:
          if options.device != 'pretended':
            settings = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
            tf.profiler.experimental.start(profile, settings)
          try:
            workloads.run_round(process, state, data)
            if options.device == 'pretended':
              raise RuntimeError('A client ran on a GPU that is not there: it was sent elsewhere.')
          except fednar_tff.runtime.ClientError:
            if options.device != 'pretended':
              raise
          finally:
            if options.device != 'pretended':
              tf.profiler.experimental.stop()
              trace = _read_trace(profile)
        name = _devices_of_clients(options.device, index)[-1]
        steps = [graphs.read_step(parts) for parts in functions if name in graphs.devices_of(parts)]
        steps = [step for step in steps if step is not None and step.launches.get(name)]
        largest = max(steps, key=lambda step: sum(step.launches[name].values()))
        case = {'algorithm': algorithm, 'loop': loop, 'device': name, 'model': options.model}
        yield {**case, **_summary(largest, trace)}


def _initial_state(process):
  """Returns the state as NumPy arrays, made on the CPU."""
  import fednar_tff

  context = fednar_tff.runtime.create_in_process_context(devices=['CPU:0'], num_threads=1)
  import tensorflow_federated as tff

  with tff.framework.get_context_stack().install(context):
    return process.initialize()


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m tools.gpu.placement',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--device', choices=DEVICES, default='pretended')
  parser.add_argument('--model', choices=('resnet18', 'transformer', 'cnn'), default='resnet18')
  parser.add_argument('--algorithms', nargs='+', default=['fed_avg'])
  parser.add_argument('--loops', nargs='+', default=['packed', 'iterator', 'reduce'])
  parser.add_argument('--accelerators', nargs='+', type=int, default=[0, 1])
  parser.add_argument('--library', help='the pretended device, if it is compiled already')
  options = parser.parse_args(arguments)
  try:
    _set_up(options.device, options.library)
  except UnavailableError as e:
    print(f'{parser.prog}: {e}', file=sys.stderr)
    return 2
  for found in _run(options):
    print(json.dumps(found), flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
