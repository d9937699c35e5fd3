# SPDX-License-Identifier: Apache-2.0
"""The catalogue says what the package does: the same names, arguments and defaults."""

import inspect
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from experiments.definition import catalogue, help_text, identity, settings
from experiments.running import building
from fednar_tff import algorithms, optimizers, runtime, tasks
from fednar_tff.tasks import models

ROOT = pathlib.Path(__file__).parents[2]
# What a task takes besides settings of its own: seeds that all tasks take, and what is for stock
# TFF pipelines.
NOT_OF_A_TASK = {'seed', 'model_seed', 'train_client_spec'}


def default_of(function, argument):
  return inspect.signature(function).parameters[argument].default


def test_names_are_those_of_the_package():
  assert tuple(catalogue.ALGORITHMS) == algorithms.ALGORITHMS
  assert sorted(catalogue.TASKS) == tasks.task_names()
  contexts = {f'set_{name}_context' for name in catalogue.RUNTIMES}
  assert contexts == {
    name for name in dir(runtime) if name.startswith('set_') and name.endswith('_context')
  }
  assert set(catalogue.MODELS) == {m for task in catalogue.TASKS.values() for m in task.models}
  assert all(option.title for option in catalogue.ALGORITHMS.values())


def test_every_setting_is_known_and_stands_after_the_choices_that_it_depends_on():
  order = list(settings.BY_NAME)
  for choice, options in catalogue.CHOICES.items():
    for option in options.values():
      for name in option.settings:
        assert order.index(choice) < order.index(name), (choice, name)
      assert set(option.arguments) <= set(option.settings)


@pytest.mark.parametrize('name', catalogue.TASKS)
def test_settings_and_defaults_of_a_task_are_those_of_its_builder(name):
  taken = tasks.task_arguments(name)
  option = catalogue.TASKS[name]
  assert set(option.settings) == set(taken) - NOT_OF_A_TASK
  for setting, value in option.settings.items():
    if setting not in ('alpha', 'partition_seed'):  # See below; and a seed is derived.
      assert taken[setting] == value, setting


@pytest.mark.parametrize('name', [n for n, o in catalogue.TASKS.items() if 'alpha' in o.settings])
def test_default_alpha_is_that_of_the_tasks_split(name, monkeypatch):
  labels = {'label': tf.range(500) % 10}
  labels['image'] = np.zeros([500, 32, 32, 3], np.uint8)
  monkeypatch.setattr(
    'fednar_tff.tasks.sources.load_cifar10', lambda _: {'train': labels, 'test': labels}
  )
  alpha = catalogue.TASKS[name].settings['alpha']
  clients = {'num_clients': 5}
  own, same, other = (
    tasks.create_task(name, alpha=a, **clients).partition.hash for a in (None, alpha, 2 * alpha)
  )
  assert own == same != other


def test_switches_of_a_model_are_those_of_its_builder():
  assert (
    default_of(models.build_resnet18, 'pooling')
    == (catalogue.MODELS['resnet18'].settings['pooling'])
  )
  for name in tasks.task_names():
    for model in catalogue.TASKS[name].models:
      assert hasattr(models, f'build_{model}')


@pytest.mark.parametrize('name', catalogue.ALGORITHMS)
def test_arguments_and_defaults_of_an_algorithm_are_those_of_its_builder(name):
  option, builder = catalogue.ALGORITHMS[name], algorithms.get_builder(name)
  parameters = inspect.signature(builder).parameters
  for setting, argument in option.arguments.items():
    # FedProx and FedDyn have no default: the catalogue's is the paper's released code's, and ours.
    assert parameters[argument].default in (option.settings[setting], inspect.Parameter.empty)
  assert ('num_clients' in parameters) == ('client_state_storage' in option.settings)
  # Everything that only this builder takes is a setting, but for aggregators.
  shared = inspect.signature(algorithms.build_fed_avg).parameters
  own = {p for p in parameters if p not in shared and not p.endswith('_aggregator')}
  own -= {'model_fn', 'num_clients', 'arguments', 'fed_avg_arguments'}
  own -= {'epsilon_decay', 'total_examples'}  # Follow from other settings and from the data.
  assert own == set(option.arguments.values())


def test_defaults_of_optimizers_and_weighting_are_those_of_the_package():
  for name, builder in (('nar', optimizers.build_nar), ('clip', optimizers.build_clipped_sgd)):
    expected = {'max_norm': 'max_norm', 'norm_epsilon': 'epsilon'}
    assert catalogue.CLIENT_OPTIMIZERS[name].settings == {
      setting: default_of(builder, argument) for setting, argument in expected.items()
    }
  uniform = default_of(algorithms.build_fed_avg, 'client_weighting')
  assert uniform is tff.learning.ClientWeighting.UNIFORM
  weightings = {o.settings.get('client_weighting') for o in catalogue.ALGORITHMS.values()}
  assert weightings == {'uniform', None}


def test_schedules_are_those_of_the_package():
  decay = default_of(algorithms.exponential_decay, 'decay_rate')
  for rate, exponential in (('learning_rate', decay), ('weight_decay', 1.0)):
    options = catalogue.CHOICES[f'{rate}_schedule']
    assert options['constant'].settings == {}
    assert options['exponential'].settings == {f'{rate}_decay': exponential}
    assert options['cosine'].settings == {
      f'{rate}_decay_rounds': None,
      f'{rate}_final_fraction': default_of(algorithms.cosine_decay, 'final_fraction'),
    }
    assert options['step'].settings == {
      f'{rate}_decay_rounds': None,
      f'{rate}_decay': default_of(algorithms.step_decay, 'decay_rate'),
    }


@pytest.mark.parametrize('name', catalogue.ALGORITHMS)
def test_every_algorithm_is_built_from_its_settings(name, in_process_runtime):
  resolved = identity.resolve({'task': 'synthetic', 'algorithm': name, 'client_optimizer': 'clip'})
  task = building.create_task(resolved, building.derive_seeds(resolved))
  process = building.create_process(resolved, task)
  hparams = process.get_hparams(process.initialize())
  assert hparams['client_work']['max_norm'] == 10.0
  assert hparams['finalizer']['learning_rate'] == pytest.approx(
    resolved.get('server_learning_rate', 1.0)
  )


def test_help_and_checks_need_no_tensorflow():
  code = (
    'import sys; from experiments.definition import help_text, parsing, presets; '
    'help_text.train("x"); '
    'parsing.parse(["--preset=cpu/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05"]); '
    'import experiments.running.grid, experiments.running.training; '
    'sys.exit(bool({"tensorflow", "numpy", "matplotlib"} & set(sys.modules)))'
  )
  assert subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=False).returncode == 0


def test_help_names_every_setting_in_the_order_of_the_table_with_its_defaults():
  text = help_text.train('')
  places = [text.index(f'\n  --{setting.name}\n') for setting in settings.SETTINGS]
  assert places == sorted(places)
  flat = ' '.join(text.split())
  assert all(setting.help in flat for setting in settings.SETTINGS)
  assert 'default 1 for digits synthetic, 0.3 for cifar10)' in flat
