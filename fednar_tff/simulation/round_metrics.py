# SPDX-License-Identifier: Apache-2.0
"""The metrics of a round under short names, and what they tell about its clients."""

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np

from fednar_tff import algorithms


def flatten_metrics(metrics: Mapping[str, Any]) -> collections.OrderedDict[str, Any]:
  """Returns a round's metrics, nested as the process gives them, under short names.

  Metrics of the model get the prefix `train_`. An unknown name of two levels is joined by a slash.
  """
  flat = collections.OrderedDict()

  def add(prefix, value):
    if isinstance(value, Mapping):
      for key, part in value.items():
        add((*prefix, key), part)
    elif isinstance(value, (tuple, list)):
      for i, part in enumerate(value):
        add((*prefix, str(i)), part)
    else:
      flat[_short_name(prefix)] = np.asarray(value)[()]

  add((), metrics)
  return flat


def _short_name(path: tuple[str, ...]) -> str:
  if path[:2] == ('client_work', 'train'):
    return path[2] if path[2] in algorithms.TRAINING_METRICS else '_'.join(('train', *path[2:]))
  if path[0] in ('client_work', 'finalizer'):
    return '/'.join(path[1:])
  return '/'.join(path)


def is_without_clients(metrics: Mapping[str, Any]) -> bool:
  """Returns whether no client had a finite update; False if the process does not tell."""
  return bool(metrics.get('num_non_finite_clients')) and not metrics.get('total_steps')


def without_client_means(metrics: Mapping[str, Any]) -> collections.OrderedDict[str, Any]:
  """Returns the metrics of a round without clients, with None in place of each mean over them."""
  return collections.OrderedDict(
    (name, None if _is_client_mean(name, value) else value) for name, value in metrics.items()
  )


def _is_client_mean(name: str, value: Any) -> bool:
  is_of_clients = name.startswith('train_') or name == 'mean_clipped_norm'
  return is_of_clients and isinstance(value, (float, np.floating))
