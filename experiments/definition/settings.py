# SPDX-License-Identifier: Apache-2.0
"""Every setting of a run, in one table: the flags of `train`, what they allow, and their checks."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from absl import flags

from experiments.definition import catalogue

_RANGES = {
  'positive': (lambda v: v > 0, 'a positive number'),
  'nonnegative': (lambda v: 0 <= v < math.inf, 'a nonnegative number'),
  'fraction': (lambda v: 0 <= v < 1, 'a number in [0, 1)'),
  'factor': (lambda v: 0 < v <= 1, 'a number in (0, 1]'),
}


class UsageError(Exception):
  """Something that a user can mend; one line says what was given and what is allowed."""

  status = 2


class RunFailedError(UsageError):
  """A run ended before its time; what was done is saved."""

  status = 1


class RunDivergedError(RunFailedError):
  """A run ended because no client's update was finite any more; `result.json` says so."""

  status = 3


@dataclasses.dataclass(frozen=True)
class Setting:
  """One flag of `train`.

  Attributes:
    name: The flag's name.
    kind: The type of its value: `str`, `int`, `float`, `bool` or a tuple of choices.
    group: The part of a run that it belongs to.
    help: A sentence.
    default: Its default, unless the catalogue has one; None for none.
    range: The name of the allowed range of a number.
    changes_results: Whether two runs that differ only in it are different runs.
  """

  name: str
  kind: Any
  group: str
  help: str
  default: Any = None
  range: str | None = None
  changes_results: bool = True


def _choice(name: str) -> tuple[str, ...]:
  return tuple(catalogue.CHOICES[name])


