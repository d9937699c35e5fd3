# SPDX-License-Identifier: Apache-2.0
"""Contenders in processes of their own that take turns.

Each contender has a process, so that none sees the threads or the memory of another. Its first
round, which compiles, does not count. Then they take turns of some rounds, of which the fastest
counts, since the first one finds cold caches. Every other turn goes backwards through the list.
The speed of a machine changes from minute to minute, so a ratio is formed turn by turn.
"""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import contenders, workloads

_ANSWER = 'seconds: '
_VERSIONS = 'versions: '
_LEFT_OUT = ('PYTHONPATH', 'PYTHONHOME')  # Of the environment, for opponents.


class SkippedError(Exception):
  """Why a contender does not take part."""


class Process:
  """A contender in a process of its own, which runs a round whenever it is asked to."""

  def __init__(self, contender: str, workload: str, checkout: pathlib.Path | None = None):
    """Starts the process.

    Args:
      contender: A key of `contenders.CONTENDERS` or `contenders.MATRICES`.
      workload: The name of a workload.
      checkout: Whose code is run; this one by default.

    Raises:
      SkippedError: If the contender cannot take part.
    """
    entry = contenders.get(contender)
    self.key = contender
    self.versions = {}
    python = sys.executable
    environment = {
      **os.environ,
      'TF_CPP_MIN_LOG_LEVEL': '3',
      'TF_ENABLE_ONEDNN_OPTS': str(int(entry.one_dnn)),
    }
    if entry.environment is not None:
      python = contenders.OPPONENTS_DIR / entry.environment / 'bin' / 'python'
      if not python.exists():
        raise SkippedError(f'{python} is not there: `make opponents` makes it')
      environment = {k: v for k, v in environment.items() if k not in _LEFT_OUT}
    if checkout is not None:
      environment['PYTHONPATH'] = str(checkout)
    self._errors = tempfile.TemporaryFile('w+')
    # By its title, which is also what earlier versions know it by.
    self._process = subprocess.Popen(
      [str(python), '-m', 'benchmarks.rounds', '--serve', entry.title, '--workloads', workload],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
      cwd=checkout,
      env=environment,
    )

  def run_round(self) -> float:
    """Returns the seconds that a round took.

    Raises:
      SkippedError: If it failed; with the last line of what it said.
    """
    try:
      print(file=self._process.stdin, flush=True)
      for line in self._process.stdout:
        if line.startswith(_ANSWER):
          return float(line.removeprefix(_ANSWER))
        if line.startswith(_VERSIONS):
          self.versions = json.loads(line.removeprefix(_VERSIONS))
    except BrokenPipeError:
      pass
    self._process.wait()
    self._errors.seek(0)
    said = self._errors.read().strip().splitlines() or ['it ended without a word']
    raise SkippedError(said[-1])

  def peak_megabytes(self) -> float:
    """Returns the most memory that the process, still running, has held so far."""
    status = pathlib.Path(f'/proc/{self._process.pid}/status').read_text()
    (line,) = (line for line in status.splitlines() if line.startswith('VmHWM:'))
    return int(line.split()[1]) / 1024

  def stop(self) -> None:
    """Ends the process."""
    try:
      self._process.stdin.close()
    except BrokenPipeError:
      pass
    self._process.stdout.read()
    self._process.wait()
    self._errors.close()


def serve(title: str, workload: str) -> None:
  """Runs a round for each line of the standard input: the other end of `Process`."""
  entry = contenders.get(title)
  run_round = entry.build(workloads.get(workload))
  versions = {package: importlib.metadata.version(package) for package in entry.packages}
  print(f'{_VERSIONS}{json.dumps(versions)}', flush=True)
  try:
    for _ in sys.stdin:
      start = time.perf_counter()
      run_round()
      print(f'{_ANSWER}{time.perf_counter() - start}', flush=True)
  finally:
    getattr(run_round, 'close', lambda: None)()


class Turns(NamedTuple):
  """What was measured.

  Attributes:
    seconds: For each contender, those of the fastest round of each turn.
    skipped: For each contender that did not take part, why.
    versions: For each contender, those of its packages.
    peak_megabytes: For each contender, the most memory that its process held.
  """

  seconds: dict[str, list[float]]
  skipped: dict[str, str]
  versions: dict[str, dict[str, str]]
  peak_megabytes: dict[str, float]


class Place(NamedTuple):
  """A contender's place in the turns; the same contender can have several."""

  name: str
  contender: str
  workload: str
  checkout: pathlib.Path | None = None


def take(places: Sequence[Place], num_turns: int, rounds_of_a_turn: int) -> Turns:
  """Lets contenders take turns; one that fails is left out from then on."""
  import tqdm  # Here, because the environments of the opponents need not have it.

  running, turns = {}, Turns({}, {}, {}, {})

  def skip(place, reason):
    turns.skipped[place.name] = str(reason)
    turns.seconds.pop(place.name, None)
    if place.name in running:
      running.pop(place.name).stop()
    print(f'  skipped: {place.name}: {reason}', file=sys.stderr, flush=True)

  try:
    for place in tqdm.tqdm(places, desc='first rounds', disable=None):
      try:
        running[place.name] = Process(place.contender, place.workload, place.checkout)
        running[place.name].run_round()
        turns.seconds[place.name] = []
      except SkippedError as reason:
        skip(place, reason)
    for turn in tqdm.trange(num_turns, desc='turns', disable=None):
      for place in places if turn % 2 == 0 else reversed(places):
        if place.name in running:
          try:
            rounds = [running[place.name].run_round() for _ in range(rounds_of_a_turn)]
            turns.seconds[place.name].append(min(rounds))
          except SkippedError as reason:
            skip(place, reason)
    for name, process in running.items():
      turns.versions[name] = process.versions
      turns.peak_megabytes[name] = process.peak_megabytes()
  finally:
    for process in running.values():
      process.stop()
  return turns
