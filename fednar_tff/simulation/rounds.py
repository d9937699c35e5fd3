# SPDX-License-Identifier: Apache-2.0
"""The rounds of a run, one after the other, resumable to the bit."""

import collections
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from fednar_tff.simulation import callbacks as callbacks_lib
from fednar_tff.simulation import checkpoints, client_evaluation, data_source, report, round_metrics
from fednar_tff.simulation import client_states as client_states_lib
from fednar_tff.simulation import progress as progress_lib
from fednar_tff.simulation import settings as settings_lib
from fednar_tff.tasks import Task


class _Latest(NamedTuple):
  """What the last round left: its number, the server's state, its clients and their states."""

  state: Any
  round_num: int
  client_ids: Sequence[str]
  client_states: Sequence[Any]


class Run:
  """An iterator over rounds, made by `run`. Iterate, or call `finish`."""

  def __init__(
    self,
    task: Task,
    clients: data_source.ClientBatches,
    process: Any,
    state: Any,
    evaluations: Any,
    stores: Any,
    settings: settings_lib.Settings,
    description: Any,
    callbacks: Sequence[callbacks_lib.Callback],
  ):
    self._task, self._clients = task, clients
    self._process = process
    # On the whole test set, and on the sample that stands for it before the last round.
    self._evaluate, self._evaluate_sample = evaluations
    # Each is None if there is none.
    self._directory, self._client_states = directory, states = stores
    self._settings, self._description = settings, description
    self._callbacks = callbacks
    self._has_ended = False
    self._stop_reason: str | None = None
    self._evaluate_clients: Any = None
    round_num = 0
    if directory is not None:
      state, round_num = directory.load_latest_checkpoint(state) or (state, round_num)
      directory.save_description(getattr(task, 'arguments', None))
    self._latest = _Latest(state, round_num, (), ())
    self._saved_round = round_num
    self._last = None
    self._diverged_rounds = 0
    self._has_warned = False
    history = []
    if directory is not None:
      for row in directory.read_metrics(round_num):
        history.append(progress_lib.of_row(row))
        self._take_note(history[-1])
      if self._last is not None and self._last.round_num != round_num:
        self._last, self._diverged_rounds = None, 0  # Someone has removed lines.
    if states is not None:
      states.restore(round_num)
    try:
      self._call_back('on_start', history)
    except BaseException as e:
      self._end(e)
      raise

  @property
  def round_num(self) -> int:
    """The number of rounds done, by this process or by one that this one resumes."""
    return self._latest.round_num

  @property
  def last(self) -> progress_lib.Progress | None:
    """The last round that is done, in a resumed run as `metrics.csv` tells it, or None."""
    return self._last

  @property
  def diverged_rounds(self) -> int:
    """How many rounds in a row, up to the last, were without a client whose update is finite."""
    return self._diverged_rounds

  @property
  def stop_reason(self) -> str | None:
    """Why the run ends before its last round, if a callback has stopped it; see `stop`."""
    return self._stop_reason

  @property
  def description(self) -> dict[str, Any]:
    """What sets this run apart from others: settings, seeds, hparams and data, by name."""
    return dict(self._description)

  @property
  def output_dir(self) -> pathlib.Path | None:
    """The directory that the run is written to."""
    return None if self._directory is None else self._directory.path

  @property
  def state(self) -> Any:
    """The server's state after the last round."""
    return self._latest.state

  @property
  def client_states(self) -> client_states_lib.ClientStates | None:
    """The states of the clients, of an algorithm whose clients carry any."""
    return self._client_states

  @property
  def model_weights(self) -> Any:
    """The model's weights after the last round."""
    return self._process.get_model_weights(self.state)

  def evaluate(self) -> collections.OrderedDict[str, float]:
    """Returns the model's metrics on the test set."""
    return self._evaluate(self.model_weights)

  def __iter__(self) -> Iterator[progress_lib.Progress]:
    return self

  def __next__(self) -> progress_lib.Progress:
    settings = self._settings
    try:
      if settings.stop_on_divergence and self._diverged_rounds >= settings.stop_on_divergence:
        self._save()
        raise progress_lib.DivergedError(self.round_num, self._diverged_rounds)
      if self.round_num >= settings.total_rounds or self._stop_reason is not None:
        self.close()
        raise StopIteration
      progress = self._next_round()
      self._call_back('on_round', progress)
      if any(progress.metrics.get(f'test_{n}') is not None for n in self._evaluate.metric_names):
        self._call_back('on_evaluation', progress)
      if (
        progress.round_num % settings.rounds_per_checkpoint == 0
        or progress.round_num == settings.total_rounds
        or self._stop_reason is not None
      ):
        self._save()
      return progress
    except StopIteration:
      raise
    except (KeyboardInterrupt, SystemExit, callbacks_lib.CallbackError) as e:
      try:
        interrupted = not isinstance(e, callbacks_lib.CallbackError)
        self._save(interrupted)  # The rounds that are done are not done for nothing.
      finally:
        self._end(e)
      raise
    except BaseException as e:
      self._end(e)
      raise

  def stop(self, reason: str) -> None:
    """Ends the run after the round that is done, which is saved; to be called by a callback.

    Args:
      reason: What `stop_reason` says from then on.
    """
    self._stop_reason = reason
    logging.info('The run stops after round %d: %s.', self.round_num, reason)

  def _call_back(self, name, *arguments):
    """Calls a method of all callbacks."""
    for callback in self._callbacks:
      try:
        getattr(callback, name)(self, *arguments)
      except Exception as e:
        raise callbacks_lib.CallbackError(
          f'{type(callback).__name__}.{name} failed after round {self.round_num} '
          f'and ended the run: {type(e).__name__}: {" ".join(str(e).split())}'
        ) from e

  def _end(self, error):
    """Tells each callback, once, that the run is over, and lets go of the directory."""
    if self._has_ended:
      return
    self._has_ended = True
    failed = None
    try:
      for callback in self._callbacks:
        # Each is told, whatever the others do.
        try:
          callback.on_end(self, error)
        except Exception as e:
          failed = e
          logging.exception('%s.on_end failed.', type(callback).__name__)
    finally:
      self._close_files()
    if failed is not None and error is None:
      raise callbacks_lib.CallbackError(
        'A callback failed at the end of the run, whose rounds are saved: '
        f'{type(failed).__name__}: {failed}'
      ) from failed

  def _next_round(self):
    start = time.perf_counter()
    settings, round_index = self._settings, self.round_num
    ids = self._clients.sample(round_index, settings.clients_per_round)
    client_data = [self._clients.of_client(client_id, round_index) for client_id in ids]
    states: Sequence[Any] = ()
    if self._client_states is None:
      output = self._process.next(self.state, client_data)
      state, metrics = output.state, output.metrics
    else:
      states = self._client_states.get(ids)
      state, states, metrics = self._process.next(self.state, states, client_data)
    done = round_index + 1
    metrics = round_metrics.flatten_metrics(metrics)
    if round_metrics.is_without_clients(metrics):
      metrics = round_metrics.without_client_means(metrics)
    evaluated = done % settings.rounds_per_evaluation == 0 or done == settings.total_rounds
    metrics.update(
      self._test_metrics(
        self._process.get_model_weights(state) if evaluated else None,
        whole_set=done == settings.total_rounds,
      )
    )
    metrics.update(self._client_metrics(state, done))
    seconds = time.perf_counter() - start
    if self._directory is not None:
      self._directory.release(done, metrics, seconds)
    # In one assignment: wherever an interruption strikes, server and clients are of the same round.
    self._latest = _Latest(state, done, ids, states)
    progress = progress_lib.Progress(done, metrics, seconds)
    self._take_note(progress)
    self._store_client_states()
    self._warn_of_divergence()
    return progress

  def _take_note(self, progress):
    self._last = progress
    self._diverged_rounds = (
      self._diverged_rounds + 1 if round_metrics.is_without_clients(progress.metrics) else 0
    )

  def _warn_of_divergence(self):
    if self._diverged_rounds and not self._has_warned:
      self._has_warned = True
      logging.warning(
        'Round %d: no client had a finite update, so the model stays as it was. Try %s.',
        self.round_num,
        progress_lib.REMEDY,
      )

  def _store_client_states(self):
    """Stores the client states of the last round; doing so again changes nothing."""
    if self._client_states is not None:
      latest = self._latest
      self._client_states.put(latest.client_ids, latest.client_states, latest.round_num)

  def _test_metrics(self, weights, whole_set):
    """Returns the test metrics of some weights; for None, their names without values."""
    if weights is None:
      values = dict.fromkeys(self._evaluate.metric_names)
    else:
      evaluate = self._evaluate if whole_set else self._evaluate_sample
      values = {k: np.float32(v) for k, v in evaluate(weights).items()}
    return {f'test_{k}': v for k, v in values.items()}

  def _client_metrics(self, state, round_num):
    """Returns the accuracies by client in three numbers, if they are asked for."""
    settings = self._settings
    if not settings.rounds_per_client_evaluation:
      return {}
    if round_num % settings.rounds_per_client_evaluation and round_num != settings.total_rounds:
      return client_evaluation.summary_metrics(None)
    if self._evaluate_clients is None:
      self._evaluate_clients = client_evaluation.build_client_evaluation(self._task)
    weights = self._process.get_model_weights(state)
    return client_evaluation.summary_metrics(self._evaluate_clients(weights))

  def _save(self, interrupted=False):
    if self._directory is None or self.round_num == self._saved_round:
      return
    self._store_client_states()
    if self._client_states is not None:
      self._client_states.commit(self.round_num)
    # What was interrupted may be the runtime, which then is not asked for anything more.
    weights = None if interrupted else self.model_weights
    content = checkpoints.to_save(self.state, weights, self._evaluate.variable_names)
    self._directory.save_checkpoint(content, self.round_num)
    self._saved_round = self.round_num
    if self._client_states is not None:
      self._client_states.prune(min(self._directory.checkpoint_versions()))

  def finish(self, title: str = '', quiet: bool = False) -> progress_lib.Progress | None:
    """Runs the rounds that are left, and shows how far they are.

    At a terminal that is a progress bar. Elsewhere, as in the log of a cluster, it is a plain line
    for every 5 % of the rounds and at least every 30 seconds.

    Args:
      title: What to call the run.
      quiet: Whether to show nothing.

    Returns:
      The last round, also if it was done before; see `last`.

    Raises:
      DivergedError: See `run`.
    """
    report.show(self, self._settings.total_rounds, title, quiet)
    return self._last

  def close(self) -> None:
    """Ends the run and lets go of the directory; what is in memory can still be read."""
    self._end(None)

  def _close_files(self):
    if self._client_states is not None:
      self._client_states.close()
    if self._directory is not None:
      self._directory.close()
