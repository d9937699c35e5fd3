# SPDX-License-Identifier: Apache-2.0
"""Runs TFF's own tests on both runtimes: `make conformance TFF=path/to/tensorflow-federated`.

The path is a checkout of TFF's repository at the tag of the installed version. Its test files, and
the helpers that TFF's wheel leaves out, are laid over the installed package in a temporary folder.
Then each file runs on each runtime, in a process of its own with a time-out, and every process that
it leaves behind is ended. Nothing of TFF is kept.

The runtime is put in place of the one that a file sets for itself:

- `in_process` is `fednar_tff.runtime`'s, with secure sums in the clear;
- `tff_local` is TFF's local runtime, the one that its users have;
- `as_written` leaves the file as it is. Some files set a runtime that TFF has for tests only.

Exits with 1 if a test fails in-process that passes on another runtime of the same call.
"""

import argparse
import collections
import concurrent.futures
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile
import uuid
import xml.etree.ElementTree

_ROOT = pathlib.Path(__file__).parents[1]
_FOLDERS = ('learning', 'aggregators', 'analytics', 'simulation')
_RUNTIMES = ('in_process', 'tff_local', 'as_written')
_MARK = 'FEDNAR_CONFORMANCE'
_SETTERS = {
  'native': ('sync_local_cpp', 'async_local_cpp'),
  'test': ('sync_test_cpp', 'async_test_cpp'),
}
Counts = collections.namedtuple('Counts', ['passed', 'failed', 'skipped', 'remark'])


def _installed_package() -> pathlib.Path:
  return pathlib.Path(importlib.util.find_spec('tensorflow_federated').origin).parent


def lay_over(checkout: pathlib.Path, folder: pathlib.Path) -> None:
  """Links the installed package into `folder`, and the files of a checkout that it lacks."""
  for source in (_installed_package(), checkout / 'tensorflow_federated'):
    for file in source.rglob('*'):
      target = folder / 'tensorflow_federated' / file.relative_to(source)
      wanted = source != checkout / 'tensorflow_federated' or file.suffix == '.py'
      if file.is_file() and wanted and '__pycache__' not in file.parts and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(file)


def find_tests(checkout: pathlib.Path, pattern: str) -> list[str]:
  """Returns the test files whose path contains the regular expression."""
  package = checkout / 'tensorflow_federated' / 'python'
  files = [f for folder in _FOLDERS for f in sorted((package / folder).rglob('*_test.py'))]
  names = [str(f.relative_to(package)) for f in files]
  return [name for name in names if re.search(pattern, name)]


def _replace_contexts(runtime: str) -> None:
  """Makes every function of TFF's that sets or creates a local context do so with `runtime`."""
  from tensorflow_federated.python.core.backends.native import execution_contexts as native
  from tensorflow_federated.python.core.backends.test import execution_contexts as test
  from tensorflow_federated.python.core.impl.context_stack import context_stack_impl

  if runtime == 'in_process':
    from fednar_tff import runtime as ours

    def create(is_async, default_num_clients=0, *_, **__):
      make = ours.create_async_in_process_context if is_async else ours.create_in_process_context
      return make(default_num_clients=default_num_clients, simulate_secure_sums_in_the_clear=True)
  else:
    originals = {
      False: native.create_sync_local_cpp_execution_context,
      True: native.create_async_local_cpp_execution_context,
    }

    def create(is_async, *arguments, **options):
      return originals[is_async](*arguments, **options)

  def set_default(is_async, *arguments, **options):
    context_stack_impl.context_stack.set_default_context(create(is_async, *arguments, **options))

  for module, names in ((native, _SETTERS['native']), (test, _SETTERS['test'])):
    for name in names:
      is_async = name.startswith('async')
      setattr(
        module,
        f'create_{name}_execution_context',
        lambda *a, is_async=is_async, **o: create(is_async, *a, **o),
      )
      setattr(
        module,
        f'set_{name}_execution_context',
        lambda *a, is_async=is_async, **o: set_default(is_async, *a, **o),
      )
  set_default(False)


def _run_here(file: str, runtime: str) -> None:
  if runtime == 'in_process':
    import fednar_tff  # noqa: F401 - before TFF, so that no worker of TFF's is started
  if runtime != 'as_written':
    _replace_contexts(runtime)
  sys.argv = [file]
  runpy.run_path(file, run_name='__main__')


def _end_what_is_left(mark: str) -> int:
  """Ends the processes that have the mark in their environment, and returns how many there were."""
  import psutil

  ended = 0
  for process in psutil.process_iter():
    try:
      if process.environ().get(_MARK) == mark:
        process.kill()
        ended += 1
    except psutil.Error:
      pass  # Another user's, or it has ended meanwhile.
  return ended


def _read_counts(report: pathlib.Path, status: int | None, output: str) -> tuple[Counts, list[str]]:
  """Returns the counts of a file, and the names of the tests that failed."""
  remark = 'time-out' if status is None else '' if status in (0, 1) else f'ended with {status}'
  try:
    cases = xml.etree.ElementTree.parse(report).getroot().iter('testcase')
  except (FileNotFoundError, xml.etree.ElementTree.ParseError):
    last = output.strip().splitlines()[-1:] or ['']
    return Counts(0, 0, 0, f'{remark or "no report"}: {last[0][:100]}'), []
  passed, failed, skipped = 0, [], 0
  for case in cases:
    if case.find('failure') is not None or case.find('error') is not None:
      failed.append(f'{case.get("classname").split(".")[-1]}.{case.get("name")}')
    elif case.find('skipped') is not None or case.get('status') == 'notrun':
      skipped += 1
    else:
      passed += 1
  return Counts(passed, len(failed), skipped, remark), failed


