# SPDX-License-Identifier: Apache-2.0
"""The workers of a cluster: who does which piece, and what happens when one of them is lost."""

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from fednar_tff.runtime.workers import remote

# The threads of a worker that answer while another one trains.
CONTROL = 'control'
# A piece that has cost so many workers is not given to another one.
_MAX_LOSSES = 3
# As often may a worker fail to start, in a row.
_MAX_FAILED_STARTS = 3
_SECONDS_TO_START = 300.0
_SECONDS_BETWEEN_LOOKS = 1.0


@dataclasses.dataclass(eq=False)
class _Member:
  """A place for a worker, and the actor that has it now."""

  number: int
  actor: Any = None
  # What the worker says of itself; None until it has started.
  description: dict | None = None
  failed_starts: int = 0

  @property
  def is_given_up(self) -> bool:
    return self.failed_starts >= _MAX_FAILED_STARTS

  def __str__(self):
    where = 'that starts' if self.description is None else f'on {self.description["host"]}'
    return f'worker {self.number} {where}'


@dataclasses.dataclass(eq=False)
class _Job:
  """What a worker has been asked for: a piece of the round with this number, or something else."""

  member: _Member
  actor: Any
  since: float
  piece: int | None = None
  round: int | None = None


class Team:
  """Hands out the pieces of a round from one queue; a worker that is faster does more of them."""

  def __init__(
    self,
    ray: Any,
    new_actor: Callable[[], Any],
    num_workers: int,
    seconds_until_lost: float,
  ):
    """Starts the workers, and waits for them.

    Args:
      ray: The module.
      new_actor: Starts an actor and returns its handle.
      num_workers: How many.
      seconds_until_lost: A worker that has done nothing with its piece for so long counts as dead.

    Raises:
      WorkerLostError: If not all of them start.
    """
    self._ray = ray
    self._address = _address(ray)
    self._new_actor = new_actor
    self._seconds_until_lost = seconds_until_lost
    self._jobs: dict[Any, _Job] = {}
    self._round = 0
    # Why a worker did not start, the last time.
    self._failure = ''
    self.num_lost = 0
    self._members = [_Member(i) for i in range(num_workers)]
    for member in self._members:
      self._start(member)
    deadline = time.monotonic() + _SECONDS_TO_START
    while any(member.description is None for member in self._members):
      for _ in self._finished_jobs():
        pass  # There are no pieces yet.
      if time.monotonic() > deadline or any(member.is_given_up for member in self._members):
        missing = sum(member.description is None for member in self._members)
        room = f'after {_SECONDS_TO_START:.0f} s, the cluster has {_resources(ray)} left.'
        self.end()
        raise remote.WorkerLostError(
          f'{missing} of {num_workers} workers did not start: {self._failure or room}'
        )

  @property
  def descriptions(self) -> list[dict]:
    """What the workers that can work now say of themselves."""
    return [member.description for member in self._members if member.description is not None]

  def end(self) -> None:
    """Ends all workers, unless their cluster has ended, and they with it."""
    # Ray ends the whole process if it is asked for an actor of another cluster.
    if self._ray.is_initialized() and self._address == _address(self._ray):
      for member in self._members:
        self._ray.kill(member.actor)

  def run(
    self, num_pieces: int, call: Callable[[Any, int], Any], name: Callable[[int], str]
  ) -> Iterator[Any]:
    """Yields the result of each piece, in their order, whoever did it and when.

    Args:
      num_pieces: How many pieces there are.
      call: Asks an actor for a piece, given by its number, and returns Ray's reference.
      name: What a piece is called in messages.

    Yields:
      The results.

    Raises:
      WorkerLostError: If no worker is left, or one piece has cost several of them.
    """
    self._round += 1
    queue = collections.deque(range(num_pieces))
    losses: collections.Counter[int] = collections.Counter()
    done: dict[int, Any] = {}
    following = 0
    try:
      while following < num_pieces:
        for member in self._idle():
          if queue:
            self._ask(member, queue.popleft(), call)
        for piece, result in self._finished_jobs():
          if result is not None:
            done[piece] = result
            continue
          losses[piece] += 1
          if losses[piece] == _MAX_LOSSES:
            raise remote.WorkerLostError(
              f'{name(piece)} cost {_MAX_LOSSES} workers: they died, or had not done with them '
              f'after {self._seconds_until_lost:.0f} s.'
            )
          queue.appendleft(piece)
        while following in done:
          yield done.pop(following)
          following += 1
    except BaseException:
      self._abandon()
      raise

  def _start(self, member):
    member.description = None
    member.actor = self._new_actor()
    job = _Job(member, member.actor, time.monotonic())
    self._jobs[member.actor.describe.remote()] = job

  def _idle(self):
    busy = {job.member.number for job in self._jobs.values()}
    return [m for m in self._members if m.number not in busy and not m.is_given_up]

  def _ask(self, member, piece, call):
    job = _Job(member, member.actor, time.monotonic(), piece, self._round)
    self._jobs[call(member.actor, piece)] = job

  def _finished_jobs(self):
    """Waits a moment; yields pieces and their results, which are None if their workers are lost."""
    self._check_that_one_is_left()
    ready, _ = self._ray.wait(
      list(self._jobs), num_returns=1, timeout=_SECONDS_BETWEEN_LOOKS, fetch_local=True
    )
    for reference in ready:
      job = self._jobs.pop(reference)
      try:
        result = self._ray.get(reference)
      except (
        self._ray.exceptions.RayActorError,
        self._ray.exceptions.WorkerCrashedError,
        self._ray.exceptions.NodeDiedError,
        self._ray.exceptions.OutOfMemoryError,
        self._ray.exceptions.ObjectLostError,
      ) as e:
        yield from self._lose(job, _reason(e))
        continue
      if job.round == self._round:
        yield job.piece, result
      elif job.round is None and result is not None:
        job.member.description = result
        job.member.failed_starts = 0
    yield from self._lose_those_that_hang()

  def _lose(self, job, reason):
    if job.actor is job.member.actor:  # Otherwise, another job of it has told that it is lost.
      self._replace(job.member, reason)
    if job.round == self._round:
      yield job.piece, None

  def _replace(self, member, reason):
    if member.description is None:
      member.failed_starts += 1
      self._failure = reason
    else:
      self.num_lost += 1
      logging.warning('The %s is lost (%s); its clients are done again by others.', member, reason)
    self._ray.kill(member.actor)
    if not member.is_given_up:
      self._start(member)

  def _lose_those_that_hang(self):
    now = time.monotonic()
    for reference, job in list(self._jobs.items()):
      if job.piece is not None and now - job.since > self._seconds_until_lost:
        del self._jobs[reference]
        yield from self._lose(job, f'nothing heard for {self._seconds_until_lost:.0f} s')

  def _check_that_one_is_left(self):
    if any(member.description is not None for member in self._members):
      return
    starting = [job for job in self._jobs.values() if not job.member.is_given_up]
    now = time.monotonic()
    if all(now - job.since > _SECONDS_TO_START for job in starting):
      raise remote.WorkerLostError(
        f'No worker is left: all {len(self._members)} are lost, and none could be started again.'
      )

  def _abandon(self):
    """Stops what the workers do for a round that is over before its end."""
    self._round += 1
    for job in list(self._jobs.values()):
      if job.piece is not None:
        # A job, too: until it is done, the worker gets no piece that it could stop by mistake.
        stopped = job.actor.cancel.options(concurrency_group=CONTROL).remote()
        self._jobs[stopped] = _Job(job.member, job.actor, time.monotonic())


def _address(ray) -> str:
  """Returns what tells a cluster apart from others."""
  return ray.get_runtime_context().gcs_address


def _reason(error) -> str:
  """Returns one line of an error of Ray: the cause if a worker did not start, or else the first."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  return lines[-1 if getattr(error, 'actor_init_failed', False) else 0]


def _resources(ray) -> str:
  left = ray.available_resources()
  return f'{left.get("CPU", 0):g} CPUs and {left.get("GPU", 0):g} GPUs'
