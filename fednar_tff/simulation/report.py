# SPDX-License-Identifier: Apache-2.0
"""A run's progress: a bar at a terminal, plain lines in a log."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil

_SECONDS_BETWEEN_LINES = 30.0
_LINES = 20  # A line for every 5 % of the rounds.
_GIGABYTE = 2**30
_WIDTH = 8  # Of the column of a loss.


def show(rounds: Any, total_rounds: int, title: str = '', quiet: bool = False) -> None:
  """Runs the rounds of a `Run` that are left, and shows how far they are.

  Args:
    rounds: The `Run`.
    total_rounds: The number of rounds of the whole run.
    title: What to call the run.
    quiet: Whether to show nothing.
  """
  import tqdm.auto  # Imported here, since in a notebook it looks for widgets.

  bar = tqdm.auto.tqdm(
    total=total_rounds,
    initial=rounds.round_num,
    desc=title,
    unit='round',
    disable=True if quiet else None,
  )
  lines = None
  if bar.disable and not quiet:
    lines = PlainReport(total_rounds, rounds.round_num, title)
  shown = {}
  with bar:
    for progress in rounds:
      metrics = progress.metrics
      if lines is not None:
        lines.add(progress.round_num, metrics)
      if metrics.get('test_accuracy') is not None:
        shown['accuracy'] = f'{100 * float(metrics["test_accuracy"]):.1f}%'
      if (clipped := clipped_share(metrics)) is not None:
        shown['clipped'] = f'{100 * clipped:.0f}%'
      bar.set_postfix(shown, refresh=False)
      bar.update()


class PlainReport:
  """Prints the first and the last round, and one every 30 seconds or 5 % of the rounds."""

  def __init__(
    self,
    total_rounds: int,
    round_num: int,
    title: str = '',
    *,
    print_line: Callable[[str], None] = lambda line: print(line, flush=True),
    clock: Callable[[], float] = time.monotonic,
  ):
    """Starts the clock.

    Args:
      total_rounds: The number of rounds of the whole run.
      round_num: The number of rounds that are done already.
      title: What to write in front of each line.
      print_line: Where the lines go.
      clock: Returns the time in seconds.
    """
    self._total = total_rounds
    self._title = f'{title}: ' if title else ''
    self._print, self._clock = print_line, clock
    self._is_first = True
    self._last_round, self._last_time = round_num, clock()
    self._tested: dict[str, Any] = {}

  def add(self, round_num: int, metrics: Mapping[str, Any]) -> None:
    """Takes note of a round, and prints a line if it is time for one."""
    for name in ('test_loss', 'test_accuracy'):
      if metrics.get(name) is not None:
        self._tested[name] = metrics[name]
    rounds, seconds = round_num - self._last_round, self._clock() - self._last_time
    if not (
      self._is_first
      or round_num == self._total
      or rounds * _LINES >= self._total
      or seconds >= _SECONDS_BETWEEN_LINES
    ):
      return
    self._print(self._line(round_num, {**metrics, **self._tested}, seconds / rounds))
    self._is_first = False
    self._last_round, self._last_time = round_num, self._clock()

  def _line(self, round_num, metrics, seconds_a_round):
    # The first round of a process traces the model, so it says little about those to come.
    is_known = not self._is_first or round_num == self._total
    left = _duration(seconds_a_round * (self._total - round_num)) if is_known else '-'
    parts = [
      f'round {round_num:{len(str(self._total))}}/{self._total}',
      f'train loss {_number(metrics.get("train_loss"), ".4f"):>{_WIDTH}}',
      f'test loss {_number(metrics.get("test_loss"), ".4f"):>{_WIDTH}}',
      f'test accuracy {_number(metrics.get("test_accuracy"), ".1%"):>6}',
      f'clipped {_number(clipped_share(metrics), ".0%"):>4}',
      f'{seconds_a_round:8.3f} s a round',
      f'{left:>7} left',
      f'{psutil.Process().memory_info().rss / _GIGABYTE:5.1f} GB',
    ]
    return self._title + ', '.join(parts)


def clipped_share(metrics: Mapping[str, Any]) -> float | None:
  """Returns the share of a round's local steps that were clipped; None without steps."""
  if not metrics.get('total_steps'):
    return None
  return float(metrics['clipped_steps'] / metrics['total_steps'])


def _number(value: Any, form: str) -> str:
  """Returns a number in a form, or in short if that is wider than its column.

  >>> _number(2.5, '.4f'), _number(1e21, '.4f'), _number(0.5, '.1%'), _number(None, '.4f')
  ('2.5000', '1.00e+21', '50.0%', '-')
  """
  if value is None:
    return '-'
  text = format(float(value), form)
  return text if len(text) <= _WIDTH else f'{float(value):.2e}'


def _duration(seconds: float) -> str:
  """Returns a time in hours, minutes and seconds, in as few words as a column has room for.

  >>> _duration(7), _duration(125), _duration(36_000)
  ('7s', '2m05s', '10h00m')
  """
  seconds = round(seconds)
  if seconds < 60:
    return f'{seconds}s'
  if seconds < 3600:
    return f'{seconds // 60}m{seconds % 60:02}s'
  return f'{seconds // 3600}h{seconds % 3600 // 60:02}m'
