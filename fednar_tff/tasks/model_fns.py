# SPDX-License-Identifier: Apache-2.0
"""How a network becomes TFF's two kinds of model.

A network is a function `network(param, x, training)` that returns logits and asks for its weights
in order: `param(name, shape, bound=0.0, center=0.0)` is the next one, initially uniform in
`center +- bound`. With `deviation` in place of `bound` it is normal with that deviation, and with
`like`, the name of an earlier parameter, it starts from the random numbers of that one.
Networks are traced without AutoGraph, several times faster: a branch on a tensor must be a
`tf.cond`.

A model's precision is the type in which it multiplies. Weights, and with them gradients, optimizer
and updates, stay float32, and so do norms, softmax, loss and metrics. `param.compute_dtype` tells
a network the type; the layers of `layers.py` follow it.
"""

import collections
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.tasks import initial_values, layers
from fednar_tff.tasks import precision as precision_lib

# Half of all float16 numbers are below 1e-4, where gradients are: so they are made larger on their
# way back through the network, by a power of 2, which rounds nothing, and float32 ones small again.
_LOSS_SCALE = 1024.0


class _Param:
  """What a network asks for its weights."""

  def __init__(self, next_weight: Callable[..., tf.Tensor], compute_dtype: tf.DType):
    self._next_weight = next_weight
    self.compute_dtype = compute_dtype

  def __call__(self, *args, **kwargs):
    return self._next_weight(*args, **kwargs)


def _with_scaled_gradient(x, factor):
  """Returns `x`; its gradient is multiplied by a factor."""
  return tf.custom_gradient(lambda x: (tf.identity(x), lambda upstream: upstream * factor))(
    tf.convert_to_tensor(x)
  )


class _Parameter(NamedTuple):
  name: str
  shape: tuple[int, ...]
  bound: float
  center: float
  deviation: float
  key: int

  def initial_value(self):
    if self.deviation:
      normal = initial_values.standard_normal(self.key, self.shape)
      return tf.constant(normal * np.float32(self.deviation) + np.float32(self.center))
    if not self.bound:
      return tf.fill(self.shape, self.center)
    # By a named algorithm: the same bits on every device. The raw operation is one node of the
    # graph where `tf.random.stateless_uniform` is thirty.
    uniform = tf.raw_ops.StatelessRandomUniformV2(
      shape=self.shape,
      key=np.array([self.key], np.uint64),
      counter=np.zeros([2], np.uint64),
      alg=layers.PHILOX,
    )
    return (uniform - 0.5) * (2 * self.bound) + self.center


class _Inlined:
  """What TFF takes for a `tf.function`, but is a plain part of the function that calls it.

  AutoGraph does not convert it.

  TFF's model calls it in a function of its own; a second one around it would only be in the way of
  XLA.
  """

  def __init__(self, fn: Callable[..., Any]):
    self._fn = tf.autograph.experimental.do_not_convert(fn)
    self.get_concrete_function = tf.function(fn, autograph=False).get_concrete_function

  def __call__(self, *args, **kwargs):
    return self._fn(*args, **kwargs)


def build_model_fns(
  network: Callable[..., tf.Tensor],
  input_spec: Any,
  seed: int = 0,
  precision: str = 'float32',
) -> tuple[
  Callable[[], tff.learning.models.VariableModel],
  Callable[[], tff.learning.models.FunctionalModel],
]:
  """Builds TFF models of a classifier.

  Args:
    network: A function `network(param, x, training)` returning logits; see the module's docstring.
    input_spec: `OrderedDict(x=..., y=...)` of `tf.TensorSpec`, `y` the integer labels: one for
      each example, or one for each of its positions.
    seed: The seed of the initial weights: the same seed gives the same weights anywhere.
    precision: 'float32', 'bfloat16' or 'float16': the type of convolutions and products of matrices
      in the layers of this package. All else is float32. With 'float16', gradients are scaled by
      1024 on their way through the network and back before anyone sees them; one that overflows
      there is not finite, so a federated algorithm of this package drops the client in that round
      and counts it in `num_non_finite_clients`.

  Returns:
    Two no-argument functions, returning a `VariableModel` and a `FunctionalModel` that have the
    same initial weights, loss (mean cross-entropy) and metrics (`loss`, `accuracy`,
    `num_examples`). Of an example with labels at several positions, loss and accuracy are means
    over the positions if the network returns logits at all of them, `[batch, positions, classes]`,
    and those of the last position if it returns `[batch, classes]`.

  Raises:
    ValueError: If the precision is unknown.
  """
  precision_lib.check(precision)
  dtype = precision_lib.PRECISIONS[precision]
  parameters = _trace_parameters(network, input_spec['x'], seed, dtype)

  def predict(weights, x, training):
    is_scaled = training and precision == 'float16'
    if is_scaled:
      weights = [_with_scaled_gradient(w, 1.0 / _LOSS_SCALE) for w in weights]
    remaining = iter(weights)
    param = _Param(lambda *args, **kwargs: next(remaining), dtype)
    logits = tf.cast(network(param, x, training), tf.float32)
    return _with_scaled_gradient(logits, _LOSS_SCALE) if is_scaled else logits

  def model_fn():
    return _ClassifierModel(parameters, predict, input_spec)

  def functional_model_fn():
    with tf.init_scope():
      initial_weights = tuple(p.initial_value().numpy() for p in parameters)
    return tff.learning.models.FunctionalModel(
      initial_weights=(initial_weights, ()),
      predict_on_batch_fn=_Inlined(
        lambda model_weights, x, training: predict(model_weights[0], x, training)
      ),
      loss_fn=lambda output, label, sample_weight=None: _mean_loss(label, output),
      metrics_fns=(
        tf.function(_initial_metrics, autograph=False),
        _Inlined(_updated_metrics),
        tf.function(_finalized_metrics, autograph=False),
      ),
      input_spec=input_spec,
    )

  return model_fn, functional_model_fn


