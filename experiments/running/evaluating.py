# SPDX-License-Identifier: Apache-2.0
"""The numbers of `evaluate`: of a run's model, by client, by class, and after local steps."""

import fednar_tff
from experiments.reading.evaluations import Evaluation
from experiments.running import building, loading
from fednar_tff import simulation


def evaluate(path, round_num, data_dir, personalization_steps, seed) -> Evaluation:
  """Evaluates the model that a run has saved.

  Args:
    path: The run's directory.
    round_num: After how many rounds; the latest checkpoint if None.
    data_dir: Where the data is here, if it is not where the run had it.
    personalization_steps: The local steps of each client; 0 leaves them out.
    seed: Decides what each client holds out, and its batches.

  Raises:
    UsageError: If there is no run, no such checkpoint, or no data.
  """
  model, settings = loading.load_model(path, round_num, data_dir)
  fednar_tff.runtime.set_in_process_context()
  task, weights = model.task, model.model_weights
  test_data = task.datasets.get_centralized_test_data()
  metrics = simulation.build_evaluation(task.model_fn, test_data)(weights)
  labels, guesses = simulation.build_prediction(task.model_fn)(weights, test_data)
  num_classes = 1 + int(max(labels.max(), guesses.max(), task.partition.labels.max()))
  personalization = None
  if personalization_steps:
    personalize = simulation.build_personalization(
      task,
      building.optimizer_of_round(settings, model.round_num),
      local_steps=personalization_steps,
      batch_size=settings['batch_size'],
      seed=seed,
    )
    personalization = personalize(weights)
  sizes = [len(rows) for rows in task.partition.rows]
  accuracies = simulation.build_client_evaluation(task)(weights)
  return Evaluation(
    title=f'{settings.get("title") or path}, round {model.round_num}',
    round_num=model.round_num,
    test_metrics={name: float(value) for name, value in metrics.items()},
    client_ids=task.partition.client_ids,
    num_examples=sizes,
    accuracies=accuracies,
    alike=simulation.summarize_clients(accuracies),
    by_examples=simulation.summarize_clients(accuracies, sizes),
    confusion=simulation.confusion_matrix(labels, guesses, num_classes),
    personalization=personalization,
    personalization_steps=personalization_steps,
  )
