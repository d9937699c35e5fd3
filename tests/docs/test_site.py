"""The site: built without a warning, it has every public name and no other, and needs no network."""

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
  # Modules inside of a room are no public names, unless a function has taken the place of one, as `simulation.run`.
  public = [
    name
    for name in dir(module)
    if not name.startswith('_') and not isinstance(getattr(module, name), types.ModuleType)
  ]
  assert sorted(_documented(room)) == public


def test_the_package_has_the_rooms_and_its_modules_and_nothing_else():
  public = {name for name in dir(fednar_tff) if not name.startswith('_')}
  modules = {p.stem for p in (ROOT / 'fednar_tff').glob('*.py') if not p.stem.startswith('_')}
  assert set(ROOMS) <= public
  assert public - set(ROOMS) - modules <= {'importlib', 'sys', 'warnings'}


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
