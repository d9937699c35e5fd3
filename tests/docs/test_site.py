# SPDX-License-Identifier: Apache-2.0
"""The site: built without a warning, it has every public name and no other, and needs no
network."""

import inspect
import pathlib
import re
import subprocess
import sys
import types

import pytest

import fednar_tff

ROOT = pathlib.Path(__file__).parents[2]
ROOMS = ('optimizers', 'algorithms', 'tasks', 'runtime', 'simulation')


def _documented(room):
  page = (ROOT / 'docs' / 'api' / f'{room}.rst').read_text()
  return re.findall(r'^\.\. (?:auto\w+|data):: (\w+)$', page, re.MULTILINE)


@pytest.mark.parametrize('room', ROOMS)
def test_public_names_are_exactly_those_of_the_reference(room):
  module = getattr(fednar_tff, room)
  # Modules inside of a room are no public names, unless a function has taken the place of one, as
  # `simulation.run`.
  public = [
    name
    for name in dir(module)
    if not name.startswith('_') and not isinstance(getattr(module, name), types.ModuleType)
  ]
  assert sorted(_documented(room)) == public


def _functions(thing, name):
  """Yields a function, or the methods that a class defines itself, with their names."""
  if not isinstance(thing, type):
    yield name, thing
    return
  for attribute, value in vars(thing).items():
    value = value.fget if isinstance(value, property) else getattr(value, '__func__', value)
    if isinstance(value, types.FunctionType) and not attribute.startswith('_'):
      yield f'{name}.{attribute}', value
  construct = vars(thing).get('__init__')
  # What attrs generates takes its annotations from the fields.
  if isinstance(construct, types.FunctionType) and not construct.__code__.co_filename.startswith(
    '<'
  ):
    yield name, construct


@pytest.mark.parametrize('room', ROOMS)
def test_public_functions_are_fully_annotated(room):
  bare = []
  for name in _documented(room):
    thing = getattr(getattr(fednar_tff, room), name)
    if not callable(thing):
      continue
    for label, function in _functions(thing, name):
      signature = inspect.signature(function)
      bare += [
        f'{label}({parameter.name})'
        for position, parameter in enumerate(signature.parameters.values())
        if parameter.annotation is parameter.empty
        and not (position == 0 and parameter.name in ('self', 'cls'))
      ]
      if signature.return_annotation is signature.empty and function.__name__ != '__init__':
        bare.append(f'{label} -> ?')
  assert not bare


def test_the_package_has_the_rooms_and_its_modules_and_nothing_else():
  own = {
    name
    for name, value in vars(fednar_tff).items()
    # Not what Python brings, such as `sys`.
    if not name.startswith('_')
    and getattr(value, '__name__', 'fednar_tff.').startswith('fednar_tff.')
  }
  modules = {p.stem for p in (ROOT / 'fednar_tff').glob('*.py') if not p.stem.startswith('_')}
  assert set(ROOMS) <= own <= set(ROOMS) | modules


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  folder = tmp_path_factory.mktemp('site')
  command = [sys.executable, '-m', 'sphinx', '-q', '-W', '--keep-going', '-b', 'html']
  command += [str(ROOT / 'docs'), str(folder)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  return folder


@pytest.mark.slow
def test_has_every_public_name(site):
  for room in ROOMS:
    page = (site / 'api' / f'{room}.html').read_text()
    for name in _documented(room):
      assert f'id="fednar_tff.{room}.{name}"' in page, name


@pytest.mark.slow
def test_loads_nothing_from_the_network_and_names_no_machine(site):
  for page in site.rglob('*.html'):
    text = page.read_text()
    assert not re.search(r'(src|<link[^>]* href)="https?:', text), page
    assert str(ROOT) not in text


@pytest.mark.slow
def test_is_searchable(site):
  index = (site / 'searchindex.js').read_text()
  assert 'scaffold' in index and 'api/algorithms' in index
