# SPDX-License-Identifier: Apache-2.0
"""What watches a run, and may end it: the protocol, and early stopping."""

import math
from collections.abc import Sequence
from typing import Any

# A callback is handed the run itself and its rounds; `run.py`, which defines both, imports this
# module.
_Run = Any
_Progress = Any


class CallbackError(RuntimeError):
  """A callback failed and ended the run, whose rounds are saved; the message says why."""


class Callback:
  """Watches a run. Subclasses override what they need.

  A run is handed to a callback as it is after the round, so `run.model_weights`, `run.evaluate()`
  and `run.stop(reason)` may be used. What a callback raises ends the run with a `CallbackError`,
  after the rounds that are done are saved.
  """

  def on_start(self, run: _Run, history: Sequence[_Progress]) -> None:
    """Is called once, before the first round of this process.

    Args:
      run: The `Run`.
      history: The rounds that are done already, of a run that resumes, as `metrics.csv` tells them:
        each is a `Progress`. A callback that takes note of them does in a resumed run what it would
        have done in one that was never interrupted.
    """

  def on_round(self, run: _Run, progress: _Progress) -> None:
    """Is called after each round, with its `Progress`."""

  def on_evaluation(self, run: _Run, progress: _Progress) -> None:
    """Is called after each round whose model was evaluated on the test set, after `on_round`."""

  def on_end(self, run: _Run, error: BaseException | None) -> None:
    """Is called once, when the run is over, also if `on_start` has failed.

    Args:
      run: The `Run`.
      error: What ended it, or None if its rounds are done or it was stopped.
    """


class EarlyStopping(Callback):
  """Stops a run when a metric has not become better for a while.

  A run that resumes stops in the round in which it would have stopped uninterrupted; one that was
  stopped stays so.

  Attributes:
    best: The best value so far, or None.
    best_round: The number of rounds done when it was found, or None.
  """

  def __init__(
    self,
    metric: str = 'test_accuracy',
    *,
    patience: int,
    mode: str = 'max',
    min_delta: float = 0.0,
  ):
    """Chooses what to watch.

    Args:
      metric: A name of `Progress.metrics`. A round that does not have it measured, as those without
        an evaluation have no `test_accuracy`, does not count.
      patience: After how many measurements in a row that are not better the run stops.
      mode: Whether better is larger, `'max'`, or smaller, `'min'`.
      min_delta: By how much a value has to be better than the best one. A value that is not a
        number is not better.

    Raises:
      ValueError: If an argument is out of range; from the first round on, if there is no such
        metric.
    """
    if not isinstance(patience, int) or patience < 1:
      raise ValueError(f'`patience` must be a positive integer, found {patience!r}.')
    if mode not in ('max', 'min'):
      raise ValueError(f"`mode` must be 'max' or 'min', found {mode!r}.")
    if not 0.0 <= min_delta < math.inf:
      raise ValueError(f'`min_delta` must be a nonnegative number, found {min_delta!r}.')
    self._metric, self._patience, self._min_delta = metric, patience, min_delta
    self._sign = 1.0 if mode == 'max' else -1.0
    self._forget()

  def _forget(self):
    self.best, self.best_round, self._waited = None, None, 0

  def on_start(self, run: _Run, history: Sequence[_Progress]) -> None:
    self._forget()
    for progress in history:
      self.on_round(run, progress)

  def on_round(self, run: _Run, progress: _Progress) -> None:
    if self._metric not in progress.metrics:
      raise ValueError(f'there is no metric {self._metric!r}, only {", ".join(progress.metrics)}.')
    value = progress.metrics[self._metric]
    if value is None:
      return
    value = float(value)
    if self.best is None or self._sign * (value - self.best) > self._min_delta:
      if not math.isnan(value):
        self.best, self.best_round, self._waited = value, progress.round_num, 0
        return
    self._waited += 1
    if self._waited >= self._patience:
      known = 'never was a number' if self.best is None else f'was best in round {self.best_round}'
      run.stop(f'{self._metric} {known} and not better in {self._waited} measurements since')
