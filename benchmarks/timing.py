# SPDX-License-Identifier: Apache-2.0
"""Parts of one program that take turns, so that a change of the machine's speed meets them all."""

import time
from collections.abc import Callable, Mapping


def take_turns(parts: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
  """Returns the seconds that each part took in each turn.

  Args:
    parts: The parts, by name.
    turns: How many turns count. One more comes before them, in which TensorFlow traces.
  """
  seconds: dict[str, list[float]] = {name: [] for name in parts}
  for turn in range(turns + 1):
    for name, part in parts.items():
      start = time.perf_counter()
      part()
      if turn:
        seconds[name].append(time.perf_counter() - start)
  return seconds
