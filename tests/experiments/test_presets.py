# SPDX-License-Identifier: Apache-2.0
"""The presets are those of the paper, of its released code, and of the reduced variant."""

import pathlib
import re

import pytest

from experiments.definition import identity, paper, parsing, presets
from experiments.definition.settings import UsageError

NUM_CELLS = 144


@pytest.mark.parametrize('variant', presets.VARIANTS)
def test_every_preset_is_accepted_by_train_and_means_another_run(variant):
  found = presets.cells(variant=variant)
  assert len(found) == NUM_CELLS
  resolved = [parsing.parse([f'--preset={name}']) for name in found]
  assert [identity.resolve(s) for s in found.values()] == resolved
  assert len({tuple(identity.identity(s).items()) for s in resolved}) == NUM_CELLS


def test_tables_and_figures_have_the_papers_cells_and_together_all_of_them():
  sizes = {name: len(presets.cells(table=name)) for name in presets.TABLES}
  assert sizes == {'cifar10': 36, 'shakespeare': 24}
  sizes = {name: len(presets.cells(figure=name)) for name in presets.FIGURES}
  assert sizes == {'weight_decay': 90, 'robustness': 12, 'clipping': 18, 'curves': 36}
  # 36 + 24 + 90 + 12, less what a figure has from the table on CIFAR-10 or from another figure: 12
  # cells of `weight_decay` are the table's baselines (at alpha 0.3 and 10), and 6 of `robustness`
  # are baselines of `weight_decay`.
  assert len(presets.cells()) == 36 + 24 + 90 + 12 - 12 - 6 == NUM_CELLS


def test_cells_of_two_variants_have_different_names():
  names = [name for variant in presets.VARIANTS for name in presets.cells(variant=variant)]
  assert len(set(names)) == 3 * NUM_CELLS


def common_cifar(**changes):
  return {
    'task': 'cifar10',
    'model': 'resnet18',
    'num_clients': 100,
    'clients_per_round': 20,
    'batch_size': 50,
    'local_steps': 20,
    'learning_rate': 0.01,
    'learning_rate_decay': 0.998,
    'max_norm': 10.0,
    **changes,
  }


def common_shakespeare(**changes):
  return {
    'task': 'shakespeare',
    'model': 'transformer',
    'num_clients': 100,
    'clients_per_round': 20,
    'learning_rate_decay': 0.998,
    'max_norm': 10.0,
    'dropout': 0.1,
    **changes,
  }


@pytest.mark.parametrize(
  'name, expected',
  [
    (
      'paper/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05',
      common_cifar(
        total_rounds=1000, augmentation='per_image', pooling='global', weight_decay=0.05
      ),
    ),
    (
      'paper/cifar10_fed_prox_clip_alpha1_steps20_wd0.05',
      common_cifar(proximal_strength=0.001, alpha=1.0),
    ),
    (
      'paper/cifar10_fed_avgm_nar_alpha10_steps20_wd0.01',
      common_cifar(server_momentum=0.9, weight_decay=0.01),
    ),
    (
      'paper/cifar10_scaffold_clip_alpha0.3_steps5_wd0.0001',
      common_cifar(local_steps=5, weight_decay=0.0001),
    ),
    (
      'paper/shakespeare_scaffold_nar_wd0.001',
      common_shakespeare(total_rounds=300, local_epochs=5, batch_size=100, learning_rate=0.1),
    ),
    (
      'reference/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05',
      common_cifar(
        total_rounds=1001,
        augmentation='per_batch',
        pooling='top_left',
        first_round_decays=True,
        norm_epsilon=1e-6,
        client_weighting='num_examples',
      ),
    ),
    (
      'reference/cifar10_fed_adam_clip_alpha0.3_steps20_wd0.01',
      common_cifar(
        total_rounds=301, server_learning_rate=0.1, server_epsilon=0.01, server_variant='reference'
      ),
    ),
    (
      'reference/cifar10_fed_exp_clip_alpha0.3_steps20_wd0.01',
      common_cifar(extrapolation_epsilon=0.0, average_last_two=True),
    ),
    (
      'reference/shakespeare_fed_avg_nar_wd0.001',
      common_shakespeare(
        total_rounds=1001, local_steps=100, batch_size=100, learning_rate=0.1, sampling_seed=0
      ),
    ),
    (
      'reference/shakespeare_fed_prox_nar_wd0.001',
      common_shakespeare(local_steps=20, batch_size=500, learning_rate=0.1),
    ),
    (
      'reference/shakespeare_fed_avgm_nar_wd0.001',
      common_shakespeare(local_steps=100, learning_rate=0.01),
    ),
    (
      'cpu/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.1',
      common_cifar(
        model='cnn',
        clients_per_round=5,
        batch_size=20,
        learning_rate=0.05,
        max_norm=1.0,
        total_rounds=50,
      ),
    ),
  ],
)
def test_settings_are_the_published_ones(name, expected):
  found = parsing.parse([f'--preset={name}'])
  assert {k: found.get(k) for k in expected} == expected


