# SPDX-License-Identifier: Apache-2.0
"""What can be chosen: tasks, models, algorithms, client optimizers, schedules, runtimes.

Each fact is stated once.

A choice is a setting whose value decides which other settings mean something. An option is one
value of a choice; it names the settings that belong to it, with their defaults. A setting that
belongs to options of two choices needs both: `alpha` has to be known to the task, and to its kind
of split. Nothing here imports TensorFlow, so that help is shown and flags are checked at once; a
test holds the names, arguments and defaults against those of `fednar_tff`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Option:
  """One value of a choice.

  Attributes:
    name: The value.
    settings: The settings that belong to it, and their defaults; None if it has none.
    title: What it is called in tables and figures.
    arguments: The arguments of an algorithm's builder, by the settings that they are given.
    models: The models that fit a task, its default first; empty if that is not known.
  """

  name: str
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  title: str = ''
  arguments: Mapping[str, str] = dataclasses.field(default_factory=dict)
  models: tuple[str, ...] = ()


def _by_name(*options: Option) -> dict[str, Option]:
  return {option.name: option for option in options}


def _task(name: str, models: tuple[str, ...], **settings: Any) -> Option:
  own = {'model': models[0], 'precision': 'float32', 'validation_share': 0.0, **settings}
  return Option(name, own, models=models)


_IMAGES = {'augmentation': 'per_image', 'padding': 'mean', 'pooling': None, 'data_dir': None}
_IMAGE_MODELS = ('resnet18', 'small_resnet18', 'cnn', 'small_cnn', 'mlp')
_SPLIT = {'partition': 'dirichlet', 'partition_seed': None}

TASKS = _by_name(
  _task('digits', ('mlp', 'cnn'), num_clients=20, alpha=1.0, **_SPLIT),
  _task('cifar10', _IMAGE_MODELS, num_clients=100, alpha=0.3, **_SPLIT, **_IMAGES),
  _task('cifar100', _IMAGE_MODELS, **_IMAGES),
  _task(
    'shakespeare', ('transformer', 'small_transformer'),
    num_clients=100, crop_windows=True, text='tff', prediction='last', initialization='released',
    identical_layers=False, dropout=0.1, input_dropout=False, data_dir=None, partition_seed=None,
  ),
  _task('synthetic', ('mlp',), num_clients=10, alpha=1.0, dropout=0.0, **_SPLIT),
)  # fmt: skip

MODELS = _by_name(
  Option('resnet18', {'pooling': 'global'}),
  Option('small_resnet18'),
  Option('cnn'),
  Option('small_cnn'),
  Option('mlp'),
  Option('transformer'),
  Option('small_transformer'),
)

PARTITIONS = _by_name(
  Option('dirichlet', {'alpha': None}), Option('dirichlet_unequal', {'alpha': None}), Option('iid')
)

# What an algorithm of plain averaging takes; the server descends with this learning rate.
_AVERAGING = {'client_weighting': 'uniform', 'server_learning_rate': 1.0}
_CLIENT_STATES = {'client_state_storage': 'memory'}
# Of an algorithm whose builder makes its server optimizer; the others are given one.
_SERVER_RATE = {'server_learning_rate': 'server_learning_rate'}

ALGORITHMS = _by_name(
  Option('fed_avg', _AVERAGING, 'FedAvg'),
  Option(
    'fed_prox',
    {**_AVERAGING, 'proximal_strength': 0.001},
    'FedProx',
    {'proximal_strength': 'proximal_strength'},
  ),
  Option('scaffold', {**_AVERAGING, **_CLIENT_STATES}, 'SCAFFOLD'),
  Option(
    'fed_exp',
    {
      **_AVERAGING, 'extrapolation_epsilon': 0.0, 'average_last_two': False,
      'server_variant': 'paper',
    },
    'FedExP',
    {
      'extrapolation_epsilon': 'epsilon', 'average_last_two': 'average_last_two',
      'server_variant': 'variant',
    },
  ),
  Option(
    'fed_adam',
    {
      'client_weighting': 'uniform', 'server_learning_rate': 0.1, 'server_beta_1': 0.9,
      'server_beta_2': 0.99, 'server_epsilon': 0.01, 'server_variant': 'paper',
    },
    'FedAdam',
    {
      **_SERVER_RATE, 'server_beta_1': 'beta_1', 'server_beta_2': 'beta_2',
      'server_epsilon': 'epsilon', 'server_variant': 'variant',
    },
  ),
  Option(
    'fed_avgm',
    {**_AVERAGING, 'server_momentum': 0.9},
    'FedAvgM',
    {**_SERVER_RATE, 'server_momentum': 'server_momentum'},
  ),
  Option(
    'fed_dyn',
    {**_CLIENT_STATES, 'regularization_strength': 0.1},
    'FedDyn',
    {'regularization_strength': 'regularization_strength'},
  ),
  Option('centralized', {}, 'centralised'),
)  # fmt: skip

_BOUND = {'max_norm': 10.0, 'norm_epsilon': 0.0}
CLIENT_OPTIMIZERS = _by_name(
  Option('nar', _BOUND, 'NAR'),
  Option('clip', _BOUND, 'baseline'),
  Option('sgd', {}, 'SGD, nothing clipped'),
)


def _schedules(name: str, decay: float) -> dict[str, Option]:
  """Returns the schedules of a rate; `decay` is the default of its exponential one."""
  rounds = {f'{name}_decay_rounds': None}
  return _by_name(
    Option('constant'),
    Option('exponential', {f'{name}_decay': decay}),
    Option('cosine', {**rounds, f'{name}_final_fraction': 0.0}),
    Option('step', {**rounds, f'{name}_decay': 0.1}),
  )


_DEVICES = {'deterministic': False, 'tf32': True, 'jit_compile': False}
RUNTIMES = _by_name(
  Option('in_process', {'clients_per_device': None, **_DEVICES}),
  Option('native'),
  Option('remote', {'workers': None}),
  Option(
    'cluster', {'cluster_address': None, 'num_workers': None, 'gpus_per_worker': 0.0, **_DEVICES}
  ),
)

# In the order in which they are decided.
CHOICES = {
  'task': TASKS,
  'model': MODELS,
  'partition': PARTITIONS,
  'algorithm': ALGORITHMS,
  'client_optimizer': CLIENT_OPTIMIZERS,
  'learning_rate_schedule': _schedules('learning_rate', 0.998),
  'weight_decay_schedule': _schedules('weight_decay', 1.0),
  'runtime': RUNTIMES,
}


@functools.cache  # A report asks it a hundred times for each run.
def owners(name: str) -> dict[str, tuple[str, ...]]:
  """Returns the choices that a setting depends on, each with the values that have it."""
  found = {
    choice: tuple(o.name for o in options.values() if name in o.settings)
    for choice, options in CHOICES.items()
  }
  return {choice: values for choice, values in found.items() if values}


def belongs(name: str, chosen: Mapping[str, Any]) -> bool:
  """Returns whether a setting means something, given the values of the choices."""
  return all(chosen.get(choice) in (None, *values) for choice, values in owners(name).items())


def default(name: str, chosen: Mapping[str, Any]) -> Any:
  """Returns the default of a setting that belongs to an option; None if no option states one.

  Args:
    name: The setting.
    chosen: The values of the choices.
  """
  options = (CHOICES[choice].get(chosen.get(choice)) for choice in owners(name))
  found = (option.settings.get(name) for option in options if option)
  return next((value for value in found if value is not None), None)


def add_task(name: str, settings: Mapping[str, Any]) -> None:
  """Makes a task known that is not one of this package's.

  Args:
    name: Its name.
    settings: The settings that belong to it, with their defaults.
  """
  TASKS[name] = Option(name, settings)
  owners.cache_clear()
