# SPDX-License-Identifier: Apache-2.0
"""The numbers that make a run, their checks, and what sets a run apart from others."""

from typing import Any, NamedTuple

from fednar_tff.simulation import round_metrics, seeds
from fednar_tff.tasks import Task


class Settings(NamedTuple):
  """The arguments of `run` that are numbers, with what it found for those that were not given."""

  total_rounds: int
  clients_per_round: int
  batch_size: int
  local_steps: int | None
  local_epochs: int | None
  seeds: seeds.Seeds
  rounds_per_evaluation: int
  evaluation_examples: int | None
  rounds_per_client_evaluation: int | None
  rounds_per_checkpoint: int
  packed: bool
  stop_on_divergence: int | None

  def check(self) -> None:
    """Raises a `ValueError` if a number of rounds is out of range."""
    for name in ('total_rounds', 'rounds_per_evaluation', 'rounds_per_checkpoint'):
      _check_positive(name, getattr(self, name), 'a positive integer')
    for name in ('evaluation_examples', 'rounds_per_client_evaluation', 'stop_on_divergence'):
      if getattr(self, name) is not None:
        _check_positive(name, getattr(self, name), 'a positive integer or None')


def _check_positive(name: str, value: int, allowed: str) -> None:
  if value < 1:
    raise ValueError(f'`{name}` must be {allowed}, found {value!r}.')


def describe(task: Task, process: Any, state: Any, settings: Settings) -> dict[str, Any]:
  """Returns what sets a run apart from others, but for its length, as values of JSON by name."""
  hparams = round_metrics.flatten_metrics({'hparams': process.get_hparams(state)})
  return {
    'clients_per_round': settings.clients_per_round,
    'batch_size': settings.batch_size,
    'local_steps': settings.local_steps,
    'local_epochs': settings.local_epochs,
    'sampling_seed': settings.seeds.sampling,
    'batch_seed': settings.seeds.batches,
    'rounds_per_evaluation': settings.rounds_per_evaluation,
    'packed': settings.packed,
    **_if_given('evaluation_examples', settings.evaluation_examples),
    **_if_given('rounds_per_client_evaluation', settings.rounds_per_client_evaluation),
    **_if_given('precision', unusual_precision(task)),
    **{name: str(value) for name, value in hparams.items()},
    'partition of the data': task.partition.hash,
    'type of the state (model or algorithm)': str(process.initialize.type_signature.result),
  }


def unusual_precision(task: Task) -> str | None:
  """Returns the precision of a task's model if it is not float32."""
  precision = getattr(task, 'precision', 'float32')
  return None if precision == 'float32' else precision


def _if_given(name: str, value: Any) -> dict[str, Any]:
  """Returns a setting only if it is given: runs of earlier versions do not have it."""
  return {} if value is None else {name: value}
