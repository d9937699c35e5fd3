# SPDX-License-Identifier: Apache-2.0
"""What `train --help` prints: the settings by group, with all their defaults."""

import re
import textwrap
from collections.abc import Mapping, Sequence

from absl import flags

from experiments.definition import catalogue, settings

_GROUPS = {
  'task': 'What is learned, and on whose data',
  'algorithm': 'What happens in a round',
  'client': 'What a client does',
  'server': 'What the server does with the mean update',
  'run': 'The run',
  'runtime': 'Where it runs',
}
_OTHERS = ('preset', 'print_flags', 'quiet', 'debug')


def train(docstring: str) -> str:
  """Returns the whole text."""
  lines = [docstring.strip(), '', 'Flags, as --name=value:']
  for group, title in _GROUPS.items():
    lines += ['', f'{title}:']
    for setting in settings.SETTINGS:
      if setting.group == group:
        lines += _entry(setting.name, f'{setting.help} {_values(setting)}')
  lines += ['', 'Of this command:']
  for name in _OTHERS:
    if name in flags.FLAGS:
      lines += _entry(name, flags.FLAGS[name].help)
  lines += _entry('flagfile', 'A file with flags, one a line.')  # This and the next are of absl.
  lines += _entry('helpfull', 'List all flags, those of the libraries too.')
  return '\n'.join(lines)


def grouped(docstring: str, groups: Mapping[str, Sequence[str]]) -> str:
  """Returns the text of a command whose flags are registered.

  Args:
    docstring: That of the command's module.
    groups: The names of the flags by the title of their group.
  """
  lines = [docstring.strip(), '', 'Flags, as --name=value:']
  for title, names in groups.items():
    lines += ['', f'{title}:']
    for name in names:
      flag = flags.FLAGS[name]
      values = '|'.join(getattr(flag.parser, 'enum_values', ()))
      has_default = flag.default not in (None, []) and flag.default is not False
      values += f'; default {_flag_text(flag.default)}' if has_default else ''
      # What absl puts before the help of an enum, and after that of a flag that may be repeated.
      text = re.sub('^<.*?>: |;\\s+repeat this option .*', '', flag.help, flags=re.DOTALL)
      lines += _entry(name, f'{text} ({values.lstrip("; ")})' if values else text)
  return '\n'.join(lines)


def _flag_text(default):
  return ','.join(default) if isinstance(default, list) else _text(default)


def _entry(name, text):
  wrapped = textwrap.wrap(' '.join(text.split()), 96)
  return [f'  --{name}', *(f'      {line}' for line in wrapped)]


def _values(setting):
  """Says what a setting takes, what it belongs to, and its defaults."""
  if isinstance(setting.kind, tuple):
    kind = '|'.join(setting.kind)
  else:
    kind = {bool: 'true|false', int: 'integer', float: 'number', str: 'text'}[setting.kind]
  return f'({kind}{_defaults(setting)})'


def _defaults(setting):
  if setting.default is not None:
    return f'; default {_text(setting.default)}'
  by_value = {}
  for options in catalogue.CHOICES.values():
    for option in options.values():
      if setting.name in option.settings:
        by_value.setdefault(option.settings[setting.name], []).append(option.name)
  for_none = by_value.pop(None, [])
  if by_value:
    return '; default ' + ', '.join(f'{_text(v)} for {" ".join(o)}' for v, o in by_value.items())
  return f'; for {" ".join(for_none)}' if for_none else ''


def _text(value):
  return f'{value:g}' if isinstance(value, float) else str(value).lower()
