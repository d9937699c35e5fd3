"""Many rounds of a federated algorithm on a task, resumable to the bit."""

import collections
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fednar_tff.simulation import client_states as client_states_lib
from fednar_tff.simulation import evaluation, seeds, storage
from fednar_tff.tasks import Task

# The metrics of `fednar_tff.algorithms` that describe the algorithm, not the model.
_ALGORITHM_METRICS = ('clipped_steps', 'total_steps', 'mean_clipped_norm', 'num_non_finite_clients')


class Progress(NamedTuple):
  """What is known after a round.

  Attributes:
    round_num: The number of rounds done.
    metrics: The round's metrics by name: those of training (`train_loss`, ...), of the algorithm (`learning_rate`, `clipped_steps`,
      ...), and of the test set (`test_accuracy`, ...), which are None in a round without evaluation.
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

  def __init__(self, task, process, state, evaluate, directory, states, settings):
    self._task, self._process, self._evaluate = task, process, evaluate
    self._directory, self._client_states = directory, states
    self._settings = settings
    round_num = 0
    if directory is not None:
      state, round_num = directory.load_latest_checkpoint(state) or (state, round_num)
      directory.save_description()
    self._latest = _Latest(state, round_num, (), ())
    self._saved_round = round_num
    if states is not None:
      states.restore(round_num)

  @property
  def round_num(self) -> int:
    """The number of rounds done, by this process or by one that this one resumes."""
    return self._latest.round_num

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
    if self.round_num >= settings.total_rounds:
      self.close()
      raise StopIteration
    try:
      progress = self._next_round()
      if (
        progress.round_num % settings.rounds_per_checkpoint == 0
        or progress.round_num == settings.total_rounds
      ):
        self._save()
      return progress
    except (KeyboardInterrupt, SystemExit):
      self._save()  # The rounds that are done are not done for nothing.
      self.close()
      raise
    except BaseException:
      self.close()
      raise

  def _next_round(self):
    start = time.perf_counter()
    settings, round_index = self._settings, self.round_num
    ids = seeds.sample_clients(
      self._task.partition.client_ids,
      settings.clients_per_round,
      round_index,
      settings.seeds.sampling,
    )
    client_data = [self._client_data(client_id, round_index) for client_id in ids]
    states = ()
    if self._client_states is None:
      output = self._process.next(self.state, client_data)
      state, metrics = output.state, output.metrics
    else:
      states = self._client_states.get(ids)
      state, states, metrics = self._process.next(self.state, states, client_data)
    done = round_index + 1
    metrics = flatten_metrics(metrics)
    evaluated = done % settings.rounds_per_evaluation == 0 or done == settings.total_rounds
    metrics.update(
      self._test_metrics(self._process.get_model_weights(state) if evaluated else None)
    )
    seconds = time.perf_counter() - start
    if self._directory is not None:
      self._directory.release(done, metrics, seconds)
    # In one assignment: wherever an interruption strikes, server and clients are of the same round.
    self._latest = _Latest(state, done, ids, states)
    self._store_client_states()
    return Progress(done, metrics, seconds)

  def _store_client_states(self):
    """Stores the client states of the last round; doing so again changes nothing."""
    if self._client_states is not None:
      latest = self._latest
      self._client_states.put(latest.client_ids, latest.client_states, latest.round_num)

  def _client_data(self, client_id, round_index):
    settings = self._settings
    arguments = {
      'batch_size': settings.batch_size,
      'local_steps': settings.local_steps,
      'local_epochs': settings.local_epochs,
      'seed': settings.seeds.batches,
    }
    if settings.packed:
      arguments['own_rows_only'] = not settings.share_data
      return self._task.packed_client(client_id, round_index, **arguments)
    return self._task.client_batches(client_id, round_index, **arguments)

  def _test_metrics(self, weights):
    """Returns the test metrics of some weights; for None, their names without values."""
    if weights is None:
      values = dict.fromkeys(self._evaluate.metric_names)
    else:
      values = {k: np.float32(v) for k, v in self._evaluate(weights).items()}
    return {f'test_{k}': v for k, v in values.items()}

  def _save(self):
    if self._directory is None or self.round_num == self._saved_round:
      return
    self._store_client_states()
    if self._client_states is not None:
      self._client_states.commit(self.round_num)
    self._directory.save_checkpoint(self.state, self.round_num)
    self._saved_round = self.round_num
    if self._client_states is not None:
      self._client_states.prune(min(self._directory.checkpoint_versions()))

  def finish(self, title: str = '') -> Progress | None:
    """Runs the rounds that are left, with a progress bar if there is someone to see it; returns the last."""
    import tqdm.auto  # Imported here, since in a notebook it looks for widgets.

    last = None
    bar = tqdm.auto.tqdm(
      total=self._settings.total_rounds,
      initial=self.round_num,
      desc=title,
      unit='round',
      disable=None,
    )
    shown = {}
    with bar:
      for last in self:
        metrics = last.metrics
        if metrics.get('test_accuracy') is not None:
          shown['accuracy'] = f'{100 * float(metrics["test_accuracy"]):.1f}%'
        if metrics.get('total_steps'):
          shown['clipped'] = (
            f'{100 * float(metrics["clipped_steps"] / metrics["total_steps"]):.0f}%'
          )
        bar.set_postfix(shown, refresh=False)
        bar.update()
    return last

  def close(self) -> None:
    """Lets go of the directory; `state`, `model_weights` and `client_states` can still be read."""
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
  rounds_per_checkpoint: int
  packed: bool
  share_data: bool


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
  rounds_per_checkpoint: int = 50,
  output_dir: str | pathlib.Path | None = None,
  packed: bool = True,
  share_data: bool = True,
  client_states_in_memory: bool = True,
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
    rounds_per_evaluation: How often the whole test set is evaluated; the last round always is.
    rounds_per_checkpoint: How often the state is saved; the last round always is.
    output_dir: Where; None saves and writes nothing. A directory with a run of another model, data, hparams or settings is refused
      and left as it is; what else an algorithm computes is not compared.
    packed: Whether `process` takes packed clients (`loop_implementation=algorithms.PACKED`) or datasets of batches.
    share_data: Whether packed clients refer to the task's data in memory; to be False if the runtime is another process.
    client_states_in_memory: Whether the states of clients are kept in memory or, if False, in a file in `output_dir`.

  Raises:
    RunDirectoryError: If another process uses `output_dir`, it holds another run, or it cannot be written.
    ValueError: If a number is out of range.
  """
  settings = _Settings(
    total_rounds=total_rounds,
    clients_per_round=clients_per_round,
    batch_size=batch_size,
    local_steps=local_steps,
    local_epochs=local_epochs,
    seeds=seeds.derive_seeds(seed, sampling=sampling_seed, batches=batch_seed),
    rounds_per_evaluation=rounds_per_evaluation,
    rounds_per_checkpoint=rounds_per_checkpoint,
    packed=packed,
    share_data=share_data,
  )
  for name in ('total_rounds', 'rounds_per_evaluation', 'rounds_per_checkpoint'):
    if getattr(settings, name) < 1:
      raise ValueError(f'`{name}` must be a positive integer, found {getattr(settings, name)!r}.')
  seeds.sample_clients(
    task.partition.client_ids, clients_per_round, 0, 0
  )  # Complains now rather than later.

  state, directory = process.initialize(), None
  if output_dir is not None:
    description = _describe(task, process, state, settings)
    directory = storage.RunDirectory(pathlib.Path(output_dir), description)
  states = None
  if hasattr(process, 'initial_client_state'):
    states = client_states_lib.ClientStates(
      process.initial_client_state(),
      None if directory is None else directory.path / 'client_states.sqlite',
      keep_in_memory=client_states_in_memory,
    )
  evaluate = evaluation.build_evaluation(task.model_fn, task.datasets.get_centralized_test_data())
  return Run(task, process, state, evaluate, directory, states, settings)


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
    **{name: str(value) for name, value in hparams.items()},
    'partition of the data': task.partition.hash,
    'type of the state (model or algorithm)': str(process.initialize.type_signature.result),
  }


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
