# SPDX-License-Identifier: Apache-2.0
"""Two runs share a cell if, and only if, all settings that change results are equal but for the
seeds."""

import pytest

from experiments.definition import catalogue, identity, settings
from tests.experiments.other_values import another_value

# For each choice a base that differs only there, so that every setting means something in one of
# them.
BASES = [
  {'task': task, 'algorithm': algorithm, 'client_optimizer': optimizer}
  for task in catalogue.TASKS
  for algorithm in catalogue.ALGORITHMS
  for optimizer in catalogue.CLIENT_OPTIMIZERS
] + [
  {
    f'{rate}_{name}': value
    for rate in ('learning_rate', 'weight_decay')
    for name, value in {'schedule': schedule, **rounds}.items()
  }
  for schedule, rounds in (
    ('constant', {}),
    ('cosine', {'decay_rounds': 8}),
    ('step', {'decay_rounds': 8}),
  )
]
BASES += [{'runtime': runtime} for runtime in catalogue.RUNTIMES]


def test_every_setting_that_changes_results_makes_another_cell_and_no_other_does():
  varied = set()
  for base in BASES:
    resolved = identity.resolve(base)
    assert identity.identity(resolved) == identity.identity(base)
    for name in resolved:
      value = another_value(name, resolved)
      if value is None:
        continue
      changed = identity.identity({**resolved, name: value})
      expected = settings.BY_NAME[name].changes_results and name not in identity.SEEDS
      assert (changed != identity.identity(base)) == expected, (base, name, value)
      varied.add(name)
  epochs = identity.identity({'local_epochs': 1})
  assert epochs != identity.identity({}) and 'local_steps' not in epochs
  assert varied | {'local_epochs'} == set(settings.BY_NAME)


@pytest.mark.parametrize('task', catalogue.TASKS)
def test_a_default_and_the_same_value_given_are_one_run(task):
  resolved = identity.resolve({'task': task})
  for name, value in resolved.items():
    assert identity.identity({'task': task, name: value}) == identity.identity({'task': task})
  assert identity.resolve(resolved) == resolved


def test_an_old_config_is_filled_in():
  # As version 0.1.0 wrote it: every setting that means something, defaults of task and algorithm as
  # None.
  old = {
    'task': 'digits',
    'model': None,
    'num_clients': None,
    'alpha': None,
    'partition': None,
    'algorithm': 'fed_adam',
    'client_weighting': 'uniform',
    'client_optimizer': 'sgd',
    'learning_rate': 0.1,
    'local_steps': None,
    'local_epochs': 3,
    'server_learning_rate': None,
    'seed': 3,
    'title': '',
    'no_longer_a_setting': 1,
  }
  found = identity.resolve(old)
  assert (found['model'], found['num_clients'], found['alpha']) == ('mlp', 20, 1.0)
  assert found['server_learning_rate'] == 0.1 and found['local_epochs'] == 3
  assert not {'local_steps', 'max_norm', 'no_longer_a_setting'} & set(found)
  assert identity.seeds(old) == {'seed': 3}


def test_a_run_from_before_there_were_schedules_is_the_run_that_it_was():
  old = {
    'learning_rate': 0.1,
    'learning_rate_decay': 0.99,
    'weight_decay': 0.01,
    'weight_decay_decay': 1.0,
  }
  now = {
    'learning_rate': 0.1,
    'weight_decay': 0.01,
    'learning_rate_schedule': 'exponential',
    'learning_rate_decay': 0.99,
    'weight_decay_schedule': 'exponential',
    'learning_rate_warm_up': 0,
    'weight_decay_warm_up': 0,
  }
  assert identity.identity(identity.of_config(old)) == identity.identity(now)
  assert not identity.difference(identity.of_config(old), now)
  default = identity.identity({})
  assert (default['learning_rate_decay'], default['weight_decay_decay']) == (0.998, 1.0)
  assert identity.run_name(old) == (
    'digits_mlp_fed_avg_nar_alpha1_lr0.1_wd0.01_A10_learning_rate_decay0.99_seed0'
  )


def test_names_spell_schedules():
  cosine = {'learning_rate_schedule': 'cosine', 'learning_rate_decay_rounds': 40}
  names = {
    identity.run_name(s)
    for s in (
      {},
      {'weight_decay_schedule': 'constant'},
      cosine,
      {**cosine, 'learning_rate_decay_rounds': 50},
    )
  }
  assert len(names) == 4
  assert '_A10_learning_rate_schedulecosine_learning_rate_decay_rounds40_' in identity.run_name(
    cosine
  )


def test_a_task_that_is_not_known_here_keeps_what_was_saved():
  saved = {'task': 'circles', 'alpha': 0.7, 'num_clients': 5, 'weight_decay': 0.1}
  found = identity.identity(saved)
  assert (found['alpha'], found['num_clients']) == (0.7, 5)
  assert 'model' not in found and found['local_steps'] == 20
  assert found != identity.identity({**saved, 'alpha': 0.8})


def test_seeds_are_no_part_of_the_identity_but_of_the_difference():
  assert identity.identity({'seed': 1}) == identity.identity({'seed': 2, 'model_seed': 7})
  assert identity.difference({'seed': 1}, {'seed': 2, 'model_seed': 7}) == [
    'seed: 1 in the directory, 2 now',
    'model_seed: none in the directory, 7 now',
  ]


def test_difference_shows_what_makes_runs_different_and_only_that():
  wanted = {
    'weight_decay': 0.5,
    'alpha': 1.0,
    'output_dir': 'elsewhere',
    'rounds_per_checkpoint': 1,
    'total_rounds': 7,
  }
  line = 'weight_decay: 0.0 in the directory, 0.5 now'
  assert identity.difference({}, wanted, ignored=('total_rounds',)) == [line]
  assert identity.difference({}, wanted)[1:] == ['total_rounds: 100 in the directory, 7 now']


def test_names_tell_runs_apart_and_spell_no_defaults():
  assert identity.run_name({}) == 'digits_mlp_fed_avg_nar_alpha1_lr0.01_wd0_A10_seed0'
  changed = {
    'learning_rate': 0.1,
    'max_norm': 1.0,
    'model': 'cnn',
    'alpha': 0.5,
    'weight_decay': 0.1,
    'batch_size': 10,
    'seed': 1,
    'local_epochs': 2,
    'partition': 'iid',
    'model_seed': 4,
    'client_optimizer': 'sgd',
    'algorithm': 'fed_avgm',
  }
  names = {identity.run_name({name: value}) for name, value in changed.items()}
  assert len(names) == len(changed) and identity.run_name({}) not in names
  assert identity.run_name({'batch_size': 10}).endswith('_A10_batch_size10_seed0')
  # Neither where the data is nor how long the run is makes it another one.
  assert identity.run_name({'data_dir': '/data', 'total_rounds': 7}) == identity.run_name({})