def run_file(overlay: pathlib.Path, name: str, runtime: str, seconds: float):
  """Runs one test file on one runtime, in a process of its own."""
  mark = uuid.uuid4().hex
  report = overlay / f'{mark}.xml'
  path = os.pathsep.join([str(overlay), str(_ROOT)])
  environment = {
    **os.environ,
    'PYTHONPATH': path,
    'XML_OUTPUT_FILE': str(report),
    'TF_CPP_MIN_LOG_LEVEL': '3',
    _MARK: mark,
  }
  file = overlay / 'tensorflow_federated' / 'python' / name
  command = [sys.executable, '-m', 'tools.conformance', '--here', str(file), runtime]
  with open(overlay / f'{mark}.log', 'w+') as log:
    # Into a file: a worker that is left behind would hold a pipe open.
    process = subprocess.Popen(
      command, cwd=overlay, env=environment, stdout=log, stderr=subprocess.STDOUT
    )
    try:
      status = process.wait(seconds)
    except subprocess.TimeoutExpired:
      status = None
    finally:
      process.kill()
      process.wait()
      _end_what_is_left(mark)
    log.seek(0)
    return _read_counts(report, status, log.read())


def _line(name: str, results: dict[str, tuple[Counts, list[str]]]) -> str:
  cells = []
  for runtime, (counts, _) in results.items():
    total = counts.passed + counts.failed
    remark = f' ({counts.remark})' if counts.remark else ''
    cells.append(f'{runtime} {counts.passed} of {total}{remark}')
  return f'{name}: {", ".join(cells)}'


def worse_in_process(name: str, results: dict[str, tuple[Counts, list[str]]]) -> list[str]:
  """Lists what failed in-process and not on every other runtime."""
  if 'in_process' not in results:
    return []
  counts, failed = results['in_process']
  others = [other for runtime, (_, other) in results.items() if runtime != 'in_process']
  problems = [*failed, *([counts.remark] if counts.remark else [])]
  return [f'{name}: {p}' for p in problems if not others or not all(p in o for o in others)]


def main() -> int:
  parser = argparse.ArgumentParser(
    prog='conformance', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--tff', type=pathlib.Path, help="a checkout of TFF's repository")
  parser.add_argument('--runtimes', default='in_process,tff_local', help='among the three above')
  parser.add_argument('--only', default='', help='a regular expression for the paths of the files')
  parser.add_argument('--seconds', type=float, default=600, help='the time-out of a file')
  parser.add_argument('--parallel', type=int, default=1, help='how many files at a time')
  parser.add_argument('--json', type=pathlib.Path, help='a file for the results, one line for each')
  parser.add_argument('--here', nargs=2, metavar=('FILE', 'RUNTIME'), help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.here:
    _run_here(*arguments.here)
    return 0
  runtimes = arguments.runtimes.split(',')
  if unknown := set(runtimes) - set(_RUNTIMES):
    parser.error(f'--runtimes must be among {_RUNTIMES}, found {sorted(unknown)}.')
  if arguments.tff is None or not (arguments.tff / 'tensorflow_federated' / 'python').is_dir():
    parser.error(
      "--tff must be a checkout of TFF's repository, tag "
      f'v{importlib.metadata.version("tensorflow-federated")}, '
      f'found {arguments.tff}. With make: make conformance TFF=path/to/tensorflow-federated'
    )
  checkout = arguments.tff.resolve()
  names = find_tests(checkout, arguments.only)
  if not names:
    parser.error(f'--only must match a test file, found none for {arguments.only!r}.')
  sums = {runtime: [0, 0] for runtime in runtimes}
  worse = []
  with tempfile.TemporaryDirectory() as folder:
    overlay = pathlib.Path(folder)
    lay_over(checkout, overlay)

    def run_all(name):
      return {r: run_file(overlay, name, r, arguments.seconds) for r in runtimes}

    with concurrent.futures.ThreadPoolExecutor(arguments.parallel) as pool:
      for name, results in zip(names, pool.map(run_all, names)):
        print(_line(name, results), flush=True)
        if arguments.json:
          with open(arguments.json, 'a') as out:
            counts = {r: (*c, failed) for r, (c, failed) in results.items()}
            out.write(json.dumps({'file': name, **counts}) + '\n')
        for runtime, (counts, _) in results.items():
          sums[runtime][0] += counts.passed
          sums[runtime][1] += counts.passed + counts.failed
        worse += worse_in_process(name, results)
  print()
  for runtime, (passed, total) in sums.items():
    print(f'{runtime}: {passed} of {total} tests passed in {len(names)} files')
  if worse:
    print('Failed in-process only:', *worse, sep='\n  ')
  return 1 if worse else 0


if __name__ == '__main__':
  sys.exit(main())
