# SPDX-License-Identifier: Apache-2.0
"""The page of differences lists all of them, and what it names exists."""

import inspect
import pathlib
import re

import fednar_tff
from fednar_tff import algorithms, optimizers
from fednar_tff.tasks import cifar, models, shakespeare

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / 'docs' / 'paper.md').read_text()
ROWS = dict(re.findall(r'^\| ([DF]\d+) \| (.*) \|$', PAGE, re.MULTILINE))


def test_every_difference_has_a_row():
  assert list(ROWS) == [f'D{i}' for i in range(1, 18)] + [f'F{i}' for i in range(1, 10)]


def test_every_row_names_tests_that_exist():
  tests = set()
  for path in (ROOT / 'tests').rglob('test_*.py'):
    tests |= set(re.findall(r'^def (test_\w+)', path.read_text(), re.MULTILINE))
  for number, row in ROWS.items():
    named = re.findall(r'`(test_\w+)`', row.split(' | ')[-1])
    assert named or row.endswith('`tests/experiments`'), number
  assert set(re.findall(r'`(test_\w+)`', PAGE)) <= tests


def test_switches_exist_with_the_values_that_the_page_states():
  switches = {
    'D2': (algorithms.build_fed_avg, 'client_weighting'),
    'D4': (algorithms.exponential_decay, 'first_round_decays'),
    'D5': (algorithms.build_fed_adam, 'epsilon_decay'),
    'D6': (algorithms.build_fed_adam, 'variant'),
    'D7': (cifar.build_cifar10, 'pooling'),
    'D8': (algorithms.build_fed_exp, 'average_last_two'),
    'D9': (algorithms.build_scaffold, 'total_examples'),
    'D10': (optimizers.build_nar, 'epsilon'),
    'D11': (algorithms.build_fed_prox, 'proximal_strength'),
    'D15': (cifar.build_cifar10, 'augmentation'),
    'D16': (models.build_transformer, 'prediction'),
    'D17': (shakespeare.build_shakespeare, 'crop_windows'),
    'F1': (shakespeare.build_shakespeare, 'initialization'),
    'F2': (shakespeare.build_shakespeare, 'input_dropout'),
    'F3': (cifar.build_cifar10, 'padding'),
    'F4': (shakespeare.build_shakespeare, 'text'),
    'F6': (algorithms.build_fed_adam, 'epsilon_decay'),
    'F7': (algorithms.build_fed_avg, 'client_weighting'),
    'F8': (algorithms.build_fed_exp, 'variant'),
  }
  for number, (builder, name) in switches.items():
    assert name in inspect.signature(builder).parameters
    assert re.search(rf'`{name}\W', ROWS[number]), number


def test_functions_that_the_page_names_exist():
  for room, name in set(re.findall(r'`(optimizers|algorithms|tasks)\.(\w+)', PAGE)):
    if name != 'build_':
      assert hasattr(getattr(fednar_tff, room), name), name


def test_the_package_cites_rows_of_this_page():
  cited = set()
  for path in (ROOT / 'fednar_tff').rglob('*.py'):
    text = path.read_text()
    assert 'PAPER_VS_CODE' not in text, path
    cited |= set(re.findall(r'docs/paper\.md, ([DF]\d+)', text))
  assert cited and cited <= set(ROWS)