# In this order `train --help` lists them. A choice of the catalogue stands before the settings that
# depend on it.
SETTINGS = (
  # What is learned, and on whose data.
  Setting('task', str, 'task',
    f'What is learned: {", ".join(catalogue.TASKS)}, or a task of --task_module.', 'digits'),
  Setting('task_module', str, 'task',
    'A module of yours that registers tasks when it is imported, as my_package.my_task.',
    changes_results=False),
  Setting('model', str, 'task',
    f'The model: {", ".join(catalogue.MODELS)}, as far as it fits the task.'),
  Setting('num_clients', int, 'task', 'How many clients hold the data.', range='positive'),
  Setting('partition', _choice('partition'), 'task', 'How the data is split.'),
  Setting('alpha', float, 'task',
    'Concentration of the Dirichlet split; small is heterogeneous.', range='positive'),
  Setting('augmentation', ('per_image', 'per_batch', 'none'), 'task',
    'Crop and flip: decided per image (the paper) or per batch (its released code).'),
  Setting('padding', ('mean', 'black'), 'task',
    "What a crop takes from beyond the image: the mean colour (the released code), or black."),
  Setting('pooling', ('global', 'top_left'), 'task',
    "The last pooling of resnet18: over the whole map, or the released code's 3x3 window."),
  Setting('crop_windows', bool, 'task', 'Whether each role is cropped to 2,000 and 400 windows.'),
  Setting('text', ('tff', 'leaf'), 'task',
    "Line breaks as in TFF's text, or spaces in their place (the released code)."),
  Setting('prediction', ('last', 'every'), 'task',
    'What is trained: the character after the last position (the paper), or after every one, '
    'which are 80 targets a window instead of 1.'),
  Setting('initialization', ('released', 'uniform'), 'task',
    'How the transformer starts: as in the released code, or uniform.'),
  Setting('identical_layers', bool, 'task',
    'Whether all layers of the transformer start alike, as in the released code.'),
  Setting('dropout', float, 'task',
    'The share of activations that training drops.', range='fraction'),
  Setting('input_dropout', bool, 'task', 'Whether the embedded input is dropped, too.'),
  Setting('precision', ('float32', 'bfloat16', 'float16'), 'task',
    'The type in which the model multiplies; weights, optimizer, norms, softmax, loss and metrics '
    'are float32 in any case. bfloat16 is for CPUs and GPUs that have it, float16 for GPUs.'),
  Setting('validation_share', float, 'task',
    "The share of each client's training examples that is held out, and evaluated on in place of "
    "the test set: choose settings by it.", range='fraction'),
  Setting('data_dir', str, 'task',
    "Where the data is, instead of the library's default folder.", changes_results=False),
  # What happens in a round.
  Setting('algorithm', _choice('algorithm'), 'algorithm',
    "The federated algorithm; centralized trains on all clients' data at once, as many examples a "
    "round.", 'fed_avg'),
  Setting('client_weighting', ('uniform', 'num_examples'), 'algorithm',
    'How clients are weighted in the mean: all alike, or by the examples that they hold.'),
  Setting('proximal_strength', float, 'algorithm',
    "FedProx's pull towards the server's model.", range='nonnegative'),
  Setting('extrapolation_epsilon', float, 'algorithm', "FedExP's epsilon.", range='nonnegative'),
  Setting('average_last_two', bool, 'algorithm',
    'Whether FedExP is evaluated on the mean of its last two models.'),
  Setting('regularization_strength', float, 'algorithm',
    "FedDyn's pull towards the server's model, its alpha.", range='positive'),
  # What a client does.
  Setting('client_optimizer', _choice('client_optimizer'), 'client',
    'nar clips gradient and weight decay together, clip the gradient alone (the baseline), sgd '
    'nothing.', 'nar'),
  Setting('learning_rate', float, 'client',
    "The clients' learning rate in the first round.", 0.01, 'nonnegative'),
  Setting('learning_rate_schedule', _choice('learning_rate_schedule'), 'client',
    'How it changes from round to round: exponential is the paper.', 'exponential'),
  Setting('learning_rate_decay', float, 'client',
    'Its factor from round to round, or from step to step.', range='factor'),
  Setting('learning_rate_decay_rounds', int, 'client',
    'The rounds until a cosine is at its end, or from step to step.', range='positive'),
  Setting('learning_rate_final_fraction', float, 'client',
    'What is left of it at the end of a cosine.', range='fraction'),
  Setting('learning_rate_warm_up', int, 'client',
    'How many rounds it rises to its schedule, in equal steps.', 0, 'nonnegative'),
  Setting('first_round_decays', bool, 'client',
    'Whether the first round of an exponential is decayed already, as in the released code.',
    False),
  Setting('weight_decay', float, 'client',
    'The weight-decay coefficient (WD in the paper); a step takes learning_rate * weight_decay '
    'off.', 0.0, 'nonnegative'),
  Setting('weight_decay_schedule', _choice('weight_decay_schedule'), 'client',
    'How it changes from round to round, on top of the learning rate.', 'exponential'),
  Setting('weight_decay_decay', float, 'client',
    'Its factor from round to round, or from step to step, on top of that of the learning rate.',
    range='factor'),
  Setting('weight_decay_decay_rounds', int, 'client',
    'As learning_rate_decay_rounds.', range='positive'),
  Setting('weight_decay_final_fraction', float, 'client',
    'As learning_rate_final_fraction.', range='fraction'),
  Setting('weight_decay_warm_up', int, 'client', 'As learning_rate_warm_up.', 0, 'nonnegative'),
  Setting('max_norm', float, 'client',
    'The bound A of the norm that is clipped.', range='positive'),
  Setting('norm_epsilon', float, 'client',
    'Added to the norm: 0 is the paper, 1e-6 its released code.', range='nonnegative'),
  Setting('local_steps', int, 'client',
    'Batches of a client in a round (20 unless local_epochs is given).', range='positive'),
  Setting('local_epochs', int, 'client',
    'Epochs of a client in a round, instead of local_steps.', range='positive'),
  Setting('batch_size', int, 'client', 'Examples in a batch.', 50, 'positive'),
  # What the server does with the mean update.
  Setting('server_learning_rate', float, 'server',
    "The server's learning rate.", range='nonnegative'),
  Setting('server_momentum', float, 'server', "FedAvgM's momentum.", range='fraction'),
  Setting('server_beta_1', float, 'server', "FedAdam's first moment.", range='fraction'),
  Setting('server_beta_2', float, 'server', "FedAdam's second moment.", range='fraction'),
  Setting('server_epsilon', float, 'server', "FedAdam's epsilon.", range='nonnegative'),
  Setting('server_variant', ('paper', 'reference'), 'server',
    "FedAdam or FedExP as in its paper, or as in FedNAR's released code."),
  # The run.
  Setting('total_rounds', int, 'run',
    'How many rounds; more of them continue a run that is finished.', 100, 'positive'),
  Setting('clients_per_round', int, 'run',
    'How many clients take part in a round.', 10, 'positive'),
  Setting('rounds_per_evaluation', int, 'run',
    'How often the test set is evaluated.', 10, 'positive'),
  Setting('evaluation_examples', int, 'run',
    'How many test examples are evaluated before the last round, the same ones in all runs; 0 for '
    'all. The last round takes the whole test set.', 0, 'nonnegative'),
  Setting('rounds_per_client_evaluation', int, 'run',
    "How often all clients' accuracies on their own training examples are measured; 0 for never.",
    0, 'nonnegative'),
  Setting('rounds_per_checkpoint', int, 'run',
    'How often the run is saved.', 50, 'positive', changes_results=False),
  Setting('stop_on_divergence', int, 'run',
    'After how many rounds in a row without a finite client the run ends as diverged; 0 for '
    'never.', 5, 'nonnegative', changes_results=False),
  Setting('seed', int, 'run',
    'The seed that all random choices are derived from.', 0, 'nonnegative'),
  Setting('partition_seed', int, 'run', 'The seed of the split alone.', range='nonnegative'),
  Setting('sampling_seed', int, 'run',
    'The seed of the choice of clients alone.', range='nonnegative'),
  Setting('model_seed', int, 'run', 'The seed of the initial weights alone.', range='nonnegative'),
  Setting('batch_seed', int, 'run',
    'The seed of batches, dropout and augmentation alone.', range='nonnegative'),
  Setting('output_dir', str, 'run',
    'Where the run is written; a folder in runs/ named after the settings unless given.',
    changes_results=False),
  Setting('title', str, 'run',
    'What the plots are called; a line that spells the settings unless given.',
    changes_results=False),
  # Where it runs.
  Setting('runtime', _choice('runtime'), 'runtime',
    "in_process (on GPUs, too), a cluster on Ray (on GPUs, too), TFF's own native, or TFF's remote "
    'workers.', 'in_process'),
  Setting('workers', str, 'runtime',
    'The remote workers, as host:port,host:port.', changes_results=False),
  Setting('cluster_address', str, 'runtime',
    'The Ray cluster: auto, host:port or ray://host:port; without it, Ray is started on this '
    'machine.', changes_results=False),
  Setting('num_workers', int, 'runtime',
    'How many workers of the cluster; by default as many as it has CPUs and GPUs for. Last bits '
    'depend on it.', range='positive', changes_results=False),
  Setting('gpus_per_worker', float, 'runtime',
    'How many GPUs each of them has; a fraction shares one.', range='nonnegative',
    changes_results=False),
  Setting('clients_per_device', int, 'runtime',
    'How many clients train at the same time on a device: by default one on each core of the CPU, '
    'or as many as a GPU has 4 GB of memory, at most 4.', range='positive', changes_results=False),
  Setting('deterministic', bool, 'runtime',
    'Whether operations give the same bits from run to run on a GPU, too, which makes some '
    'slower. On a CPU all do, but with this flag some compute in another way, so that last bits '
    'differ.'),
  Setting('tf32', bool, 'runtime',
    "Whether a GPU may multiply with 10 bits of mantissa (TF32), as it does unless told "
    "otherwise."),
  Setting('jit_compile', bool, 'runtime',
    'Whether XLA compiles the local step, which needs full batches; dropout draws other numbers '
    'then. Slower on a CPU.'),
  Setting('client_state_storage', ('memory', 'disk'), 'runtime',
    'Where the states of clients are kept between rounds.', changes_results=False),
)  # fmt: skip
BY_NAME = {setting.name: setting for setting in SETTINGS}

