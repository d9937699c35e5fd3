# SPDX-License-Identifier: Apache-2.0
"""Where measurements are kept: one small JSON file each, and one file of all that is committed.

A measurement goes into `FOLDER`, which is not committed. `collect` takes what is there into
`COMMITTED`, from which `benchmarks.page` writes docs/performance.md.
"""

import datetime
import json
import os
import pathlib
import platform
import subprocess
from typing import Any

_ROOT = pathlib.Path(__file__).parents[1]
FOLDER = _ROOT / 'runs' / 'bench'
COMMITTED = _ROOT / 'benchmarks' / 'results.json'
_DIGITS = 4


def _git(checkout, *arguments):
  command = ['git', '-C', str(checkout), *arguments]
  return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def commit_of(checkout: pathlib.Path) -> str:
  """Returns a checkout's commit; with `-dirty` if code differs from it; 'unknown' without Git."""
  found = _git(checkout, 'rev-parse', '--short=7', 'HEAD')
  code = ('*.py', ':!tests', ':!experiments')
  is_dirty = _git(checkout, 'status', '--porcelain', '--untracked-files=no', '--', *code)
  return (found or 'unknown') + ('-dirty' if is_dirty else '')


def _code() -> str:
  """Returns what stands for the code that is measured: docs and results may change beside it."""
  package = _git(_ROOT, 'rev-parse', 'HEAD:fednar_tff')
  return package + ('-dirty' if commit_of(_ROOT).endswith('-dirty') else '')


def machine() -> str:
  """Returns what this machine is, in one line."""
  cpu = platform.processor() or platform.machine()
  info = pathlib.Path('/proc/cpuinfo')
  if info.exists():
    names = [line for line in info.read_text().splitlines() if line.startswith('model name')]
    cpu = names[0].split(':', 1)[1].strip() if names else cpu
  gigabytes = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
  cores = len(os.sched_getaffinity(0))
  return f'{cpu}, {cores} cores, {gigabytes:.0f} GB, Python {platform.python_version()}'


def _rounded(value):
  """Keeps as many digits as mean something, so that the file stays small."""
  if isinstance(value, float):
    return float(f'{value:.{_DIGITS}g}')
  if isinstance(value, dict):
    return {key: _rounded(entry) for key, entry in value.items()}
  return [_rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


def _path(name):
  return FOLDER / f'{name}.json'


def save(name: str, record: dict[str, Any]) -> None:
  """Keeps a measurement under a name, in place of an earlier one of that name."""
  FOLDER.mkdir(parents=True, exist_ok=True)
  record = {
    **record,
    'commit': commit_of(_ROOT),
    'code': _code(),
    'date': datetime.datetime.now(datetime.timezone.utc).strftime('%Y-%m-%d %H:%M UTC'),
    'machine': machine(),
  }
  _path(name).write_text(json.dumps(_rounded(record), indent=1) + '\n')


def is_done(name: str) -> bool:
  """Returns whether a measurement of that name, of this version of the package, is there."""
  return _path(name).exists() and json.loads(_path(name).read_text())['code'] == _code()


def load() -> dict[str, dict[str, Any]]:
  """Returns the committed measurements by name."""
  return json.loads(COMMITTED.read_text()) if COMMITTED.exists() else {}


def collect() -> dict[str, dict[str, Any]]:
  """Takes the measurements of `FOLDER` into `COMMITTED`; returns all that are there then."""
  found = load()
  for path in FOLDER.glob('*.json'):
    if '-tiny' not in path.stem:  # Which only shows that a contender works.
      found[path.stem] = json.loads(path.read_text())
  entries = (f'{json.dumps(name)}: {json.dumps(found[name])}' for name in sorted(found))
  COMMITTED.write_text('{\n' + ',\n'.join(entries) + '\n}\n')
  return found
