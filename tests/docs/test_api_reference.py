"""The API reference: every public name is in it, nothing else is, and it needs no network."""

import pathlib
import re
import subprocess
import sys

import pytest

import fednar_tff

ROOT = pathlib.Path(__file__).parents[2]
ROOMS = ('optimizers', 'algorithms', 'tasks', 'runtime', 'simulation')


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
  folder = tmp_path_factory.mktemp('reference')
  command = [sys.executable, '-m', 'tools.build_docs', str(folder)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr
  assert not done.stderr
  return folder


@pytest.mark.slow
def test_has_a_page_for_each_room_with_its_public_names(reference):
  assert {p.stem for p in (reference / 'fednar_tff').iterdir()} == set(ROOMS)
  for room in ROOMS:
    exports = re.findall(
      r'^from \S+ import (?:\(\s+)?(\w+) as \1,?$|^def (\w+)',
      (ROOT / 'fednar_tff' / room / '__init__.py').read_text(),
      re.MULTILINE,
    )
    names = {imported or defined for imported, defined in exports}
    assert names and all(hasattr(getattr(fednar_tff, room), name) for name in names)
    page = (reference / 'fednar_tff' / f'{room}.html').read_text()
    assert set(re.findall(r'<section id="(\w+)"', page)) == names


@pytest.mark.slow
def test_loads_nothing_from_the_network_and_names_no_machine(reference):
  for page in reference.rglob('*.html'):
    text = page.read_text()
    assert not re.search(r'(src|<link[^>]* href)="https?:', text), page
    assert str(ROOT) not in text
