"""Evaluation of a model on the whole test set, at the server."""

import collections
from collections.abc import Callable

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.simulation import checkpoints


def build_evaluation(
  model_fn: Callable[[], tff.learning.models.VariableModel], dataset: tf.data.Dataset
) -> Callable[[tff.learning.models.ModelWeights], collections.OrderedDict[str, float]]:
  """Returns a function from model weights to the model's metrics on a dataset.

  The function's attribute `metric_names` lists their names, `variable_names` those of the weights.

  Args:
    model_fn: A function without arguments that returns a new `tff.learning.models.VariableModel`.
    dataset: Batches of the model's `input_spec`; they are kept in memory.
  """
  model = model_fn()
  variables = tff.learning.models.ModelWeights.from_model(model)
  batches = dataset.cache().prefetch(tf.data.AUTOTUNE)

  @tf.function
  def update_metrics():
    # An iterator, since a loop over the dataset itself would become a reduce, which stays on the
    # CPU.
    for batch in iter(batches):
      model.forward_pass(batch, training=False)

  def evaluate(weights: tff.learning.models.ModelWeights) -> collections.OrderedDict[str, float]:
    tf.nest.map_structure(
      lambda v, w: v.assign(w),
      tf.nest.flatten([list(variables.trainable), list(variables.non_trainable)]),
      tf.nest.flatten([list(weights.trainable), list(weights.non_trainable)]),
    )
    model.reset_metrics()
    update_metrics()
    unfinalized = model.report_local_unfinalized_metrics()
    # As plain Python: the finalizers of a Keras model make variables, which a `tf.function` may do
    # only once.
    return collections.OrderedDict(
      (name, float(getattr(finalize, 'python_function', finalize)(unfinalized[name])))
      for name, finalize in model.metric_finalizers().items()
    )

  names = checkpoints.variable_names([*variables.trainable, *variables.non_trainable])
  vars(evaluate).update(metric_names=list(model.metric_finalizers()), variable_names=names)
  return evaluate
