# SPDX-License-Identifier: Apache-2.0
"""`report --format=html`: one page with everything, which loads nothing."""

import html.parser
import re

import pytest

from tests.experiments.command import call
from tests.experiments.run_files import write_run

DIGITS = {'task': 'digits', 'model': 'mlp', 'alpha': 0.3}


class Checker(html.parser.HTMLParser):
  """Collects what a page loads and shows, and checks that its elements are closed."""

  VOID = {'meta', 'link', 'br', 'img', 'hr'}

  def __init__(self, text):
    super().__init__()
    self.open, self.loaded, self.ids, self.texts = [], [], [], []
    self.feed(text)
    assert not self.open

  def handle_starttag(self, tag, attributes):
    named = dict(attributes)
    if tag not in self.VOID:
      self.open.append(tag)
    self.loaded += [named[n] for n in ('src', 'href', 'xlink:href') if named.get(n)]
    self.ids.append(named.get('id'))

  def handle_startendtag(self, tag, attributes):
    self.handle_starttag(tag, attributes)
    if tag not in self.VOID:
      self.open.pop()

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    self.texts.append(data.strip())


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  folder = tmp_path_factory.mktemp('html')
  for optimizer in ('clip', 'nar'):
    for decay in (0.01, 0.1):
      write_run(
        folder / 'runs', [0.1, 0.5], client_optimizer=optimizer, weight_decay=decay, **DIGITS
      )
  # The picture of the partition is made from the seeds of a run.
  for config in (folder / 'runs').rglob('config.json'):
    seeds = '"seeds": {"partition": 1, "sampling": 2, "model": 3, "batches": 4}'
    config.write_text(config.read_text()[:-1] + f', {seeds}}}')
  result = call(
    f'--runs={folder / "runs"}', '--format=html', f'--output_dir={folder / "out"}',
    module='experiments.report',
  )  # fmt: skip
  assert result.returncode == 0, result.stderr
  assert [p.name for p in (folder / 'out').iterdir()] == ['report.html']
  return (folder / 'out' / 'report.html').read_text()


def test_has_tables_figures_settings_partition_and_clipping(page):
  texts = Checker(page).texts
  for part in (
    'Accuracy by round', 'Frequency and strength of clipping', 'Who holds what',
    'Settings of all runs', '4 runs',
    'FedAvg', '50.00 (1)', 'finished', 'clipped steps a round',
  ):  # fmt: skip
    assert part in texts, part
  assert page.count('<svg') == 5


def test_loads_nothing_and_is_light_and_dark(page):
  for address in Checker(page).loaded:
    assert address.startswith(('#', 'data:')), address
  assert not re.search(r'url\((?!#)', page)
  assert 'prefers-color-scheme: dark' in page
  assert '#000000' not in page  # Black is the colour of the text.


def test_clips_of_one_figure_are_not_those_of_another(page):
  clips = re.findall(r'<clipPath id="(\w+)"', page)
  assert len(clips) == len(set(clips)) > 4


def test_without_data_the_page_says_why_there_is_no_partition(tmp_path):
  write_run(tmp_path, [0.1, 0.5], **DIGITS)  # Its config has no seeds.
  result = call(f'--runs={tmp_path}', '--format=html', module='experiments.report')
  assert result.returncode == 0, result.stderr
  assert 'No picture of the partition' in result.stdout
  asked = call(
    f'--runs={tmp_path}', '--format=html', '--figures=partition', module='experiments.report'
  )
  assert asked.returncode == 2 and 'no picture for' in asked.stderr