def test_flags_override_a_preset():
  settings = parsing.parse(
    ['--preset=paper/shakespeare_fed_prox_nar_wd0.001', '--algorithm=fed_avg', '--local_steps=7']
  )
  assert settings['local_steps'] == 7 and 'local_epochs' not in settings
  assert 'proximal_strength' not in settings and settings['weight_decay'] == 0.001


def test_printed_flags_define_the_same_run():
  settings = parsing.parse(['--preset=reference/cifar10_fed_exp_clip_alpha0.3_steps20_wd0.01'])
  assert parsing.parse(parsing.as_arguments(settings)) == settings


@pytest.mark.parametrize(
  'names, message',
  [
    ({'table': 'mnist'}, '--table=mnist is unknown: it takes cifar10, shakespeare.'),
    (
      {'figure': 'wd'},
      '--figure=wd is unknown: it takes weight_decay, robustness, clipping, curves.',
    ),
    (
      {'table': 'cifar10', 'variant': 'gpu'},
      '--variant=gpu is unknown: it takes paper, reference, cpu.',
    ),
  ],
)
def test_unknown_names_are_told(names, message):
  with pytest.raises(UsageError) as e:
    presets.cells(**names)
  assert str(e.value) == message


def test_unknown_preset_is_told_what_is_near():
  with pytest.raises(
    UsageError, match=r'did you mean paper/cifar10_fed_avg_nar_alpha0\.3_steps20_wd0\.05\?'
  ):
    presets.preset('paper/cifar10_fed_avg_nar_alpha0.3_wd0.05')
  with pytest.raises(UsageError, match='a name begins with paper/, reference/, cpu/.'):
    presets.preset('x')


def test_only_reduced_runs_are_called_so():
  for name, settings in presets.matching('*').items():
    assert ('(reduced: ' in presets.title(settings)) == name.startswith('cpu/'), name
  # Without --model, the task's own is the paper's.
  assert not presets.is_reduced({'task': 'cifar10', 'total_rounds': 1000, 'clients_per_round': 20})
  assert presets.is_reduced({'task': 'cifar10', 'total_rounds': 1000, 'clients_per_round': 10})
  assert not presets.is_reduced({'task': 'digits', 'total_rounds': 1})


def test_the_papers_numbers_stand_beside_a_run_of_its_kind_only():
  name = 'cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05'
  for variant in presets.VARIANTS:
    assert presets.published(presets.preset(f'{variant}/{name}')) == (85.19, 87.64)
  cell = presets.preset(f'paper/{name}')
  for change in (
    {'local_steps': 5},
    {'weight_decay': 0.1},
    {'alpha': 0.5},
    {'partition': 'iid'},
    {'task': 'digits'},
  ):
    assert presets.published({**cell, **change}) is None
  scaffold = presets.preset('reference/shakespeare_scaffold_clip_wd0.0001')
  assert presets.published(scaffold) == paper.SHAKESPEARE['scaffold'][1e-4] == (47.55, 45.60)
  assert presets.published({**scaffold, 'local_steps': 10}) is None


def test_every_difference_of_paper_and_code_is_accounted_for():
  source = pathlib.Path(presets.__file__).read_text()
  assert {f'D{i}' for i in range(1, 18)} <= set(re.findall(r'D\d+', source))
