# SPDX-License-Identifier: Apache-2.0
"""The promises of the repository itself: rooms, BUILD, lock files, set-up, examples in
docstrings."""

import collections
import doctest
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tools import build_file

ROOT = pathlib.Path(__file__).parents[1]
MODULES = build_file.all_modules()
# Which room may import which other (DESIGN: a round flows task -> algorithm -> optimizer).
MAY_IMPORT = {
  'optimizers': set(),
  'algorithms': {'optimizers'},
  'tasks': set(),
  'runtime': set(),
  'simulation': {'algorithms', 'tasks'},
}
# The same for the folders of experiments/: what a run is, reading many, running one.
MAY_IMPORT_IN_EXPERIMENTS = {
  'definition': set(),
  'reading': {'definition'},
  'running': {'definition', 'reading'},
}


def build_targets():
  return build_file.targets_of((ROOT / 'BUILD').read_text())


def test_every_module_is_in_exactly_one_build_target():
  count = collections.Counter(
    source for sources, _ in build_targets().values() for source in sources
  )
  assert count == collections.Counter(MODULES)


def test_deps_of_each_build_target_are_the_imports_of_its_sources():
  targets = build_targets()
  owner = {source: name for name, (sources, _) in targets.items() for source in sources}
  for name, (sources, deps) in targets.items():
    expected = build_file.deps_of(sources, owner) - {name}
    if all(map(build_file.is_test, sources)):
      expected.add(build_file.SUPPORT)  # pytest finds conftest.py without an import.
    assert deps == expected, f'deps of BUILD target {name}'


def test_the_tests_of_build_are_as_the_tool_writes_them():
  libraries, mark, tests = (ROOT / 'BUILD').read_text().partition(build_file.MARK)
  assert mark + tests == build_file.generate(libraries), 'run `python -m tools.build_file`'


@pytest.mark.parametrize(
  ('package', 'may_import'),
  [('fednar_tff', MAY_IMPORT), ('experiments', MAY_IMPORT_IN_EXPERIMENTS)],
)
def test_rooms_import_only_what_the_design_allows(package, may_import):
  for path in MODULES:
    if path.parts[0] != package or len(path.parts) < 3:
      continue
    room = path.parts[1]
    rooms = {
      f.parts[1]
      for f in map(build_file.module_file, build_file.imports_of(path))
      if f and f.parts[0] == package and len(f.parts) > 2
    }
    assert rooms <= may_import[room] | {room}, path


def test_no_test_imports_from_another_test():
  for path in MODULES:
    if path.parts[0] == 'tests':
      used = {*build_file.imports_of(path), *build_file.starts(path)}
      files = {build_file.module_file(name) for name in used} - {None, path}
      assert not any(map(build_file.is_test, files)), path


def test_the_package_never_reads_a_flag():
  for path in MODULES:
    if path.parts[0] == 'fednar_tff':
      assert not {'absl.flags', 'absl.app'} & set(build_file.imports_of(path)), path


def test_only_public_tff_is_used():
  for path in MODULES:
    if path.parts[0] in ('fednar_tff', 'experiments'):
      assert not any(
        name.startswith('tensorflow_federated.python') for name in build_file.imports_of(path)
      ), path


def test_lock_files_are_pinned_hashed_and_name_no_index():
  locks = [*sorted((ROOT / 'requirements').glob('*.txt')), ROOT / 'requirements-tff.txt']
  assert {p.name for p in locks} >= {
    'py310.txt',
    'py311.txt',
    'dev-py310.txt',
    'dev-py311.txt',
    'cluster-py310.txt',
    'cluster-py311.txt',
  }
  for lock in locks:
    entries = lock.read_text().replace('\\\n', ' ').splitlines()
    assert entries
    for entry in entries:
      assert re.match(r'^[\w.\[\]-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+\s*$', entry), (
        lock.name,
        entry[:80],
      )


def test_the_same_tff_is_named_everywhere():
  pinned = (ROOT / 'requirements-tff.txt').read_text().split()[0]
  assert pinned == f'tensorflow-federated=={tff.__version__}'
  for name in ('README.md', 'fednar_tff/__init__.py', 'setup.py', 'tools/lock.sh'):
    assert pinned in (ROOT / name).read_text(), name


def test_import_without_tff_says_which_command_installs_it():
  code = "import sys; sys.modules['tensorflow_federated'] = None; import fednar_tff"
  result = subprocess.run(
    [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=False
  )
  assert result.returncode == 1
  assert (
    result.stderr.splitlines()[-1].strip() == 'pip install --no-deps tensorflow-federated==0.87.0'
  )
  assert 'ImportError: fednar_tff needs TensorFlow Federated' in result.stderr


def test_setup_without_a_suitable_python_says_so_in_one_line(tmp_path):
  (tmp_path / 'tools').mkdir()
  shutil.copy(ROOT / 'tools' / 'setup_venv.sh', tmp_path / 'tools')
  result = subprocess.run(
    ['sh', 'tools/setup_venv.sh'],
    cwd=tmp_path,
    env={**os.environ, 'PYTHON': 'python2.7-not-here'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 1
  assert len(result.stderr.splitlines()) == 1
  assert (
    'needs Python 3.10 or 3.11' in result.stderr
    and 'looked for: python2.7-not-here' in result.stderr
  )
  assert not (tmp_path / '.venv').exists()


def test_make_help_lists_the_commands():
  result = subprocess.run(['make', 'help'], cwd=ROOT, capture_output=True, text=True, check=True)
  listed = [line.split()[0] for line in result.stdout.splitlines()]
  assert set(listed) >= {'setup', 'demo', 'test', 'test-slow', 'bench', 'lint', 'clean'}


@pytest.mark.parametrize('path', [p for p in MODULES if p.parts[0] == 'fednar_tff'], ids=str)
def test_examples_in_docstrings_run(path):
  if path.stem.startswith('_') and path.stem != '__init__':
    pytest.skip('a script, not a module')
  name = '.'.join(path.with_suffix('').parts).removesuffix('.__init__')
  importlib.import_module(name)
  failed, _ = doctest.testmod(sys.modules[name], extraglobs={'tf': tf, 'tff': tff})
  assert failed == 0
