"""What `train --help` prints: the settings by group, each with its default, or that of each task or algorithm."""

import textwrap

from experiments.definition import catalogue, settings

_GROUPS = {
  'task': 'What is learned, and on whose data',
  'algorithm': 'What happens in a round',
  'client': 'What a client does',
  'server': 'What the server does with the mean update',
  'run': 'The run',
  'runtime': 'Where it runs',
}
_OTHERS = {
  'preset': "A cell of the paper's tables and figures, as variant/name; other flags override it.",
  'flagfile': 'A file with flags, one a line.',
  'print_flags': 'Only print the settings of the run, as a file for --flagfile.',
  'quiet': 'Print nothing but errors.',
  'debug': 'Show the traceback of an error.',
  'helpfull': 'List all flags, those of the libraries too.',
}


def train(docstring: str) -> str:
  """Returns the whole text."""
  lines = [docstring.strip(), '', 'Flags, as --name=value:']
  for group, title in _GROUPS.items():
    lines += ['', f'{title}:']
    for setting in settings.SETTINGS:
      if setting.group == group:
        lines += _entry(setting.name, f'{setting.help} {_values(setting)}')
  lines += ['', 'Of this command:']
  for name, text in _OTHERS.items():
    lines += _entry(name, text)
  return '\n'.join(lines)


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
  found = [
    (option.name, option.settings[setting.name])
    for options in catalogue.CHOICES.values()
    for option in options.values()
    if setting.name in option.settings
  ]
  stated = [(owner, value) for owner, value in found if value is not None]
  if stated:
    return '; ' + ', '.join(f'{owner}: {_text(value)}' for owner, value in stated)
  return '; only for ' + ', '.join(owner for owner, _ in found) if found else ''


def _text(value):
  return f'{value:g}' if isinstance(value, float) else str(value).lower()
