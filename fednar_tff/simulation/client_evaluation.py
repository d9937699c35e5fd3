# SPDX-License-Identifier: Apache-2.0
"""Evaluation where federated users look: by client, by class, and after a few local steps."""

import collections
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms
from fednar_tff.tasks import Partition, Task

Weights: TypeAlias = tff.learning.models.ModelWeights
PredictFn = Callable[[Weights, tf.data.Dataset], tuple[np.ndarray, np.ndarray]]
_WORST_SHARE = 10  # The worst tenth.


def build_prediction(model_fn: Callable[[], tff.learning.models.VariableModel]) -> PredictFn:
  """Returns a function from weights and batches to all labels and the model's guesses.

  Args:
    model_fn: A function without arguments that returns a classifier: its predictions are `[batch,
      classes]`. Of labels at several positions, the last one counts.
  """
  model = model_fn()
  variables = tff.learning.models.ModelWeights.from_model(model)

  @tf.function
  def step(batch):
    labels = batch['y'] if hasattr(batch, 'keys') else batch[1]
    predictions = model.forward_pass(batch, training=False).predictions
    if predictions.shape.rank != 2:
      raise ValueError(
        'Only classifiers have classes: predictions must be [batch, classes], '
        f'found {predictions.shape}.'
      )
    labels = tf.reshape(labels, [tf.shape(labels)[0], -1])[:, -1]
    return tf.cast(labels, tf.int32), tf.argmax(predictions, -1, output_type=tf.int32)

  def predict(weights, dataset):
    tf.nest.map_structure(
      lambda v, w: v.assign(w),
      [*variables.trainable, *variables.non_trainable],
      [*weights.trainable, *weights.non_trainable],
    )
    found = [step(batch) for batch in dataset]
    labels, guesses = zip(*found) if found else ([[]], [[]])
    return np.concatenate(labels), np.concatenate(guesses)

  return predict


