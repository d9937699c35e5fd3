"""The presets are those of the paper, of its released code, and of the reduced variant."""

import pathlib
import re

import pytest

from experiments import make_presets, paper, settings

ROOT = pathlib.Path(__file__).parents[2]
PAPER_VS_CODE = ROOT.parent / 'shared' / 'paper' / 'PAPER_VS_CODE.md'


def read(variant, name):
  lines = (make_presets.FOLDER / variant / f'{name}.flags').read_text().splitlines()
  return dict(line[2:].split('=', 1) for line in lines)


def test_committed_files_are_the_generated_ones():
  committed = {
    p.relative_to(make_presets.FOLDER): p.read_text() for p in make_presets.FOLDER.rglob('*.flags')
  }
  assert committed == make_presets.files()


@pytest.mark.parametrize('variant', make_presets.VARIANTS)
def test_every_preset_is_accepted_by_train(variant):
  defaults = {s.name: s.default for s in settings.SETTINGS}
  for task, cell in make_presets.cells():
    chosen = make_presets.preset(variant, task, cell)
    assert set(chosen) <= set(settings.BY_NAME)
    settings.check({**defaults, **chosen}, frozenset(chosen))


def test_every_cell_of_both_tables_and_figures_has_a_preset():
  for variant in ('paper', 'reference'):
    names = {p.stem for p in (make_presets.FOLDER / variant).iterdir()}
    for algorithm in paper.NAMES:
      wd = '0.05' if algorithm in ('fed_avg', 'fed_prox', 'scaffold') else '0.01'
      for optimizer in ('clip', 'nar'):
        assert {
          f'cifar10_{algorithm}_{optimizer}_alpha{a}_steps20_wd{wd}' for a in ('0.3', '1', '10')
        } <= names
        assert {f'shakespeare_{algorithm}_{optimizer}_wd{w}' for w in ('0.0001', '0.001')} <= names
      for alpha, steps in (('0.3', 20), ('0.3', 5), ('10', 20)):
        for decay in ('0.0001', '0.001', '0.01', '0.05', '0.1'):
          assert f'cifar10_{algorithm}_clip_alpha{alpha}_steps{steps}_wd{decay}' in names
    for algorithm in ('fed_avg', 'fed_prox', 'scaffold'):
      for decay in ('0.01', '0.1'):
        assert f'cifar10_{algorithm}_nar_alpha0.3_steps20_wd{decay}' in names


COMMON_CIFAR = {
  'task': 'cifar10', 'model': 'resnet18', 'num_clients': '100', 'clients_per_round': '20', 'batch_size': '50', 'local_steps': '20',
  'learning_rate': '0.01', 'learning_rate_decay': '0.998', 'max_norm': '10.0',
}  # fmt: skip
COMMON_SHAKESPEARE = {
  'task': 'shakespeare', 'model': 'transformer', 'num_clients': '100', 'clients_per_round': '20', 'learning_rate_decay': '0.998',
  'max_norm': '10.0', 'dropout': '0.1',
}  # fmt: skip


@pytest.mark.parametrize(
  'variant, name, expected',
  [
    ('paper', 'cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {**COMMON_CIFAR, 'total_rounds': '1000', 'augmentation': 'per_image', 'pooling': 'global', 'weight_decay': '0.05'}),
    ('paper', 'cifar10_fed_prox_clip_alpha1_steps20_wd0.05', {**COMMON_CIFAR, 'proximal_strength': '0.001', 'alpha': '1.0'}),
    ('paper', 'cifar10_fed_avgm_nar_alpha10_steps20_wd0.01', {**COMMON_CIFAR, 'server_momentum': '0.9', 'weight_decay': '0.01'}),
    ('paper', 'shakespeare_scaffold_nar_wd0.001', {**COMMON_SHAKESPEARE, 'total_rounds': '300', 'local_epochs': '5', 'batch_size': '100', 'learning_rate': '0.1'}),
    ('reference', 'cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05', {**COMMON_CIFAR, 'total_rounds': '1001', 'augmentation': 'per_batch', 'pooling': 'top_left', 'first_round_decays': 'true', 'norm_epsilon': '1e-06', 'client_weighting': 'num_examples'}),
    ('reference', 'cifar10_fed_adam_clip_alpha0.3_steps20_wd0.01', {**COMMON_CIFAR, 'total_rounds': '301', 'server_learning_rate': '0.1', 'server_epsilon': '0.01', 'server_variant': 'reference'}),
    ('reference', 'cifar10_fed_exp_clip_alpha0.3_steps20_wd0.01', {**COMMON_CIFAR, 'extrapolation_epsilon': '0.0', 'average_last_two': 'true'}),
    ('reference', 'shakespeare_fed_avg_nar_wd0.001', {**COMMON_SHAKESPEARE, 'total_rounds': '1001', 'local_steps': '100', 'batch_size': '100', 'learning_rate': '0.1', 'sampling_seed': '0'}),
    ('reference', 'shakespeare_fed_prox_nar_wd0.001', {**COMMON_SHAKESPEARE, 'local_steps': '20', 'batch_size': '500', 'learning_rate': '0.1'}),
    ('reference', 'shakespeare_fed_avgm_nar_wd0.001', {**COMMON_SHAKESPEARE, 'local_steps': '100', 'learning_rate': '0.01'}),
  ],
)  # fmt: skip
def test_settings_are_the_published_ones(variant, name, expected):
  found = read(variant, name)
  assert {k: found.get(k) for k in expected} == expected


def test_reduced_presets_say_so_in_name_and_title():
  for path in (make_presets.FOLDER / 'cpu').iterdir():
    assert re.search(r'_\d+rounds_', path.name)
    assert '(reduced: ' in path.read_text()


@pytest.mark.skipif(
  not PAPER_VS_CODE.exists(), reason='the list of differences is not part of the product'
)
def test_every_difference_that_is_a_setting_is_in_the_table():
  text = PAPER_VS_CODE.read_text()
  source = pathlib.Path(make_presets.__file__).read_text()
  listed = set(re.findall(r'^\| (D\d+) ', text, re.MULTILINE))
  assert len(listed) == 17
  # D1 and D16 are the same in both variants, D9 is how SCAFFOLD is built, and D17 the task's default.
  assert listed - set(re.findall(r'D\d+', source)) <= {'D1', 'D9', 'D16', 'D17'}
  common = dict(
    re.findall(
      r'^\| ([^|]+?) \| ([^|]+?) \|', text.split('Settings that both state')[1], re.MULTILINE
    )
  )
  assert (
    common['clients, a round'] == '100, 20'
    and common['max norm A'] == '10'
    and common['rounds'] == '1,000'
  )