def _trace_parameters(network, x_spec, seed, dtype):
  """Finds a network's parameters by running it once on symbolic inputs."""
  parameters: list[_Parameter] = []

  def param(name, shape, bound=0.0, center=0.0, deviation=0.0, like=None):
    position = [p.name for p in parameters].index(like) if like else len(parameters)
    digest = hashlib.sha256(f'weights/{int(seed)}/{position}'.encode()).digest()
    key = int.from_bytes(digest[:8], 'little')
    parameters.append(_Parameter(name, tuple(shape), bound, center, deviation, key))
    return tf.zeros(shape)

  traced = tf.function(lambda x: network(_Param(param, dtype), x, False), autograph=False)
  traced.get_concrete_function(x_spec)
  return tuple(parameters)


def _targets(labels, logits):
  """Returns the labels that logits are to be compared with: all, or those of the last position."""
  last_only = len(labels.shape) == len(logits.shape)
  # Of 64 bits: those of 32 are compared on the host even where all else is on a GPU.
  return tf.cast(labels[:, -1] if last_only else labels, tf.int64)


def _mean_loss(labels, logits):
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=_targets(labels, logits), logits=logits)
  )


def _num_correct(labels, logits):
  """Returns the number of examples that are right, one of several positions counting its share."""
  targets = _targets(labels, logits)
  guesses = tf.argmax(logits, axis=-1, output_type=targets.dtype)
  is_correct = tf.cast(tf.equal(guesses, targets), tf.float32)
  if is_correct.shape.rank > 1:
    is_correct = tf.reduce_mean(is_correct, axis=1)
  return tf.reduce_sum(is_correct)


_mean_of_totals = tf.function(
  lambda totals: tf.math.divide_no_nan(totals[0], totals[1]), autograph=False
)
# Made once: a new `tf.function` for each evaluation would be traced each time.
_METRIC_FINALIZERS = collections.OrderedDict(
  loss=_mean_of_totals,
  accuracy=_mean_of_totals,
  num_examples=tf.function(lambda totals: totals[0], autograph=False),
)


def _initial_metrics():
  # Tuples: tf.data, whose reduce carries this state, makes a tensor of a list.
  return collections.OrderedDict(
    loss=(tf.zeros([]), tf.zeros([])),
    accuracy=(tf.zeros([]), tf.zeros([])),
    num_examples=(tf.zeros([], tf.int32),),
  )


def _updated_metrics(state, labels, batch_output, sample_weight=None):
  del sample_weight  # Every example counts the same.
  count = tf.cast(batch_output.num_examples, tf.float32)
  (loss_sum, loss_count), (correct, correct_count) = state['loss'], state['accuracy']
  return collections.OrderedDict(
    loss=(loss_sum + batch_output.loss * count, loss_count + count),
    accuracy=(correct + _num_correct(labels, batch_output.predictions), correct_count + count),
    num_examples=(state['num_examples'][0] + batch_output.num_examples,),
  )


def _finalized_metrics(state):
  return collections.OrderedDict(
    (name, finalizer(state[name])) for name, finalizer in _METRIC_FINALIZERS.items()
  )


class _ClassifierModel(tff.learning.models.VariableModel):
  """A `VariableModel` of a network, with three scalars as its only metric variables.

  Attributes:
    metrics_are_sums: Says that unfinalized metrics of several batches may be added.
  """

  metrics_are_sums = True

  def __init__(self, parameters, predict, input_spec):
    self._predict = predict
    self._input_spec = input_spec
    self._weights = tuple(tf.Variable(p.initial_value, name=p.name) for p in parameters)
    self._loss_sum = tf.Variable(0.0, trainable=False, name='loss_sum')
    self._num_correct = tf.Variable(0.0, trainable=False, name='num_correct')
    # Of 64 bits: a GPU cannot add to a variable of 32.
    self._num_examples = tf.Variable(0, trainable=False, dtype=tf.int64, name='num_examples')

  @property
  def trainable_variables(self):
    return self._weights

  @property
  def non_trainable_variables(self):
    return ()

  @property
  def local_variables(self):
    return (self._loss_sum, self._num_correct, self._num_examples)

  @property
  def input_spec(self):
    return self._input_spec

  @tf.function(autograph=False)
  def predict_on_batch(self, x, training=True):
    return self._predict(self._weights, x, training)

  @tf.function(autograph=False)
  def forward_pass(self, batch_input, training=True):
    x, labels = batch_input['x'], batch_input['y']
    logits = self._predict(self._weights, x, training)
    loss = _mean_loss(labels, logits)
    num_examples = tf.shape(labels)[0]
    self._loss_sum.assign_add(loss * tf.cast(num_examples, tf.float32))
    self._num_correct.assign_add(_num_correct(labels, logits))
    self._num_examples.assign_add(tf.cast(num_examples, tf.int64))
    return tff.learning.models.BatchOutput(loss=loss, predictions=logits, num_examples=num_examples)

  @tf.function(autograph=False)
  def report_local_unfinalized_metrics(self):
    count = tf.cast(self._num_examples, tf.float32)
    return collections.OrderedDict(
      loss=[self._loss_sum.read_value(), count],
      accuracy=[self._num_correct.read_value(), count],
      num_examples=[tf.cast(self._num_examples, tf.int32)],
    )

  def metric_finalizers(self):
    return collections.OrderedDict(_METRIC_FINALIZERS)

  @tf.function(autograph=False)
  def reset_metrics(self):
    for variable in self.local_variables:
      variable.assign(tf.zeros_like(variable))
