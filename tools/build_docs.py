"""Builds the API reference into a folder: a page for each room of fednar_tff, with its public names and nothing else.

`python -m tools.build_docs docs/_build`, usually through `make docs`.
"""

import argparse
import ast
import importlib
import os
import pathlib

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import pdoc

import fednar_tff

ROOMS = ('optimizers', 'algorithms', 'tasks', 'runtime', 'simulation')


def public_names(path):
  """Returns the names that an `__init__.py` exports (`import x as x`) or defines, in its order."""
  names = []
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, ast.ImportFrom):
      names += [alias.asname for alias in node.names if alias.asname == alias.name]
    elif isinstance(node, ast.FunctionDef):
      names.append(node.name)
  return names


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('folder', type=pathlib.Path, help='Where to.')
  folder = parser.parse_args().folder
  # Without a worker of TFF's, which importing it would leave to the end of this process.
  fednar_tff.runtime.set_in_process_context()
  for name in ('fednar_tff', *(f'fednar_tff.{room}' for room in ROOMS)):
    module = importlib.import_module(name)
    # Without it, pdoc leaves out what a package has from its modules: here, everything.
    module.__all__ = public_names(pathlib.Path(module.__file__))
  pdoc.render.configure(docformat='google', footer_text=f'fednar_tff {fednar_tff.__version__}')
  # The modules inside a room are no part of the interface, even if one is called as its function.
  pdoc.pdoc('fednar_tff', r'!fednar_tff\.\w+\.\w+', output_directory=folder)
  print(f'API reference: {folder / "index.html"}')


if __name__ == '__main__':
  main()