DEFAULT_LOCAL_STEPS = 20


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
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
      flags.DEFINE_enum(s.name, s.default, list(s.kind), text, flag_values=flag_values)
    else:
      define[s.kind](s.name, s.default, text, flag_values=flag_values)


def check(settings: Mapping[str, Any], given: Mapping[str, Any]) -> None:
  """Raises a `UsageError` if a value is not allowed, or was given though nothing uses it.

  Args:
    settings: The settings of the run, resolved.
    given: What the user gave, by name.
  """
  for name in given:
    for choice, values in catalogue.owners(name).items():
      found = settings.get(choice)
      if found not in (None, *values):
        raise UsageError(
          f'--{name} means nothing with --{choice}={found}; '
          f'it goes with {choice} {", ".join(values)}.'
        )
  for name, value in settings.items():
    allowed_range = BY_NAME[name].range
    if value is not None and allowed_range is not None:
      fits, allowed = _RANGES[allowed_range]
      if not fits(value):
        raise UsageError(f'--{name}={value} is out of range: it takes {allowed}.')
  _check_model(settings)
  _check_schedules(settings, given)
  if settings.get('local_steps') is not None and settings.get('local_epochs') is not None:
    raise UsageError('--local_steps and --local_epochs exclude each other: give one.')
  if settings['runtime'] == 'remote':
    _check_workers(settings['workers'])
  if settings['algorithm'] == 'centralized' and settings['rounds_per_client_evaluation']:
    raise UsageError(
      '--rounds_per_client_evaluation means nothing with --algorithm=centralized, '
      'which has no clients; `python -m experiments.evaluate` tells their accuracies afterwards.'
    )
  num_clients = settings.get('num_clients')
  if num_clients is not None and settings['clients_per_round'] > num_clients:
    raise UsageError(
      f'--clients_per_round={settings["clients_per_round"]} is more than '
      f'--num_clients={num_clients}.'
    )


