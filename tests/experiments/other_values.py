# SPDX-License-Identifier: Apache-2.0
"""Another value for every setting."""

from experiments.definition import catalogue, settings


def another_value(name, resolved):
  """Returns a value of a setting that is allowed, and not the one that it has."""
  setting, value = settings.BY_NAME[name], resolved[name]
  if name == 'task':
    return next(task for task in catalogue.TASKS if task != value)
  if name == 'model':
    return next((m for m in catalogue.TASKS[resolved['task']].models if m != value), None)
  if isinstance(setting.kind, tuple):
    return next(choice for choice in setting.kind if choice != value)
  if setting.kind is bool:
    return not value
  if setting.kind is str:
    return 'other'
  return 0.5 * value if value else 0.25 if setting.kind is float else 3
