"""Many rounds of a federated algorithm on a task, resumable to the bit."""

import collections
import math
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from fednar_tff.simulation import callbacks as callbacks_lib
from fednar_tff.simulation import (
  checkpoints,
  client_evaluation,
  data_source,
  evaluation,
  report,
  seeds,
  storage,
)
from fednar_tff.simulation import client_states as client_states_lib
from fednar_tff.tasks import Task, describe_speed, is_slow

# The metrics of `fednar_tff.algorithms` that describe the algorithm, not the model.
_ALGORITHM_METRICS = ('clipped_steps', 'total_steps', 'mean_clipped_norm', 'num_non_finite_clients')


_REMEDY = 'a smaller learning rate, a smaller weight decay, NAR (which bounds each step) or a smaller `max_norm`'


class DivergedError(RuntimeError):
  """No client had a finite update for too many rounds in a row; the message says what to change.

  Attributes:
    round_num: The number of rounds done.
    diverged_rounds: How many of them in a row, up to the last, were without a finite client.
  """

  def __init__(self, round_num: int, diverged_rounds: int):
    super().__init__(
      f'The run has diverged: in {diverged_rounds} rounds in a row, up to round {round_num}, no client had a finite update. '
      f'Try {_REMEDY}; `stop_on_divergence=None` goes on.'
    )
    self.round_num = round_num
    self.diverged_rounds = diverged_rounds


class Progress(NamedTuple):
  """What is known after a round.

  Attributes:
    round_num: The number of rounds done.
    metrics: The round's metrics by name: those of training (`train_loss`, ...), of the algorithm (`learning_rate`, `clipped_steps`,
      ...), and of the test set (`test_accuracy`, ...). Those that there is nothing to measure on are None: of the test set in a
      round without evaluation, means over clients in a round without a client whose update is finite.
    seconds: How long the round took.
  """

  round_num: int
  metrics: collections.OrderedDict[str, Any]
  seconds: float


class _Latest(NamedTuple):
  """What the last round left: the server's state and number, and the clients that took part with their states."""

  state: Any
  round_num: int
  client_ids: Sequence[str]
  client_states: Sequence[Any]


