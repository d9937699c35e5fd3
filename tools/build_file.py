# SPDX-License-Identifier: Apache-2.0
"""Writes the tests' part of BUILD: `python -m tools.build_file`, or with `--check` compares it.

A test file is a `py_test` that depends on what it imports or starts as a process; what is no test
is one library, `test_support`. The libraries and binaries above that part are listed by hand;
tests/test_package.py compares them with the imports.
"""

import argparse
import ast
import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ('fednar_tff', 'experiments', 'benchmarks', 'tests')
MARK = '# The tests, written by `python -m tools.build_file`.\n'
SUPPORT = 'test_support'
_MAIN = pathlib.Path('tests/bazel_main.py')


def all_modules() -> list[pathlib.Path]:
  """Returns the Python files that have a place in BUILD."""
  return sorted(
    path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob('*.py')
  )


def imports_of(path: pathlib.Path) -> Iterator[str]:
  """Yields the dotted names that a module imports, those inside functions too."""
  yield from imports_of_source((ROOT / path).read_text())


def imports_of_source(source: str) -> Iterator[str]:
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def starts(path: pathlib.Path) -> Iterator[str]:
  """Yields the modules that a module starts as processes, by name or in a program text."""
  for node in ast.walk(ast.parse((ROOT / path).read_text())):
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
      continue
    if re.fullmatch(r'\w+(\.\w+)+', node.value):
      file = pathlib.Path(*node.value.split('.')).with_suffix('.py')
      yield from [node.value] if (ROOT / file).is_file() else []
    elif 'import ' in node.value:
      try:
        yield from imports_of_source(node.value)
      except SyntaxError:
        pass  # A text, not a program.


def module_file(dotted_name: str) -> pathlib.Path | None:
  """Returns the file of this repository that an imported name comes from, or None."""
  parts = dotted_name.split('.')
  for end in range(len(parts), 0, -1):
    base = pathlib.Path(*parts[:end])
    for candidate in (base.with_suffix('.py'), base / '__init__.py'):
      if (ROOT / candidate).is_file():
        return candidate
  return None


def targets_of(text: str) -> dict[str, tuple[list[pathlib.Path], set[str]]]:
  """Returns {target: (sources, deps)} of a BUILD file."""
  targets = {}
  for node in ast.parse(text).body:
    call = getattr(node, 'value', None)
    if isinstance(call, ast.Call) and call.func.id.startswith('py_'):
      arguments = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg != 'data'}
      # All tests have the same main, which is a source of `test_support`.
      shared = arguments['main'] if call.func.id == 'py_test' else None
      sources = [pathlib.Path(source) for source in arguments['srcs'] if source != shared]
      targets[arguments['name']] = (sources, {dep.lstrip(':') for dep in arguments.get('deps', [])})
  return targets


def deps_of(sources: list[pathlib.Path], owner: dict[pathlib.Path, str]) -> set[str]:
  """Returns the targets that have what the sources import or start."""
  used = (name for source in sources for name in (*imports_of(source), *starts(source)))
  return {owner[file] for file in map(module_file, used) if file in owner}


def is_test(path: pathlib.Path) -> bool:
  return path.parts[0] == 'tests' and path.name.startswith('test_')


def _data_of(path: pathlib.Path) -> str:
  # A test that looks for the root of the repository reads files there; all others need pytest's
  # options only.
  return ':checkout' if 'parents[' in (ROOT / path).read_text() else 'pyproject.toml'


def _list(name: str, entries: list[str]) -> str:
  return f'    {name} = [\n' + ''.join(f'        "{entry}",\n' for entry in entries) + '    ],\n'


def generate(libraries: str) -> str:
  """Returns the tests' part for the libraries above it."""
  owner = {s: name for name, (sources, _) in targets_of(libraries).items() for s in sources}
  tests = [path for path in all_modules() if path.parts[0] == 'tests']
  support = [path for path in tests if not is_test(path)]
  owner.update(dict.fromkeys(support, SUPPORT))
  parts = [
    MARK,
    '\n# What tests read of the checkout itself: docs, flags, Makefile.\n',
    'filegroup(\n    name = "checkout",\n    testonly = True,\n',
    '    srcs = glob(["**"], exclude = ["build/**", "dist/**", "**/__pycache__/**"]),\n)\n',
    f'\npy_library(\n    name = "{SUPPORT}",\n    testonly = True,\n',
    _list('srcs', [str(path) for path in support]),
    _list('deps', [f':{dep}' for dep in sorted(deps_of(support, owner) - {SUPPORT})]),
    ')\n',
  ]
  for path in tests:
    if not is_test(path):
      continue
    deps = sorted(deps_of([path], owner) | {SUPPORT})
    parts.append(
      f'\npy_test(\n    name = "{path.with_suffix("")}",\n    timeout = "long",\n'
      + _list('srcs', [str(_MAIN), str(path)])
      + f'    args = ["{path}"],\n    data = ["{_data_of(path)}"],\n    main = "{_MAIN}",\n'
      + _list('deps', [f':{dep}' for dep in deps])
      + ')\n'
    )
  return ''.join(parts)


def main(arguments: list[str]) -> int:
  parser = argparse.ArgumentParser(prog='python -m tools.build_file', description=__doc__)
  parser.add_argument('--check', action='store_true', help='Write nothing.')
  check = parser.parse_args(arguments).check
  build = ROOT / 'BUILD'
  libraries, _, _ = build.read_text().partition(MARK)
  text = libraries + generate(libraries)
  if text == build.read_text():
    return 0
  if check:
    print('build_file: BUILD is out of date; run `python -m tools.build_file`.', file=sys.stderr)
    return 1
  build.write_text(text)
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
