# SPDX-License-Identifier: Apache-2.0
"""Many rounds of a federated algorithm on a task, resumable to the bit."""

import pathlib
from collections.abc import Sequence
from typing import Any

from absl import logging

from fednar_tff import algorithms
from fednar_tff.simulation import callbacks as callbacks_lib
from fednar_tff.simulation import client_states as client_states_lib
from fednar_tff.simulation import data_source, evaluation, rounds, seeds, storage
from fednar_tff.simulation import settings as settings_lib
from fednar_tff.tasks import Task, describe_speed, is_slow


def run(
  task: Task,
  process: Any,
  *,
  total_rounds: int,
  clients_per_round: int,
  batch_size: int,
  local_steps: int | None = None,
  local_epochs: int | None = None,
  seed: int | seeds.Seeds = 0,
  sampling_seed: int | None = None,
  batch_seed: int | None = None,
  rounds_per_evaluation: int = 10,
  evaluation_examples: int | None = None,
  rounds_per_client_evaluation: int | None = None,
  rounds_per_checkpoint: int = 50,
  output_dir: str | pathlib.Path | None = None,
  packed: bool | None = None,
  share_data: bool | None = None,
  client_states_in_memory: bool = True,
  stop_on_divergence: int | None = 5,
  callbacks: Sequence[callbacks_lib.Callback] = (),
) -> rounds.Run:
  """Returns a run of an algorithm on a task: iterate over its rounds, or call its `finish`.

  A round is a pure function of the state before it, the seeds and its number. With an `output_dir`,
  the run resumes what is saved there, to the same bits as if it had never stopped. Each round
  writes a line of `metrics.csv`, of `timing.csv` and of TensorBoard's events; every
  `rounds_per_checkpoint` rounds, and when interrupted, the state is saved.

  Args:
    task: What is learned, from `fednar_tff.tasks.create_task`.
    process: An algorithm of `fednar_tff.algorithms`, built on the task's model, or any
      `tff.learning.templates.LearningProcess`.
    total_rounds: The number of rounds.
    clients_per_round: How many clients take part in a round, drawn without replacement.
    batch_size: Examples in a batch.
    local_steps: Batches of a client in a round; this or `local_epochs`.
    local_epochs: Epochs of a client in a round; this or `local_steps`.
    seed: The seed that those below are derived from; or the result of `derive_seeds`, which has
      them.
    sampling_seed: Decides which clients take part.
    batch_seed: Decides the batches, dropout and augmentation.
    rounds_per_evaluation: How often the test set is evaluated; the last round always is.
    evaluation_examples: How many test examples are evaluated in rounds before the last, a fixed
      sample that is the same in all runs; None means all. The last round is always evaluated on the
      whole test set.
    rounds_per_client_evaluation: How often all clients' accuracies on their own training examples
      are measured, as `client_accuracy_mean`, `_deviation` and `_worst_tenth`, see
      `summarize_clients`, each client counting the same; None means never, otherwise the last round
      always is.
    rounds_per_checkpoint: How often the state is saved; the last round always is.
    output_dir: The directory that the run is written to; with None, nothing is written. A directory
      with a run of another model, data, hparams or settings is refused and left as it is. What else
      an algorithm computes is not compared.
    packed: Whether `process` takes packed clients (`loop_implementation=algorithms.PACKED`) or
      datasets of batches. None asks the process; something else than it says is an error.
    share_data: Whether packed clients refer to the task's data in memory. None asks the runtime; to
      share data with a runtime in another process is an error.
    client_states_in_memory: Whether the states of clients are kept in memory or, if False, in a
      file in `output_dir`.
    stop_on_divergence: After how many rounds in a row without a client whose update is finite the
      run ends with a `DivergedError`, whatever is done saved; None means never.
    callbacks: What watches the run, in the order in which they are called: `EarlyStopping`,
      `MLflowTracker`, `WandbTracker`, or your own `Callback`.

  Raises:
    CallbackError: If a callback fails, here or in a later round.
    RunDirectoryError: If another process uses `output_dir`, it holds another run, or it cannot be
      written.
    TypeError: If there is something else than a `Callback` in `callbacks`.
    ValueError: If a number is out of range, `packed` does not fit the process, or `share_data` the
      runtime.
  """
  all_seeds = seeds.derive_seeds(seed, sampling=sampling_seed, batches=batch_seed)
  # These complain now rather than in the first round.
  for callback in callbacks:
    if not isinstance(callback, callbacks_lib.Callback):
      raise TypeError(f'`callbacks` must be a list of `Callback`, found {callback!r} in it.')
  clients = data_source.ClientBatches(
    task,
    process,
    batch_size=batch_size,
    local_steps=local_steps,
    local_epochs=local_epochs,
    seeds=all_seeds,
    packed=packed,
    share_data=share_data,
  )
  clients.sample(0, clients_per_round)
  settings = settings_lib.Settings(
    total_rounds=total_rounds,
    clients_per_round=clients_per_round,
    batch_size=batch_size,
    local_steps=local_steps,
    local_epochs=local_epochs,
    seeds=all_seeds,
    rounds_per_evaluation=rounds_per_evaluation,
    evaluation_examples=evaluation_examples,
    rounds_per_client_evaluation=rounds_per_client_evaluation,
    rounds_per_checkpoint=rounds_per_checkpoint,
    packed=clients.packed,
    stop_on_divergence=stop_on_divergence,
  )
  settings.check()

  state, directory = process.initialize(), None
  description = settings_lib.describe(task, process, state, settings)
  if output_dir is not None:
    directory = storage.RunDirectory(pathlib.Path(output_dir), description)
  states = None
  if algorithms.has_client_states(process):
    states = client_states_lib.ClientStates(
      process.initial_client_state(),
      None if directory is None else directory.path / 'client_states.sqlite',
      keep_in_memory=client_states_in_memory,
    )
  precision = settings_lib.unusual_precision(task)
  if precision is not None and is_slow(precision):
    logging.warning('%s.', describe_speed(precision))
  test_data = task.datasets.get_centralized_test_data()
  evaluate = evaluate_sample = evaluation.build_evaluation(task.model_fn, test_data)
  if evaluation_examples is not None:
    evaluate_sample = evaluation.build_evaluation(
      task.model_fn, test_data, num_examples=evaluation_examples
    )
  evaluations, stores = (evaluate, evaluate_sample), (directory, states)
  return rounds.Run(
    task, clients, process, state, evaluations, stores, settings, description, tuple(callbacks)
  )
