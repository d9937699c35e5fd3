# SPDX-License-Identifier: Apache-2.0
"""The cells of a sweep: presets or flag files, overrides, seeds; which are done, which may run."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.definition import parsing, presets
from experiments.definition import settings as settings_lib
from experiments.definition.settings import UsageError
from experiments.running import directory

# Settings of `train` that a sweep has a flag of its own for.
_OWN_FLAGS = {'seed': '--seeds', 'output_dir': '--output_dir'}


@dataclasses.dataclass(frozen=True)
class Cell:
  """One run of a sweep.

  Attributes:
    directory: Where it is written.
    arguments: Those of `train`.
    settings: What they mean.
  """

  directory: pathlib.Path
  arguments: tuple[str, ...]
  settings: Mapping[str, Any]


def sources(
  table: str | None, figure: str | None, variant: str | None, names: Sequence[str] | None
) -> dict[str, str]:
  """Returns the argument of `train` for each source of cells, by its name.

  Args:
    table: A table of the paper.
    figure: A figure of the paper; of the three sources, one is given.
    variant: The variant of a table or figure; None is the paper's.
    names: Names of presets, or patterns of them, or a user's own flag files.

  Raises:
    UsageError: If not one source is given, or a name is not known.
  """
  if sum(source is not None for source in (table, figure, names)) != 1:
    raise UsageError('give one of --table, --figure and --presets.')
  if names is None:
    found = presets.cells(table, figure, variant or 'paper')
    return {name: f'--preset={name}' for name in found}
  if variant is not None:
    raise UsageError(
      '--variant goes with --table or --figure; the name of a preset begins with it.'
    )
  if not any(names):
    raise UsageError('--presets is empty; it takes names of presets, patterns of them, or files.')
  found = {}
  for name in names:
    if os.path.isfile(name):
      _add(found, pathlib.Path(name).stem, f'--flagfile={name}')
      continue
    for match in presets.matching(name) or [name]:
      presets.preset(match)  # Complains if there is none.
      found[match] = f'--preset={match}'
  return found


def _add(found, key, value):
  if found.setdefault(key, value) != value:
    raise UsageError(f'{found[key]} and {value} would share the folder {key}.')


def overrides(texts: Iterable[str]) -> list[list[tuple[str, str]]]:
  """Returns each combination of `name=value` or `name=a,b,c`, as a list of (name, value)."""
  axes = []
  for text in texts:
    name, equals, values = text.partition('=')
    if not equals or not values:
      raise UsageError(f'--set takes name=value or name=a,b,c, found {text!r}.')
    if name not in settings_lib.BY_NAME or name in _OWN_FLAGS:
      hint = f'; {_OWN_FLAGS[name]} is a flag of its own' if name in _OWN_FLAGS else ''
      raise UsageError(f'--set takes a setting of `train`, found {text!r}{hint}.')
    axes.append([(name, value) for value in values.split(',')])
  return [list(combination) for combination in itertools.product(*axes)]


def check_seeds(seeds: Sequence[str]) -> None:
  """Raises a `UsageError` if there is no seed, or one that is none."""
  if not seeds or not all(seed.isdecimal() for seed in seeds):
    raise UsageError(f'--seeds takes nonnegative integers as 0,1,2, found {",".join(seeds)!r}.')


def make(
  found: Mapping[str, str],
  combinations: Sequence[Sequence[tuple[str, str]]],
  seeds: Sequence[str],
  output_dir: str,
) -> list[Cell]:
  """Returns the cells of a grid, seed by seed: the first seed alone fills a table.

  Raises:
    UsageError: If `train` would refuse one, or two would share a directory.
  """
  cells = {}
  for seed, (name, source), combination in itertools.product(seeds, found.items(), combinations):
    named = [
      f'{setting}{value}'
      for setting, value in combination
      if settings_lib.BY_NAME[setting].changes_results
    ]
    folder = '_'.join([name, *(part.replace('/', '-') for part in named), f'seed{seed}'])
    arguments = (source, *(f'--{n}={v}' for n, v in combination), f'--seed={seed}')
    if folder in cells:
      raise UsageError(f'two cells would share the folder {folder}.')
    try:
      settings = parsing.parse(arguments)
    except UsageError as e:
      raise UsageError(f'{folder}: {e}') from e
    path = pathlib.Path(output_dir) / folder
    cells[folder] = Cell(path, (*arguments, f'--output_dir={path}'), settings)
  return list(cells.values())


def narrow(
  found: Mapping[str, str], algorithms: Sequence[str] | None, alphas: Sequence[str] | None
) -> dict[str, str]:
  """Returns the sources whose runs have one of some algorithms and one of some alphas.

  Raises:
    UsageError: If a value is none, or no source has it.
  """
  narrowed = dict(found)
  for flag, wanted in (('algorithm', algorithms), ('alpha', alphas)):
    if wanted is None:
      continue
    values = {name: parsing.parse([source]).get(flag) for name, source in narrowed.items()}
    # As text: 1, 1.0 and 1e0 are one alpha.
    texts = {name: _plain(value) for name, value in values.items() if value is not None}
    known = dict.fromkeys(texts.values())
    if not wanted or not {_plain(value) for value in wanted} <= set(known):
      raise UsageError(
        f'--{flag}s={",".join(wanted)}: the cells have {", ".join(known) or "none"}.'
      )
    kept = {_plain(value) for value in wanted}
    narrowed = {name: source for name, source in narrowed.items() if texts.get(name) in kept}
  return narrowed


def _plain(value):
  try:
    return f'{float(value):g}'
  except ValueError:
    return value


def refusal(cell: Cell) -> str | None:
  """Returns why a cell's directory cannot be used for it, or None if it can."""
  try:
    directory.check(cell.directory, cell.settings)
  except UsageError as e:
    return str(e)
  return None


def is_finished(cell: Cell) -> bool:
  """Returns whether a cell has nothing left to do, because it is finished or diverged."""
  return directory.is_finished(cell.directory, cell.settings) or directory.has_diverged(
    cell.directory
  )
