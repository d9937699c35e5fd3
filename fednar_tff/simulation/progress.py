# SPDX-License-Identifier: Apache-2.0
"""What is known after a round, and the error of a run that has diverged."""

import collections
import math
from typing import Any, NamedTuple

REMEDY = (
  'a smaller learning rate, a smaller weight decay, NAR (which bounds each step) or a smaller '
  '`max_norm`'
)


class DivergedError(RuntimeError):
  """No client had a finite update for too many rounds in a row; the message says what to change.

  Attributes:
    reason: What happened, and what to try, without a full stop.
    round_num: The number of rounds done.
    diverged_rounds: How many of them in a row, up to the last, were without a finite client.
  """

  def __init__(self, round_num: int, diverged_rounds: int):
    self.reason = (
      f'The run has diverged: in {diverged_rounds} rounds in a row, up to round {round_num}, '
      f'no client had a finite update. Try {REMEDY}'
    )
    super().__init__(f'{self.reason}; `stop_on_divergence=None` goes on.')
    self.round_num = round_num
    self.diverged_rounds = diverged_rounds


class Progress(NamedTuple):
  """What is known after a round.

  Attributes:
    round_num: The number of rounds done.
    metrics: The round's metrics by name: those of training (`train_loss`, ...), of the algorithm
      (`learning_rate`, `clipped_steps`, ...), and of the test set (`test_accuracy`, ...). Those
      that there is nothing to measure on are None: of the test set in a round without evaluation,
      means over clients in a round without a client whose update is finite.
    seconds: How long the round took.
  """

  round_num: int
  metrics: collections.OrderedDict[str, Any]
  seconds: float


def of_row(row: dict[str, Any]) -> Progress:
  """Returns a round as a line of `metrics.csv` tells it."""
  round_num, seconds = int(row.pop('round_num')), row.pop('seconds')
  seconds = math.nan if seconds is None else float(seconds)
  return Progress(round_num, collections.OrderedDict(row), seconds)
