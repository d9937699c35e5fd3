# SPDX-License-Identifier: Apache-2.0
"""Which run is which: defaults made explicit, what makes two runs differ, and a run's name."""

from collections.abc import Collection, Mapping
from typing import Any

from experiments.definition import catalogue
from experiments.definition import settings as settings_lib

SEEDS = ('seed', 'partition_seed', 'sampling_seed', 'model_seed', 'batch_seed')

# What runs did before there was a setting for it, where its default is another one.
_BEFORE = {'padding': 'black', 'initialization': 'uniform', 'input_dropout': True}

# What a run's name always has, with what is written before the value.
_NAME_PARTS = {
  'task': '',
  'model': '',
  'algorithm': '',
  'client_optimizer': '',
  'alpha': 'alpha',
  'learning_rate': 'lr',
  'weight_decay': 'wd',
  'max_norm': 'A',
}
# Choices that a run's name and a report's title say where they are not at their default; the
# others, their main settings tell.
_NAMED_CHOICES = ('learning_rate_schedule', 'weight_decay_schedule')
# More rounds continue a run, in the folder that it has.
_NOT_IN_NAME = ('total_rounds', 'seed')


def resolve(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns all settings that mean something for a run, each default as the value that it means.

  Args:
    values: Settings by name; one that is missing or None is at its default. Names that are no
      settings are left out. They may be those of an old `config.json`, or of a task that is not
      known here; the latter's settings stay as they are.
  """
  resolved = {}
  known_task = values.get('task') is None or values['task'] in catalogue.TASKS
  for setting in settings_lib.SETTINGS:
    name, value = setting.name, values.get(setting.name)
    if not known_task and 'task' in catalogue.owners(name):
      if value is not None:
        resolved[name] = value
      continue
    if not catalogue.belongs(name, resolved):
      continue
    if value is None:
      value = setting.default if setting.default is not None else catalogue.default(name, resolved)
    resolved[name] = value
  if resolved['local_steps'] is None and resolved['local_epochs'] is None:
    resolved['local_steps'] = settings_lib.DEFAULT_LOCAL_STEPS
  return {k: v for k, v in resolved.items() if v is not None or k not in _LOCAL_WORK}


_LOCAL_WORK = ('local_steps', 'local_epochs')


def of_config(saved: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings of a `config.json`; for what an older one lacks, what was done then."""
  return {**_BEFORE, **saved}


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings that change results, but for the seeds: equal for the runs of one cell."""
  return {
    name: value
    for name, value in resolve(settings).items()
    if settings_lib.BY_NAME[name].changes_results and name not in SEEDS
  }


def seeds(settings: Mapping[str, Any]) -> dict[str, int]:
  """Returns the seeds that were given: what sets the runs of one cell apart."""
  resolved = resolve(settings)
  return {name: resolved[name] for name in SEEDS if resolved.get(name) is not None}


def difference(
  saved: Mapping[str, Any], wanted: Mapping[str, Any], ignored: Collection[str] = ()
) -> list[str]:
  """Returns a line for each setting, seeds included, that makes two runs different.

  Args:
    saved: The settings of the run in a directory.
    wanted: The settings of the run that is to go there.
    ignored: Settings that may differ.
  """
  ours, theirs = ({**identity(s), **seeds(s)} for s in (saved, wanted))
  return [
    f'{s.name}: {ours.get(s.name, "none")} in the directory, {theirs.get(s.name, "none")} now'
    for s in settings_lib.SETTINGS
    if s.name not in ignored and ours.get(s.name) != theirs.get(s.name)
  ]


def usual(settings: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings that a run would have if only its choices were given."""
  return resolve({c: settings.get(c) for c in catalogue.CHOICES if c not in _NAMED_CHOICES})


def run_name(settings: Mapping[str, Any]) -> str:
  """Returns a folder name: the main settings of a run, and all that are not at their default."""
  resolved = resolve(settings)
  defaults = usual(resolved)
  parts = [
    f'{prefix}{_text(resolved[name])}'
    for name, prefix in _NAME_PARTS.items()
    if resolved.get(name) is not None
  ]
  others = {**identity(resolved), **seeds(resolved)}
  parts += [
    f'{name}{_text(value)}'
    for name, value in others.items()
    if name not in _NAME_PARTS and name not in _NOT_IN_NAME and value != defaults.get(name)
  ]
  return '_'.join([*parts, f'seed{resolved["seed"]}']).replace('/', '-')


def _text(value):
  return f'{value:g}' if isinstance(value, float) else str(value).lower()
