# SPDX-License-Identifier: Apache-2.0
"""The algorithms by name."""

from collections.abc import Callable
from typing import Any

from fednar_tff.algorithms import (
  centralized,
  fed_adam,
  fed_avg,
  fed_avgm,
  fed_dyn,
  fed_exp,
  fed_prox,
  scaffold,
)

_BUILDERS: dict[str, Callable[..., Any]] = {
  'fed_avg': fed_avg.build_fed_avg,
  'fed_prox': fed_prox.build_fed_prox,
  'scaffold': scaffold.build_scaffold,
  'fed_exp': fed_exp.build_fed_exp,
  'fed_adam': fed_adam.build_fed_adam,
  'fed_avgm': fed_avgm.build_fed_avgm,
  'fed_dyn': fed_dyn.build_fed_dyn,
  'centralized': centralized.build_centralized,
}

ALGORITHMS = tuple(_BUILDERS)


def get_builder(name: str) -> Callable[..., Any]:
  """Returns the builder of an algorithm, `get_builder('fed_avg')` for example is `build_fed_avg`.

  Args:
    name: One of `ALGORITHMS`.

  Raises:
    ValueError: If the name is not known.
  """
  if name not in _BUILDERS:
    raise ValueError(f'`name` must be one of {", ".join(_BUILDERS)}, found {name!r}.')
  return _BUILDERS[name]