def confusion_matrix(labels: np.ndarray, guesses: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns how often each class, a row, was guessed to be each class, a column.

  >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
  [[1, 1], [0, 1]]
  """
  counts = np.zeros([num_classes, num_classes], np.int64)
  np.add.at(counts, (labels, guesses), 1)
  return counts


class ClientSummary(NamedTuple):
  """The accuracies of many clients in three numbers.

  Attributes:
    mean: Their mean.
    deviation: Their standard deviation around it, as of a whole population.
    worst_tenth: The mean of the tenth of the clients, rounded up, that has the lowest accuracies.
  """

  mean: float
  deviation: float
  worst_tenth: float


def summarize_clients(
  accuracies: np.ndarray, num_examples: np.ndarray | None = None
) -> ClientSummary:
  """Summarizes the accuracies of clients.

  >>> summarize_clients(np.array([0.5, 1.0, 0.0])).worst_tenth
  0.0

  Args:
    accuracies: One for each client.
    num_examples: How much each client counts in the mean, in the deviation and within the worst
      tenth; alike unless given. Which clients are the worst tenth does not depend on it.
  """
  accuracies = np.asarray(accuracies, np.float64)
  weights = np.ones(len(accuracies)) if num_examples is None else np.asarray(num_examples)
  mean = np.average(accuracies, weights=weights)
  deviation = math.sqrt(np.average((accuracies - mean) ** 2, weights=weights))
  worst = np.argsort(accuracies, kind='stable')[: num_worst(len(accuracies))]
  return ClientSummary(
    float(mean), deviation, float(np.average(accuracies[worst], weights=weights[worst]))
  )


def num_worst(num_clients: int) -> int:
  """Returns how many clients are the worst tenth: at least one."""
  return -(-num_clients // _WORST_SHARE)


def build_client_evaluation(task: Task) -> Callable[[Weights], np.ndarray]:
  """Returns a function from model weights to each client's accuracy on its training examples.

  The clients are those of `task.partition`, in its order.
  """
  predict = build_prediction(task.model_fn)
  rows = np.concatenate(task.partition.rows)
  sizes = np.array([len(own) for own in task.partition.rows])
  batches = task.evaluation_batches(rows).cache()

  def evaluate(weights):
    labels, guesses = predict(weights, batches)
    return _mean_by_client(labels == guesses, sizes)

  return evaluate


def _mean_by_client(values, sizes):
  owners = np.repeat(np.arange(len(sizes)), sizes)
  return np.bincount(owners, values, minlength=len(sizes)) / sizes


class Personalization(NamedTuple):
  """What some local steps do for each client.

  Attributes:
    client_ids: The clients that hold at least two examples.
    num_examples: How many examples of each are held out.
    before: The model's accuracy on these.
    after: The accuracy after the client's own steps.
  """

  client_ids: tuple[str, ...]
  num_examples: np.ndarray
  before: np.ndarray
  after: np.ndarray


def build_personalization(
  task: Task,
  client_optimizer_fn: tff.learning.optimizers.Optimizer,
  *,
  local_steps: int,
  batch_size: int,
  seed: int = 0,
) -> Callable[[Weights], Personalization]:
  """Returns a function that lets each client train a model further by itself, and compares.

  A fifth of a client's training examples, at least one, is held out; from the others it draws its
  batches. Both accuracies are of what is held out. Note that the model given may have seen that,
  too, if the client took part in its training.

  Args:
    task: The task.
    client_optimizer_fn: The optimizer of the steps, with its learning rate.
    local_steps: How many steps.
    batch_size: Examples in a batch.
    seed: Decides what is held out, and the batches.
  """
  ids, kept, held = [], [], []
  for index, (client_id, rows) in enumerate(zip(task.partition.client_ids, task.partition.rows)):
    if len(rows) < 2:
      continue
    mixed = np.random.default_rng([seed, index]).permutation(rows)
    cut = max(1, len(rows) // 5)
    ids.append(client_id)
    held.append(np.sort(mixed[:cut]))
    kept.append(mixed[cut:])
  training = task.with_partition(Partition(ids, kept, task.partition.labels))
  sizes = np.array([len(own) for own in held])
  predict = build_prediction(task.model_fn)
  # A round of one client is that client's local training: `x - (x - y) = y`.
  process = algorithms.build_fed_avg(
    task.functional_model_fn() if task.functional_model_fn else task.model_fn,
    client_optimizer_fn=client_optimizer_fn,
    loop_implementation=algorithms.PACKED,
  )

  def personalize(weights):
    labels, guesses = predict(weights, task.evaluation_batches(np.concatenate(held)))
    state = process.set_model_weights(process.initialize(), _like(process, weights))
    after = []
    for client_id, rows in zip(ids, held):
      data = training.packed_client(
        client_id, 0, batch_size=batch_size, local_steps=local_steps, seed=seed
      )
      own = process.get_model_weights(process.next(state, [data]).state)
      found = predict(own, task.evaluation_batches(rows))
      after.append(np.mean(found[0] == found[1]))
    before = _mean_by_client(labels == guesses, sizes)
    return Personalization(tuple(ids), sizes, before, np.array(after))

  return personalize


def _like(process: Any, weights: Weights) -> Weights:
  """Returns weights in the structure that a process has them in."""
  own = process.get_model_weights(process.initialize())
  leaves = [np.asarray(w) for w in (*weights.trainable, *weights.non_trainable)]
  return tff.learning.models.ModelWeights(
    type(own.trainable)(leaves[: len(own.trainable)]),
    type(own.non_trainable)(leaves[len(own.trainable) :]),
  )


def summary_metrics(
  accuracies: np.ndarray | None,
) -> collections.OrderedDict[str, np.float32 | None]:
  """Returns the metrics of a round, all clients alike; for None, names without values."""
  values = [None] * 3 if accuracies is None else map(np.float32, summarize_clients(accuracies))
  return collections.OrderedDict(
    (f'client_accuracy_{name}', value) for name, value in zip(ClientSummary._fields, values)
  )