class Run:
  """An iterator over rounds, made by `run`. Iterate, or call `finish`."""

  def __init__(
    self,
    task,
    clients,
    process,
    state,
    evaluate,
    evaluate_sample,
    directory,
    states,
    settings,
    description,
    callbacks,
  ):
    self._task, self._clients = task, clients
    self._process = process
    self._evaluate, self._evaluate_sample = evaluate, evaluate_sample
    self._directory, self._client_states = directory, states
    self._settings, self._description = settings, description
    self._callbacks = callbacks
    self._has_ended = False
    self._stop_reason = None
    self._evaluate_clients = None
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
        history.append(_progress_of_row(row))
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
  def last(self) -> Progress | None:
    """The last round that is done, or None before the first; of a run that resumes, as `metrics.csv` tells it."""
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
    """What sets this run apart from others, as values of JSON by name: settings, seeds, hparams, data."""
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

  def __iter__(self) -> Iterator[Progress]:
    return self

  def __next__(self) -> Progress:
    settings = self._settings
    try:
      if settings.stop_on_divergence and self._diverged_rounds >= settings.stop_on_divergence:
        self._save()
        raise DivergedError(self.round_num, self._diverged_rounds)
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
          f'{type(callback).__name__}.{name} failed after round {self.round_num} and ended the run: '
          f'{type(e).__name__}: {" ".join(str(e).split())}'
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
        f'A callback failed at the end of the run, whose rounds are saved: {type(failed).__name__}: {failed}'
      ) from failed

  def _next_round(self):
    start = time.perf_counter()
    settings, round_index = self._settings, self.round_num
    ids = self._clients.sample(round_index, settings.clients_per_round)
    client_data = [self._clients.of_client(client_id, round_index) for client_id in ids]
    states = ()
    if self._client_states is None:
      output = self._process.next(self.state, client_data)
      state, metrics = output.state, output.metrics
    else:
      states = self._client_states.get(ids)
      state, states, metrics = self._process.next(self.state, states, client_data)
    done = round_index + 1
    metrics = flatten_metrics(metrics)
    if _is_without_clients(metrics):
      metrics.update(
        {name: None for name, value in metrics.items() if _is_client_mean(name, value)}
      )
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
    progress = Progress(done, metrics, seconds)
    self._take_note(progress)
    self._store_client_states()
    self._warn_of_divergence()
    return progress

  def _take_note(self, progress):
    self._last = progress
    self._diverged_rounds = (
      self._diverged_rounds + 1 if _is_without_clients(progress.metrics) else 0
    )

  def _warn_of_divergence(self):
    if self._diverged_rounds and not self._has_warned:
      self._has_warned = True
      logging.warning(
        'Round %d: no client had a finite update, so the model stays as it was. Try %s.',
        self.round_num,
        _REMEDY,
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

  def finish(self, title: str = '', quiet: bool = False) -> Progress | None:
    """Runs the rounds that are left, and shows how far they are.

    At a terminal that is a progress bar. Elsewhere, as in the log of a cluster, it is a plain line for every 5 % of the rounds and
    at least every 30 seconds.

    Args:
      title: What to call the run.
      quiet: Whether to show nothing.

    Returns:
      The last round, also if it was done before; see `last`.

    Raises:
      DivergedError: See `run`.
    """
    import tqdm.auto  # Imported here, since in a notebook it looks for widgets.

    total = self._settings.total_rounds
    bar = tqdm.auto.tqdm(
      total=total,
      initial=self.round_num,
      desc=title,
      unit='round',
      disable=True if quiet else None,
    )
    lines = report.PlainReport(total, self.round_num, title) if bar.disable and not quiet else None
    shown = {}
    with bar:
      for progress in self:
        metrics = progress.metrics
        if lines is not None:
          lines.add(progress.round_num, metrics)
        if metrics.get('test_accuracy') is not None:
          shown['accuracy'] = f'{100 * float(metrics["test_accuracy"]):.1f}%'
        if (clipped := report.clipped_share(metrics)) is not None:
          shown['clipped'] = f'{100 * clipped:.0f}%'
        bar.set_postfix(shown, refresh=False)
        bar.update()
    return self._last

  def close(self) -> None:
    """Ends the run and lets go of the directory; `state`, `model_weights` and `client_states` can still be read."""
    self._end(None)

  def _close_files(self):
    if self._client_states is not None:
      self._client_states.close()
    if self._directory is not None:
      self._directory.close()


class _Settings(NamedTuple):
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


def run(
  task: Task,
  process: Any,
  *,
  total_rounds: int,
  clients_per_round: int,
  batch_size: int,
  local_steps: int | None = None,
  local_epochs: int | None = None,
  seed: int = 0,
  sampling_seed: int | None = None,
  batch_seed: int | None = None,
  rounds_per_evaluation: int = 10,
  evaluation_examples: int | None = None,
  rounds_per_client_evaluation: int | None = None,
  rounds_per_checkpoint: int = 50,
  output_dir: str | pathlib.Path | None = None,
  packed: bool = True,
  share_data: bool = True,
  client_states_in_memory: bool = True,
  stop_on_divergence: int | None = 5,
  callbacks: Sequence[callbacks_lib.Callback] = (),
) -> Run:
  """Returns a run of an algorithm on a task: iterate over its rounds, or call its `finish`.

  A round is a pure function of the state before it, the seeds and its number. With an `output_dir`, the run resumes what is saved
  there, to the same bits as if it had never stopped. Each round writes a line of `metrics.csv`, of `timing.csv` and of TensorBoard's
  events; every `rounds_per_checkpoint` rounds, and when interrupted, the state is saved.

  Args:
    task: What is learned, from `fednar_tff.tasks.create_task`.
    process: An algorithm of `fednar_tff.algorithms`, built on the task's model, or any `tff.learning.templates.LearningProcess`.
    total_rounds: The number of rounds.
    clients_per_round: How many clients take part in a round, drawn without replacement.
    batch_size: Examples in a batch.
    local_steps: Batches of a client in a round; this or `local_epochs`.
    local_epochs: Epochs of a client in a round; this or `local_steps`.
    seed: The seed that those below are derived from.
    sampling_seed: Decides which clients take part.
    batch_seed: Decides the batches, dropout and augmentation.
    rounds_per_evaluation: How often the test set is evaluated; the last round always is.
    evaluation_examples: How many test examples are evaluated in rounds before the last, a fixed sample that is the same in all
      runs; None means all. The last round is always evaluated on the whole test set.
    rounds_per_client_evaluation: How often all clients' accuracies on their own training examples are measured, as
      `client_accuracy_mean`, `_deviation` and `_worst_tenth`, see `summarize_clients`, each client counting the same; None
      means never, otherwise the last round always is.
    rounds_per_checkpoint: How often the state is saved; the last round always is.
    output_dir: Where; None saves and writes nothing. A directory with a run of another model, data, hparams or settings is refused
      and left as it is; what else an algorithm computes is not compared.
    packed: Whether `process` takes packed clients (`loop_implementation=algorithms.PACKED`) or datasets of batches.
    share_data: Whether packed clients refer to the task's data in memory; to be False if the runtime is another process.
    client_states_in_memory: Whether the states of clients are kept in memory or, if False, in a file in `output_dir`.
    stop_on_divergence: After how many rounds in a row without a client whose update is finite the run ends with a `DivergedError`,
      whatever is done saved; None means never.
    callbacks: What watches the run, in the order in which they are called: `EarlyStopping`, `MLflowTracker`, `WandbTracker`, or your
      own `Callback`.

  Raises:
    CallbackError: If a callback fails, here or in a later round.
    RunDirectoryError: If another process uses `output_dir`, it holds another run, or it cannot be written.
    TypeError: If there is something else than a `Callback` in `callbacks`.
    ValueError: If a number is out of range, or `packed` does not fit the process.
  """
  settings = _Settings(
    total_rounds=total_rounds,
    clients_per_round=clients_per_round,
    batch_size=batch_size,
    local_steps=local_steps,
    local_epochs=local_epochs,
    seeds=seeds.derive_seeds(seed, sampling=sampling_seed, batches=batch_seed),
    rounds_per_evaluation=rounds_per_evaluation,
    evaluation_examples=evaluation_examples,
    rounds_per_client_evaluation=rounds_per_client_evaluation,
    rounds_per_checkpoint=rounds_per_checkpoint,
    packed=packed,
    stop_on_divergence=stop_on_divergence,
  )
  for name in ('total_rounds', 'rounds_per_evaluation', 'rounds_per_checkpoint'):
    if getattr(settings, name) < 1:
      raise ValueError(f'`{name}` must be a positive integer, found {getattr(settings, name)!r}.')
  if rounds_per_client_evaluation is not None and rounds_per_client_evaluation < 1:
    raise ValueError(
      '`rounds_per_client_evaluation` must be a positive integer or None, '
      f'found {rounds_per_client_evaluation!r}.'
    )
  if evaluation_examples is not None and evaluation_examples < 1:
    raise ValueError(
      f'`evaluation_examples` must be a positive integer or None, found {evaluation_examples!r}.'
    )
  if stop_on_divergence is not None and stop_on_divergence < 1:
    raise ValueError(
      f'`stop_on_divergence` must be a positive integer or None, found {stop_on_divergence!r}.'
    )
  for callback in callbacks:
    if not isinstance(callback, callbacks_lib.Callback):
      raise TypeError(f'`callbacks` must be a list of `Callback`, found {callback!r} in it.')
  # These complain now rather than in the first round.
  _check_packed(process, packed)
  clients = data_source.ClientBatches(
    task,
    process,
    batch_size=batch_size,
    local_steps=local_steps,
    local_epochs=local_epochs,
    seeds=settings.seeds,
    packed=packed,
    share_data=share_data,
  )
  clients.sample(0, clients_per_round)

  state, directory = process.initialize(), None
  description = _describe(task, process, state, settings)
  if output_dir is not None:
    directory = storage.RunDirectory(pathlib.Path(output_dir), description)
  states = None
  if hasattr(process, 'initial_client_state'):
    states = client_states_lib.ClientStates(
      process.initial_client_state(),
      None if directory is None else directory.path / 'client_states.sqlite',
      keep_in_memory=client_states_in_memory,
    )
  precision = _unusual_precision(task)
  if precision is not None and is_slow(precision):
    logging.warning('%s.', describe_speed(precision))
  test_data = task.datasets.get_centralized_test_data()
  evaluate = evaluate_sample = evaluation.build_evaluation(task.model_fn, test_data)
  if evaluation_examples is not None:
    evaluate_sample = evaluation.build_evaluation(
      task.model_fn, test_data, num_examples=evaluation_examples
    )
  return Run(
    task,
    clients,
    process,
    state,
    evaluate,
    evaluate_sample,
    directory,
    states,
    settings,
    description,
    tuple(callbacks),
  )


def _describe(task, process, state, settings):
  """Returns what sets a run apart from others, but for its length, as values of JSON by name."""
  hparams = flatten_metrics({'hparams': process.get_hparams(state)})
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
    **_if_given('precision', _unusual_precision(task)),
    **{name: str(value) for name, value in hparams.items()},
    'partition of the data': task.partition.hash,
    'type of the state (model or algorithm)': str(process.initialize.type_signature.result),
  }


