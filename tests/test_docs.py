# SPDX-License-Identifier: Apache-2.0
"""Every code block in the README and the docs runs: Python as it is, shell with the long commands
made small."""

import os
import pathlib
import re
import subprocess

import pytest

from tests import documented_command, warm_command

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]


def _blocks(page, language):
  text = page.read_text()
  return re.findall(rf'^```{language}\n(.*?)^```', text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_every_block_has_a_known_language(page):
  opening = re.findall(r'^```(.*)$', page.read_text(), re.MULTILINE)[::2]
  assert set(opening) <= {'python', 'sh', 'text'}  # `text` is not code.


def _programs(page):
  """A block of the README is a program, since a reader takes one of them; the other pages go from
  top to bottom."""
  blocks = _blocks(page, 'python')
  return blocks if page.name == 'README.md' else ['\n'.join(blocks)]


# Those that take longer than the others together.
LONG_PROGRAMS = ('recipes.md', 'algorithms.md')
PYTHON_PROGRAMS = [
  pytest.param(
    program,
    id=f'{page.name}-{number}',
    marks=[pytest.mark.slow] if page.name in LONG_PROGRAMS else [],
  )
  for page in PAGES
  for number, program in enumerate(_programs(page))
  if program
]


@pytest.mark.parametrize('program', PYTHON_PROGRAMS)
def test_python_blocks_run(program, tmp_path):
  done = warm_command.run(['-c', program], str(tmp_path), os.environ)
  assert done.returncode == 0, done.stderr


# Each starts several programs; those of the README are what a newcomer types first. Its last one
# has the doctor, which starts every runtime.
SHELL_BLOCKS = [
  pytest.param(
    block,
    id=f'{page.name}-{number}',
    marks=[] if page.name == 'README.md' and 'doctor' not in block else [pytest.mark.slow],
  )
  for page in PAGES
  for number, block in enumerate(_blocks(page, 'sh'))
]


@pytest.mark.parametrize('block', SHELL_BLOCKS)
def test_shell_blocks_run(block, tmp_path):
  """See documented_command.py for what is made small."""
  for entry in ROOT.iterdir():  # A checkout, without what runs have left in it.
    if not entry.name.startswith('.') and entry.name not in ('runs', 'reports'):
      (tmp_path / entry.name).symlink_to(entry)
  for folder in ('commands', '.venv/bin'):
    documented_command.install(tmp_path / folder)
  try:
    done = subprocess.run(
      ['bash', '-euo', 'pipefail', '-c', block],
      cwd=tmp_path,
      env={
        **os.environ,
        'PATH': f'{tmp_path / "commands"}{os.pathsep}{os.environ["PATH"]}',
        'JUPYTER_DATA_DIR': str(tmp_path),  # Not the user's own kernels.
      },
      capture_output=True,
      text=True,
      timeout=300,
    )
  finally:
    documented_command.stop_workers(tmp_path)
  assert done.returncode == 0, done.stdout + done.stderr