def check_task(task: str) -> None:
  """Raises a `UsageError` if a task is not known."""
  if task not in catalogue.TASKS:
    raise UsageError(
      f'--task={task} is unknown: it takes {", ".join(catalogue.TASKS)}, '
      'or a task that --task_module registers.'
    )


def _check_model(settings):
  models = catalogue.TASKS[settings['task']].models
  if models and settings['model'] not in models:
    raise UsageError(
      f'--model={settings["model"]} does not fit --task={settings["task"]}: '
      f'it takes {", ".join(models)}.'
    )


def _check_schedules(settings, given):
  schedules = {rate: settings[f'{rate}_schedule'] for rate in ('learning_rate', 'weight_decay')}
  for rate, schedule in schedules.items():
    name = f'{rate}_decay_rounds'
    if name in settings and settings[name] is None:
      # Not the rounds of the run: more of these continue it, with the rates that it had.
      raise UsageError(f'--{rate}_schedule={schedule} needs --{name}, a number of rounds.')
  if settings.get('server_variant') == 'reference' and schedules['learning_rate'] != 'exponential':
    raise UsageError(
      '--server_variant=reference decays with the learning rate and needs '
      f'--learning_rate_schedule=exponential, found {schedules["learning_rate"]}.'
    )
  if given.get('first_round_decays') and 'exponential' not in schedules.values():
    found = ' and '.join(f'--{rate}_schedule={schedule}' for rate, schedule in schedules.items())
    raise UsageError(
      f'--first_round_decays means nothing with {found}; it goes with a schedule exponential.'
    )


def _check_workers(workers):
  for worker in (workers or '').split(','):
    host, _, port = worker.rpartition(':')
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
      raise UsageError(
        f'--runtime=remote needs --workers=host:port,host:port, found --workers={workers or ""}.'
      )
