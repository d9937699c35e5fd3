"""Every Python block in the README and the docs runs, top to bottom, in one namespace per page."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)  # A block may write files.
  blocks = re.findall(r'^```python\n(.*?)^```', page.read_text(), re.MULTILINE | re.DOTALL)
  if not blocks:
    pytest.skip('has no Python blocks')
  namespace = {'__name__': page.stem}
  for block in blocks:
    exec(compile(block, str(page), 'exec'), namespace)
