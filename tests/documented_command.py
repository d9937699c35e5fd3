# SPDX-License-Identifier: Apache-2.0
"""Stands for `python`, `pip`, `jupyter` and `make` while a test runs the shell blocks of the docs:
the same commands, made small.

A block is run by bash as it is written. What would take hours, a second machine or a download is
cut down here, and nowhere else:

- `experiments.train` trains two rounds, on the digits images, into the folder that is named; its
  remote workers are those that the block started. What only prints is done as it is written. Of a
  run on Shakespeare, and of one in this process that names no folder, so that nothing in the block
  can read it, only the flags are checked.
- `experiments.sweep` lists the commands of the sweep as written (every name must be known, every
  flag must exist), and then runs one small cell into the same folder, so that the report that
  follows has something to read; on Slurm, it only lists.
- `experiments.report --table` must know the table, in which that small cell has no place; then it
reports what is there.
- `experiments.study run` says how far its stages are and runs none of them.
- `fednar_tff.fetch` checks its arguments and fetches nothing.
- `fednar_tff.runtime.worker` starts in the background on an unused port, twice for "on host1, and
on host2"; the test stops both.
- `jupyter execute` runs a notebook of one cell in place of the one that is named, which has to
exist.
- `make` checks the recipe without running it; `pip` checks what it is asked for against what is
installed.
"""

import importlib.metadata
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import nbformat

_SMALL_RUN = ('--task=digits', '--model=mlp', '--total_rounds=2', '--clients_per_round=2')
_WORKERS = pathlib.Path('workers.txt')


def _module(name, *arguments):
  return subprocess.run([sys.executable, '-m', name, *arguments], check=True)


def _flag(arguments, name):
  return next(a.split('=', 1)[1] for a in arguments if a.startswith(f'--{name}='))


def _fetch(*arguments):
  _module('fednar_tff.fetch', *arguments, '--help')


def _train(*arguments):
  if '--print_flags' in arguments:
    return _module('experiments.train', *arguments)
  nobody_reads_it = not any(a.startswith(('--output_dir=', '--runtime=')) for a in arguments)
  if '--task=shakespeare' in arguments or nobody_reads_it:
    return _module('experiments.train', *arguments, '--print_flags')
  small = list(_SMALL_RUN)
  if not any(a.startswith('--output_dir=') for a in arguments):
    small.append(f'--output_dir=run_{time.time_ns()}')
  if any(a.startswith('--workers=') for a in arguments):
    ports = [line.split()[1] for line in _WORKERS.read_text().splitlines()]
    small.append('--workers=' + ','.join(f'localhost:{port}' for port in ports))
  return _module('experiments.train', *arguments, *small)


def _sweep(*arguments):
  _module('experiments.sweep', *arguments, '--dry_run')
  if '--executor=slurm' in arguments:
    return
  preset = pathlib.Path('small.flags')
  preset.write_text('\n'.join(_SMALL_RUN))
  _module(
    'experiments.sweep', f'--presets={preset}', f'--output_dir={_flag(arguments, "output_dir")}'
  )


def _report(*arguments):
  rest = [a for a in arguments if not a.startswith(('--table=', '--variant='))]
  if rest != list(arguments):
    command = [sys.executable, '-m', 'experiments.report', *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if f'is a cell of table {_flag(arguments, "table")} in variant' not in found.stderr:
      sys.exit(found.stderr)
  return _module('experiments.report', *rest)


def _study(action, *arguments):
  _module('experiments.study', 'status' if action == 'run' else action, *arguments)


def _worker(*arguments):
  int(_flag(arguments, 'port'))
  with open(_WORKERS, 'a') as started:
    for _ in range(2):
      with socket.socket() as probe:
        probe.bind(('', 0))
        port = probe.getsockname()[1]
      worker = subprocess.Popen(
        [sys.executable, '-m', 'fednar_tff.runtime.worker', f'--port={port}'],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
      )
      started.write(f'{worker.pid} {port}\n')


def stop_workers(folder):
  """Ends the workers that a block in `folder` left running."""
  started = pathlib.Path(folder) / _WORKERS
  for line in started.read_text().splitlines() if started.exists() else ():
    os.kill(int(line.split()[0]), signal.SIGTERM)


def _python(dash_m, module, *arguments):
  if dash_m != '-m':
    sys.exit(f'The docs only run modules: python {dash_m} {module}')
  small = {
    'experiments.train': _train,
    'experiments.sweep': _sweep,
    'experiments.report': _report,
    'experiments.study': _study,
    'fednar_tff.fetch': _fetch,
    'fednar_tff.runtime.worker': _worker,
  }
  small.get(module, lambda *rest: _module(module, *rest))(*arguments)


def _jupyter(command, notebook, *options):
  nbformat.read(notebook, as_version=4)
  small = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('import fednar_tff')])
  nbformat.write(small, 'small.ipynb')
  _module('jupyter', command, 'small.ipynb', *options)


def _make(*arguments):
  subprocess.run(['make', '--dry-run', *arguments], check=True, env=_outer_environment())


def _pip(command, *arguments):
  if command != 'install':
    sys.exit(f'The docs only install: pip {command}')
  for requirement in arguments:
    if requirement == '.':
      importlib.metadata.version('fednar_tff')
    elif not requirement.startswith('--'):
      name, version = requirement.split('==')
      if importlib.metadata.version(name) != version:
        sys.exit(f'The docs ask for {requirement}, tested is {importlib.metadata.version(name)}.')


def _outer_environment():
  """Without this file's folder on PATH, so that `make` is make."""
  first, rest = os.environ['PATH'].split(os.pathsep, 1)
  assert (pathlib.Path(first) / 'make').exists()
  return {**os.environ, 'PATH': rest}


COMMANDS = {'python': _python, 'pip': _pip, 'jupyter': _jupyter, 'make': _make}


def install(folder):
  """Makes commands in `folder` that lead here."""
  for name in COMMANDS:
    command = pathlib.Path(folder) / name
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
    command.chmod(0o755)


if __name__ == '__main__':
  try:
    COMMANDS[sys.argv[1]](*sys.argv[2:])
  except subprocess.CalledProcessError as e:
    sys.exit(e.returncode)
