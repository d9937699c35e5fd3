# SPDX-License-Identifier: Apache-2.0
"""Every command of the repository: its help does nothing else, and nothing of TensorFlow's stands
before it."""

import ast
import os
import pathlib
import subprocess
import sys
from concurrent import futures

from tests import warm_command

ROOT = pathlib.Path(__file__).parents[1]
# Run by path and by the package alone.
NO_COMMAND = 'supervisor.py'
# What these print while TensorFlow is imported is not looked at: it takes half a minute in all.
FOR_DEVELOPERS = ('benchmarks.', 'tools.')


def commands():
  """Yields the modules that are run by `python -m`."""
  for folder in ('fednar_tff', 'experiments', 'benchmarks', 'tools'):
    for path in sorted((ROOT / folder).rglob('*.py')):
      if "__name__ == '__main__'" in path.read_text() and path.name != NO_COMMAND:
        yield '.'.join(path.relative_to(ROOT).with_suffix('').parts), path


def ask_for_help(module, cwd):
  environment = {k: v for k, v in os.environ.items() if k != 'TF_CPP_MIN_LOG_LEVEL'}
  environment['PYTHONPATH'] = str(ROOT)
  command = ['-m', module, '--help']
  if module.startswith(FOR_DEVELOPERS):
    return warm_command.run(command, str(cwd), environment)
  return subprocess.run(
    [sys.executable, *command],
    cwd=cwd,
    env=environment,
    capture_output=True,
    text=True,
    timeout=120,
  )


def test_help_of_every_command_says_what_it_does_and_does_nothing(tmp_path):
  found = dict(commands())
  assert {'experiments.train', 'fednar_tff.doctor', 'benchmarks.input'} <= set(found)
  with futures.ThreadPoolExecutor(2) as pool:
    results = dict(zip(found, pool.map(lambda module: ask_for_help(module, tmp_path), found)))
  for module, result in results.items():
    docstring = ast.get_docstring(ast.parse(found[module].read_text()))
    first_words = ' '.join(docstring.split()[:8])
    assert first_words in ' '.join(result.stdout.split()), module
    assert 'tensorflow/' not in result.stderr and 'Traceback' not in result.stderr, (
      f'{module}: {result.stderr}'
    )
  assert not list(tmp_path.iterdir())