def _if_given(name, value):
  """A setting that earlier versions did not have, so that their runs still are what they were."""
  return {} if value is None else {name: value}


def _unusual_precision(task):
  precision = getattr(task, 'precision', 'float32')
  return None if precision == 'float32' else precision


def _check_packed(process: Any, packed: bool) -> None:
  """Raises a `ValueError` if a process takes clients in the other form."""
  takes_packed = data_source.takes_packed_clients(process)
  if takes_packed != packed:
    raise ValueError(
      f'`packed` must be {takes_packed} for a process that was built '
      f'{"with" if takes_packed else "without"} `loop_implementation=algorithms.PACKED`, found packed={packed!r}.'
    )


def _is_without_clients(metrics: Mapping[str, Any]) -> bool:
  """Whether no client of a round had a finite update; False if the process does not tell."""
  return bool(metrics.get('num_non_finite_clients')) and not metrics.get('total_steps')


def _is_client_mean(name: str, value: Any) -> bool:
  is_of_clients = name.startswith('train_') or name == 'mean_clipped_norm'
  return is_of_clients and isinstance(value, (float, np.floating))


def _progress_of_row(row: dict[str, Any]) -> Progress:
  round_num, seconds = int(row.pop('round_num')), row.pop('seconds')
  seconds = math.nan if seconds is None else float(seconds)
  return Progress(round_num, collections.OrderedDict(row), seconds)


def flatten_metrics(metrics: Mapping[str, Any]) -> collections.OrderedDict[str, Any]:
  """Returns a round's metrics, nested as the process gives them, under short names.

  Metrics of the model get the prefix `train_`; a name of two levels that is not known is joined by a slash.
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
    return path[2] if path[2] in _ALGORITHM_METRICS else '_'.join(('train', *path[2:]))
  if path[0] in ('client_work', 'finalizer'):
    return '/'.join(path[1:])
  return '/'.join(path)
