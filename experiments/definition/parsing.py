# SPDX-License-Identifier: Apache-2.0
"""From the flags of `train` to the settings of a run, checked and with every default resolved."""

import importlib
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from experiments.definition import catalogue, identity, presets
from experiments.definition import settings as settings_lib
from experiments.definition.settings import UsageError

# Either replaces the other, of a preset too.
_EXCLUSIVE = ('local_steps', 'local_epochs')


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Registers the flags that define a run: one for each setting, and `preset`."""
  settings_lib.define_flags(flag_values)
  flags.DEFINE_string(
    'preset',
    None,
    "A cell of the paper's tables and figures, as variant/name; other flags override it.",
    flag_values=flag_values,
  )


def read(flag_values: flags.FlagValues = flags.FLAGS) -> dict[str, Any]:
  """Returns the settings of the run that some flags, parsed already, define.

  Raises:
    UsageError: If they do not define one.
  """
  given = {
    s.name: flag_values[s.name].value
    for s in settings_lib.SETTINGS
    if flag_values[s.name].present and flag_values[s.name].value is not None
  }
  chosen = (
    {} if flag_values['preset'].value is None else presets.preset(flag_values['preset'].value)
  )
  if any(name in given for name in _EXCLUSIVE):
    chosen = {k: v for k, v in chosen.items() if k not in _EXCLUSIVE}
  values = {**chosen, **given}
  if values.get('task_module') is not None:
    load_task_module(values['task_module'])
  settings_lib.check_task(values.get('task', settings_lib.BY_NAME['task'].default))
  settings = identity.resolve(values)
  settings_lib.check(settings, given)
  return settings


def parse(arguments: Sequence[str]) -> dict[str, Any]:
  """Returns the settings of the run that arguments of `train` define.

  Raises:
    UsageError: If they do not define one.
  """
  flag_values = flags.FlagValues()
  define_flags(flag_values)
  try:
    rest = flag_values(['train', *arguments])[1:]
  except flags.Error as e:
    raise UsageError(' '.join(str(e).split())) from e
  if rest:
    raise UsageError(f'{rest[0]!r} is not a flag; all arguments are --name=value.')
  return read(flag_values)


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
  """Returns the arguments of `train` that define a run, without where it is written."""
  return [
    f'--{name}={str(value).lower() if isinstance(value, bool) else value}'
    for name, value in settings.items()
    if value is not None and name != 'output_dir'
  ]


def load_task_module(name: str) -> None:
  """Imports a module that registers tasks, and makes those known.

  Raises:
    UsageError: If it cannot be imported.
  """
  try:
    importlib.import_module(name)
  except Exception as e:  # It is the user's code: anything can happen there.
    reason = traceback.format_exception_only(e)[-1].strip()
    raise UsageError(f'--task_module={name} cannot be imported: {reason}') from e
  from fednar_tff import tasks  # TensorFlow comes with it, as it did with the module.

  for task in tasks.task_names():
    if task not in catalogue.TASKS:
      taken = tasks.task_arguments(task)
      known = {n: v for n, v in taken.items() if 'task' in catalogue.owners(n)}
      catalogue.add_task(task, known)
