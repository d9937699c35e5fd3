# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a model on the test set, or on a fixed sample of it, at the server."""

import collections
import concurrent.futures
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.simulation import checkpoints

# Of the sample of test examples: a constant, so that all runs are compared on the same ones.
_SAMPLE_SEED = 0x5EED
# More copies of a model would cost memory, and a test set has few batches.
_MAX_THREADS = 16


def build_evaluation(
  model_fn: Callable[[], tff.learning.models.VariableModel],
  dataset: tf.data.Dataset,
  *,
  num_examples: int | None = None,
  num_threads: int | None = None,
) -> Callable[[tff.learning.models.ModelWeights], collections.OrderedDict[str, float]]:
  """Returns a function from model weights to the model's metrics on a dataset.

  The function's attribute `metric_names` lists their names, `variable_names` those of the weights.

  Models of this package (`fednar_tff.tasks.build_model_fns`) are evaluated on several batches at
  the same time, each on a thread with a model of its own. What the batches give is summed in their
  order, so the result is the same, to the bit, for every number of threads.

  Args:
    model_fn: A function without arguments that returns a new `tff.learning.models.VariableModel`.
    dataset: Batches of the model's `input_spec`; they are kept in memory.
    num_examples: If given, only a sample of so many examples is evaluated: a pure function of this
      number and that of the dataset's examples, and so the same one in all runs. A number that is
      not less than that of all examples means all.
    num_threads: How many batches are evaluated at the same time; unless given, one for each core of
      the CPU, or one where there is a GPU.

  Raises:
    ValueError: If `num_examples` is not positive.
  """
  if num_examples is not None and num_examples < 1:
    raise ValueError(f'`num_examples` must be a positive integer or None, found {num_examples!r}.')
  model = model_fn()
  if num_examples is not None:
    dataset = _sample(dataset, num_examples)
  if getattr(model, 'metrics_are_sums', False):
    measure: Any = _Batches(model, model_fn, dataset, num_threads or _default_threads())
  else:
    measure = _Stream(model, dataset)

  def evaluate(weights: tff.learning.models.ModelWeights) -> collections.OrderedDict[str, float]:
    unfinalized = measure(weights)
    # As plain Python: the finalizers of a Keras model make variables, which a `tf.function` may do
    # only once.
    return collections.OrderedDict(
      (name, float(getattr(finalize, 'python_function', finalize)(unfinalized[name])))
      for name, finalize in model.metric_finalizers().items()
    )

  names = checkpoints.variable_names(_variables(model))
  vars(evaluate).update(metric_names=list(model.metric_finalizers()), variable_names=names)
  return evaluate


def _default_threads():
  return 1 if tf.config.list_physical_devices('GPU') else min(os.cpu_count() or 1, _MAX_THREADS)


def _variables(model) -> list[tf.Variable]:
  variables = tff.learning.models.ModelWeights.from_model(model)
  return [*variables.trainable, *variables.non_trainable]


def _assign(model, weights) -> None:
  values = tf.nest.flatten([list(weights.trainable), list(weights.non_trainable)])
  for variable, value in zip(_variables(model), values, strict=True):
    variable.assign(value)


class _Stream:
  """Evaluates any model: one batch after the other, as its metrics may be anything."""

  def __init__(self, model, dataset):
    self._model = model
    batches = dataset.cache().prefetch(tf.data.AUTOTUNE)

    @tf.function
    def update_metrics():
      # An iterator, since a loop over the dataset itself would become a reduce, which stays on the
      # CPU.
      for batch in iter(batches):
        model.forward_pass(batch, training=False)

    self._update_metrics = update_metrics

  def __call__(self, weights):
    _assign(self._model, weights)
    self._model.reset_metrics()
    self._update_metrics()
    return self._model.report_local_unfinalized_metrics()


class _Batches:
  """Evaluates a model, whose unfinalized metrics are sums, several batches at a time."""

  def __init__(self, model, model_fn, dataset, num_threads):
    self._dataset, self._batches = dataset, None
    self._model_fn, self._num_threads = model_fn, num_threads
    self._models = [model]
    self._functions = []

  def _start(self):
    with tf.device('CPU:0'):
      self._batches = list(self._dataset)
    num_models = max(1, min(self._num_threads, len(self._batches)))
    self._models += [self._model_fn() for _ in range(num_models - 1)]
    spec = self._dataset.element_spec
    self._functions = [_metrics_of_batch(model, spec) for model in self._models]

  def __call__(self, weights):
    if self._batches is None:
      self._start()
    for model in self._models:
      _assign(model, weights)
    free = collections.deque(self._functions)

    def measure(batch):
      function = free.popleft()
      try:
        return tf.nest.map_structure(np.asarray, function(batch))
      finally:
        free.append(function)

    pool = concurrent.futures.ThreadPoolExecutor(len(self._models), 'evaluation')
    try:
      by_batch = list(pool.map(measure, self._batches or []))
    finally:  # An interruption need not wait for batches that have not begun.
      pool.shutdown(cancel_futures=True)
    if not by_batch:
      self._models[0].reset_metrics()
      return self._models[0].report_local_unfinalized_metrics()
    return tf.nest.map_structure(lambda *values: _sum_in_order(values), *by_batch)


def _metrics_of_batch(model, spec):
  @tf.function(input_signature=[spec], autograph=False)
  def measure(batch):
    model.reset_metrics()
    model.forward_pass(batch, training=False)
    return model.report_local_unfinalized_metrics()

  # Traced here: a function that is traced at its first call, for one model after the other, makes
  # TensorFlow warn of too much tracing.
  return measure.get_concrete_function()


def _sum_in_order(values: Sequence[np.ndarray]) -> np.ndarray:
  total = values[0]
  for value in values[1:]:
    total = total + value
  return total


def _sample(dataset: tf.data.Dataset, num_examples: int) -> tf.data.Dataset:
  """Returns a dataset of some of the examples, in their order, in batches as large as before."""
  spec = dataset.element_spec
  batches = [tf.nest.flatten(batch) for batch in dataset.as_numpy_iterator()]
  has_examples = [s.shape.rank > 0 and s.shape[0] is None for s in tf.nest.flatten(spec)]
  by_example = has_examples.index(True)
  sizes = [len(batch[by_example]) for batch in batches]
  if num_examples >= sum(sizes):
    return dataset
  generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(_SAMPLE_SEED)))
  rows = np.sort(generator.choice(sum(sizes), num_examples, replace=False))

  def joined(position: int) -> Any:
    return np.concatenate([batch[position] for batch in batches])[rows]

  # What is not of an example, as a seed, is that of the first batch.
  leaves = [joined(i) if has else batches[0][i] for i, has in enumerate(has_examples)]

  def batch_of(start):
    chosen = [
      leaf[start : start + sizes[0]] if has else leaf for leaf, has in zip(leaves, has_examples)
    ]
    return tf.nest.pack_sequence_as(spec, chosen)

  def generate():
    for start in range(0, num_examples, sizes[0]):
      yield batch_of(start)

  return tf.data.Dataset.from_generator(generate, output_signature=spec)
