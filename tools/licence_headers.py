# SPDX-License-Identifier: Apache-2.0
"""Puts the licence into the first lines of every source file: `python -m tools.licence_headers`, or
with `--check` looks for it.

The header is the one line that tools read, as SPDX defines it; the whole text is in LICENSE. It
stands first, or after the line that names an interpreter. Empty files stay empty.
"""

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
HEADER = '# SPDX-License-Identifier: Apache-2.0\n'
_C_HEADER = '// SPDX-License-Identifier: Apache-2.0\n'
_HEADERS = {'.py': HEADER, '.sh': HEADER, '.c': _C_HEADER}


def source_files(root: pathlib.Path) -> list[pathlib.Path]:
  """Returns the source files that git knows or would add."""
  listed = subprocess.run(
    ['git', 'ls-files', '--cached', '--others', '--exclude-standard', '-z'],
    cwd=root,
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  names = (name for name in listed.split('\0') if name)
  return sorted({root / name for name in names if pathlib.PurePath(name).suffix in _HEADERS})


def with_header(text: str, header: str) -> str:
  """Returns the text with the header, where it is not there yet."""
  if not text:
    return text
  interpreter = text.startswith('#!')
  first, rest = text.split('\n', 1) if interpreter else ('', text)
  if rest.startswith(header):
    return text
  return f'{first}\n{header}{rest}' if interpreter else header + rest


def main(arguments: list[str]) -> int:
  parser = argparse.ArgumentParser(prog='python -m tools.licence_headers', description=__doc__)
  parser.add_argument('--check', action='store_true', help='Write nothing.')
  check = parser.parse_args(arguments).check
  missing = 0
  for path in source_files(ROOT):
    if not path.is_file():
      continue  # Removed, and not yet committed.
    text = path.read_text()
    changed = with_header(text, _HEADERS[path.suffix])
    if changed == text:
      continue
    missing += 1
    if check:
      print(f'licence_headers: {path.relative_to(ROOT)} has none; run the tool without --check.')
    else:
      path.write_text(changed)
  return 1 if check and missing else 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
