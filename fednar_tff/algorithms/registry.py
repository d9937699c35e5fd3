"""The algorithms by name, and what the paper's text and its released code set for each."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow_federated as tff

from fednar_tff.algorithms import (
  fed_adam,
  fed_avg,
  fed_avgm,
  fed_exp,
  fed_prox,
  local_training,
  scaffold,
)

_BUILDERS = {
  'fed_avg': fed_avg.build_fed_avg,
  'fed_prox': fed_prox.build_fed_prox,
  'scaffold': scaffold.build_scaffold,
  'fed_exp': fed_exp.build_fed_exp,
  'fed_adam': fed_adam.build_fed_adam,
  'fed_avgm': fed_avgm.build_fed_avgm,
}

ALGORITHMS = tuple(_BUILDERS)

_UNIFORM = tff.learning.ClientWeighting.UNIFORM
_DATA_SIZE = local_training.DATA_SIZE

# FedProx's strength and FedAdam's numbers are not in the paper: both presets have those of the
# released code.
_PRESETS = {
  'paper': {
    'fed_avg': {'client_weighting': _UNIFORM},
    'fed_prox': {'client_weighting': _UNIFORM, 'proximal_strength': 0.001},
    'scaffold': {'client_weighting': _UNIFORM},
    'fed_exp': {
      'client_weighting': _UNIFORM,
      'epsilon': 0.0,
      'variant': 'paper',
      'average_last_two': False,
    },
    'fed_adam': {'client_weighting': _UNIFORM, 'variant': 'paper'},
    'fed_avgm': {'client_weighting': _UNIFORM, 'server_momentum': 0.9},
  },
  'reference': {
    'fed_avg': {'client_weighting': _DATA_SIZE},
    'fed_prox': {'client_weighting': _DATA_SIZE, 'proximal_strength': 0.001},
    'scaffold': {'client_weighting': _DATA_SIZE},
    'fed_exp': {
      'client_weighting': _DATA_SIZE,
      'epsilon': 0.0,
      'variant': 'reference',
      'average_last_two': True,
    },
    'fed_adam': {'client_weighting': _DATA_SIZE, 'variant': 'reference'},
    'fed_avgm': {'client_weighting': _DATA_SIZE, 'server_momentum': 0.9},
  },
}

PRESETS = tuple(_PRESETS)


def _look_up(kind: str, name: str, known: Mapping[str, Any]) -> Any:
  if name not in known:
    raise ValueError(f'Unknown {kind} {name!r}; known are {", ".join(known)}.')
  return known[name]


def get_builder(name: str) -> Callable[..., Any]:
  """Returns the builder of an algorithm, `get_builder('fed_avg')` for example is `build_fed_avg`.

  Args:
    name: One of `ALGORITHMS`.

  Raises:
    ValueError: If the name is not known.
  """
  return _look_up('algorithm', name, _BUILDERS)


def get_preset(preset: str, name: str) -> dict[str, Any]:
  """Returns those arguments of a builder in which the paper and its released code may differ.

  What depends on a run is not in it: the first round's learning rate (`first_round_decays` of
  `exponential_decay`), and, for `'reference'`, `epsilon_decay` of FedAdam and FedExP, which is the
  square of the learning rate's decay, and `total_examples` of SCAFFOLD.

  Args:
    preset: One of `PRESETS`: `'paper'` for the paper's text, `'reference'` for its released code.
    name: One of `ALGORITHMS`.

  Raises:
    ValueError: If a name is not known.
  """
  return dict(_look_up('algorithm', name, _look_up('preset', preset, _PRESETS)))
