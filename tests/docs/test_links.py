# SPDX-License-Identifier: Apache-2.0
"""Every link between pages leads somewhere, every page is in the navigation, a newcomer's questions
are on the map, and prose is wrapped."""

import ast
import pathlib
import re
import unicodedata

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted(
  path
  for path in (*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md'))
  if path.name != 'CHANGELOG.md'
)
LINK = re.compile(r'\]\(([^)\s]+)\)')


def _without_code(text):
  """Without blocks of code and code in lines, whose brackets are no links."""
  text = re.sub(r'^```.*?^```', '', text, flags=re.MULTILINE | re.DOTALL)
  return re.sub(r'`[^`\n]*`', 'code', text)


def _links(page):
  return [link for link in LINK.findall(_without_code(page.read_text())) if '://' not in link]


def _anchors(page):
  """Returns the anchors of a page's headings, as the hosts that show Markdown make them."""
  text = re.sub(r'^```.*?^```', '', page.read_text(), flags=re.MULTILINE | re.DOTALL)
  anchors = set()
  for heading in re.findall(r'^#+ (.*)$', text, re.MULTILINE):
    kept = ''.join(
      c for c in heading.lower() if c in ' -_' or unicodedata.category(c)[0] in ('L', 'N')
    )
    anchors.add(kept.replace(' ', '-'))
  return anchors


@pytest.mark.parametrize('page', PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
  for link in _links(page):
    name, _, anchor = link.partition('#')
    target = (page.parent / name).resolve() if name else page
    assert target.exists(), link
    if anchor:
      assert anchor in _anchors(target), link


@pytest.mark.parametrize(
  'page', ['README.md', 'SECURITY.md', 'docs/contributing.md', 'docs/design.md', 'docs/index.md']
)
def test_files_that_a_page_about_this_repository_names_exist(page):
  text = re.sub(r'^```.*?^```', '', (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
  names = re.findall(r'`([\w./*-]+\.(?:py|md|txt|in|sh|yml|yaml|toml|ipynb|jsonl))`', text)
  folders = ('benchmarks', 'docs', 'experiments', 'fednar_tff', 'tests', 'tools')
  for name in names:
    found = [*ROOT.glob(name), *(path for f in folders for path in (ROOT / f).rglob(name))]
    assert found, name


@pytest.mark.parametrize('page', PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_have_at_most_100_characters(page):
  made = r'^<!-- begin .*?^<!-- end .*?$'  # From results, by `make results` or `make bench`.
  text = re.sub(made, '', page.read_text(), flags=re.MULTILINE | re.DOTALL)
  text = re.sub(r'^```.*?^```', '', text, flags=re.MULTILINE | re.DOTALL)
  for line in text.splitlines():
    if not line.startswith(('|', '!', '    ')):
      # Longer may be only what cannot be broken.
      pieces = re.sub(r'`[^`]*`', 'code', line).removeprefix('- ').split()
      assert len(line) <= 100 or len(pieces) == 1, line


def test_pages_of_the_site_link_only_to_the_site():
  for page in PAGES:
    if page.parent == ROOT:
      continue
    for link in _links(page):
      target = (page.parent / link.partition('#')[0]).resolve()
      assert target.is_relative_to(ROOT / 'docs'), (page.name, link)


def test_a_link_that_leads_nowhere_is_found(tmp_path):
  page = tmp_path / 'page.md'
  page.write_text('# A heading\n[a](b.md) `[c](d.md)`\n```\n[e](f.md)\n```\n')
  assert _links(page) == ['b.md']
  assert _anchors(page) == {'a-heading'}


def _navigation():
  """Returns the pages that docs/conf.py names."""
  for node in ast.parse((ROOT / 'docs' / 'conf.py').read_text()).body:
    if isinstance(node, ast.Assign) and node.targets[0].id == 'NAVIGATION':
      entries = [e for pages in ast.literal_eval(node.value).values() for e in pages]
      return [re.sub(r'.*<(.*)>', r'\1', entry) for entry in entries]
  raise AssertionError('docs/conf.py must have NAVIGATION')


def test_every_page_is_in_the_navigation_once():
  docs = ROOT / 'docs'
  pages = {str(p.relative_to(docs).with_suffix('')) for p in docs.rglob('*.md')}
  pages |= {str(p.relative_to(docs).with_suffix('')) for p in docs.rglob('*.rst')}
  assert sorted(_navigation()) == sorted(pages - {'index'})


def test_readme_is_short_and_leads_to_the_map():
  readme = ROOT / 'README.md'
  assert len(readme.read_text().splitlines()) <= 110
  assert 'docs/index.md' in _links(readme)


@pytest.mark.parametrize(
  'question',
  [
    'add NAR to my pipeline',
    'reproduce Table 1',
    'train on two machines',
    'add an algorithm',
    'add a data set',
    'why is it slow',
    'is it using my GPU',
  ],
)
def test_the_map_answers_a_newcomer(question):
  index = (ROOT / 'docs' / 'index.md').read_text()
  rows = [line for line in index.splitlines() if question in line]
  assert len(rows) == 1 and LINK.search(rows[0])
