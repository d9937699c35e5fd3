"""Every setting of a run, in one table: the flags of `train`, what they allow, and which choices use them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from absl import flags

ALGORITHMS = ('fed_avg', 'fed_prox', 'scaffold', 'fed_exp', 'fed_adam', 'fed_avgm')
TASKS = ('digits', 'cifar10', 'cifar100', 'shakespeare', 'synthetic')
OPTIMIZERS = ('nar', 'clip', 'sgd')
RUNTIMES = ('in_process', 'native', 'remote')

_RANGES = {
  'positive': (lambda v: v > 0, 'a positive number'),
  'nonnegative': (lambda v: 0 <= v < math.inf, 'a nonnegative number'),
  'fraction': (lambda v: 0 <= v < 1, 'a number in [0, 1)'),
  'factor': (lambda v: 0 < v <= 1, 'a number in (0, 1]'),
}


class UsageError(Exception):
  """A setting is wrong; the message is one line: what was given, and what is allowed."""


@dataclasses.dataclass(frozen=True)
class Setting:
  """One flag of `train`.

  Attributes:
    name: The flag's name.
    kind: The type of its value: `str`, `int`, `float`, `bool` or a tuple of choices.
    default: Its default; None leaves the choice to the task or algorithm.
    group: The part of a run that it belongs to.
    help: A sentence.
    range: The name of the allowed range of a number.
    only_for: The other settings' values that make it mean something; with others, giving it is an error.
    changes_results: Whether two runs that differ only in it are different runs.
  """

  name: str
  kind: Any
  default: Any
  group: str
  help: str
  range: str | None = None
  only_for: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  changes_results: bool = True


SETTINGS = (
  # What is learned, and on whose data.
  Setting('task', TASKS, 'digits', 'task', 'What is learned.'),
  Setting('model', ('resnet18', 'cnn', 'mlp', 'transformer'), None, 'task', "The model; the task's own unless given."),
  Setting('num_clients', int, None, 'task', 'How many clients hold the data.', 'positive', {'task': ('digits', 'cifar10', 'shakespeare', 'synthetic')}),
  Setting('alpha', float, None, 'task', 'Concentration of the Dirichlet split; small is heterogeneous.', 'positive', {'task': ('digits', 'cifar10', 'synthetic')}),
  Setting('partition', ('dirichlet', 'dirichlet_unequal', 'iid'), None, 'task', 'How the data is split.', None, {'task': ('digits', 'cifar10', 'synthetic')}),
  Setting('augmentation', ('per_image', 'per_batch', 'none'), None, 'task', 'Crop and flip: decided per image (the paper) or per batch (its released code).', None, {'task': ('cifar10', 'cifar100')}),
  Setting('pooling', ('global', 'top_left'), None, 'task', "The last pooling of resnet18: over the whole map, or the released code's 3x3 window.", None, {'task': ('cifar10', 'cifar100')}),
  Setting('crop_windows', bool, None, 'task', 'Whether each role is cropped to 2,000 and 400 windows.', None, {'task': ('shakespeare',)}),
  Setting('dropout', float, None, 'task', 'The share of activations that training drops.', 'fraction', {'task': ('shakespeare', 'synthetic')}),
  Setting('data_dir', str, None, 'task', "Where the data is, instead of the library's default folder.", None, {'task': ('cifar10', 'cifar100', 'shakespeare')}, changes_results=False),
  # What happens in a round.
  Setting('algorithm', ALGORITHMS, 'fed_avg', 'algorithm', 'The federated algorithm.'),
  Setting('client_weighting', ('uniform', 'num_examples'), 'uniform', 'algorithm', 'How clients are weighted in the mean.'),
  Setting('proximal_strength', float, 0.001, 'algorithm', "FedProx's pull towards the server's model.", 'nonnegative', {'algorithm': ('fed_prox',)}),
  Setting('extrapolation_epsilon', float, 0.0, 'algorithm', "FedExP's epsilon.", 'nonnegative', {'algorithm': ('fed_exp',)}),
  Setting('average_last_two', bool, False, 'algorithm', 'Whether FedExP is evaluated on the mean of its last two models.', None, {'algorithm': ('fed_exp',)}),
  # What a client does.
  Setting('client_optimizer', OPTIMIZERS, 'nar', 'client', 'nar clips gradient and weight decay together, clip the gradient alone (the baseline), sgd nothing.'),
  Setting('learning_rate', float, 0.01, 'client', "The clients' learning rate in the first round.", 'nonnegative'),
  Setting('learning_rate_decay', float, 0.998, 'client', 'Its factor from round to round.', 'factor'),
  Setting('first_round_decays', bool, False, 'client', 'Whether the first round is decayed already, as in the released code.'),
  Setting('weight_decay', float, 0.0, 'client', 'The weight-decay coefficient (WD in the paper); a step takes learning_rate * weight_decay off.', 'nonnegative'),
  Setting('weight_decay_decay', float, 1.0, 'client', 'Its factor from round to round, on top of that of the learning rate.', 'factor'),
  Setting('max_norm', float, 10.0, 'client', 'The bound A of the norm that is clipped.', 'positive', {'client_optimizer': ('nar', 'clip')}),
  Setting('norm_epsilon', float, 0.0, 'client', 'Added to the norm: 0 is the paper, 1e-6 its released code.', 'nonnegative', {'client_optimizer': ('nar', 'clip')}),
  Setting('local_steps', int, None, 'client', 'Batches of a client in a round (20 unless local_epochs is given).', 'positive'),
  Setting('local_epochs', int, None, 'client', 'Epochs of a client in a round, instead of local_steps.', 'positive'),
  Setting('batch_size', int, 50, 'client', 'Examples in a batch.', 'positive'),
  # What the server does with the mean update.
  Setting('server_learning_rate', float, None, 'server', "The server's learning rate; 1 (FedAdam 0.1) unless given.", 'nonnegative'),
  Setting('server_momentum', float, 0.9, 'server', "FedAvgM's momentum.", 'fraction', {'algorithm': ('fed_avgm',)}),
  Setting('server_beta_1', float, 0.9, 'server', "FedAdam's first moment.", 'fraction', {'algorithm': ('fed_adam',)}),
  Setting('server_beta_2', float, 0.99, 'server', "FedAdam's second moment.", 'fraction', {'algorithm': ('fed_adam',)}),
  Setting('server_epsilon', float, 0.01, 'server', "FedAdam's epsilon.", 'nonnegative', {'algorithm': ('fed_adam',)}),
  Setting('server_variant', ('paper', 'reference'), 'paper', 'server', "FedAdam as in its paper, or as in FedNAR's released code.", None, {'algorithm': ('fed_adam',)}),
  # The run.
  Setting('total_rounds', int, 100, 'run', 'How many rounds.', 'positive'),
  Setting('clients_per_round', int, 10, 'run', 'How many clients take part in a round.', 'positive'),
  Setting('rounds_per_evaluation', int, 10, 'run', 'How often the whole test set is evaluated.', 'positive'),
  Setting('rounds_per_checkpoint', int, 50, 'run', 'How often the run is saved.', 'positive', changes_results=False),
  Setting('seed', int, 0, 'run', 'The seed that all random choices are derived from.', 'nonnegative'),
  Setting('partition_seed', int, None, 'run', 'The seed of the split alone.', 'nonnegative'),
  Setting('sampling_seed', int, None, 'run', 'The seed of the choice of clients alone.', 'nonnegative'),
  Setting('model_seed', int, None, 'run', 'The seed of the initial weights alone.', 'nonnegative'),
  Setting('batch_seed', int, None, 'run', 'The seed of batches, dropout and augmentation alone.', 'nonnegative'),
  Setting('output_dir', str, None, 'run', "Where the run is written; a folder in runs/ named after the settings unless given.", changes_results=False),
  Setting('title', str, '', 'run', 'What the plots are called.', changes_results=False),
  # Where it runs.
  Setting('runtime', RUNTIMES, 'in_process', 'runtime', "in_process (on GPUs, too), TFF's own native, or remote workers."),
  Setting('workers', str, None, 'runtime', 'The remote workers, as host:port,host:port.', None, {'runtime': ('remote',)}, changes_results=False),
  Setting('client_state_storage', ('memory', 'disk'), 'memory', 'runtime', "Where SCAFFOLD's client states are kept between rounds.", None, {'algorithm': ('scaffold',)}, changes_results=False),
)  # fmt: skip
BY_NAME = {setting.name: setting for setting in SETTINGS}


def define_flags() -> None:
  """Registers one absl flag for each setting."""
  define = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    bool: flags.DEFINE_boolean,
  }
  for s in SETTINGS:
    text = f'[{s.group}] {s.help}'
    if isinstance(s.kind, tuple):
      flags.DEFINE_enum(s.name, s.default, list(s.kind), text)
    else:
      define[s.kind](s.name, s.default, text)


def check(values: Mapping[str, Any], given: frozenset[str]) -> None:
  """Raises a `UsageError` if a value is out of range, or was given though nothing uses it.

  Args:
    values: The value of each setting.
    given: The names of those that the user gave.
  """
  for name in sorted(given):
    for other, uses in BY_NAME[name].only_for.items():
      if values[other] not in uses:
        raise UsageError(
          f'--{name} means nothing with --{other}={values[other]}; it goes with {other} {", ".join(uses)}.'
        )
  for s in SETTINGS:
    value = values[s.name]
    if value is not None and s.range is not None:
      fits, allowed = _RANGES[s.range]
      if not fits(value):
        raise UsageError(f'--{s.name}={value} is out of range: it takes {allowed}.')
  if values['local_steps'] is not None and values['local_epochs'] is not None:
    raise UsageError('--local_steps and --local_epochs exclude each other: give one.')
  if values['runtime'] == 'remote' and not values['workers']:
    raise UsageError('--runtime=remote needs --workers=host:port,host:port.')
  if values['num_clients'] is not None and values['clients_per_round'] > values['num_clients']:
    raise UsageError(
      f'--clients_per_round={values["clients_per_round"]} is more than --num_clients={values["num_clients"]}.'
    )


def resolve(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of a run as they are saved: only those that mean something for it."""
  resolved = {
    s.name: values[s.name]
    for s in SETTINGS
    if all(values[other] in uses for other, uses in s.only_for.items())
  }
  if resolved['local_steps'] is None and resolved['local_epochs'] is None:
    resolved['local_steps'] = 20
  return resolved


def run_name(settings: Mapping[str, Any]) -> str:
  """Returns a folder name that spells the main settings of a run."""
  parts = [settings['task'], settings['algorithm'], settings['client_optimizer']]
  if settings.get('alpha') is not None:
    parts.append(f'alpha{settings["alpha"]:g}')
  parts += [
    f'wd{settings["weight_decay"]:g}',
    f'rounds{settings["total_rounds"]}',
    f'seed{settings["seed"]}',
  ]
  return '_'.join(parts)


def difference(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
  """Returns a line for each setting that makes two runs different."""
  names = [s.name for s in SETTINGS if s.changes_results]
  return [
    f'{name}: {saved.get(name)} in the directory, {wanted.get(name)} now'
    for name in names
    if saved.get(name) != wanted.get(name)
  ]
