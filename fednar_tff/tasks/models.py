"""The models, each written once as a function of its weights.

A network is a function `network(param, x, training)` that returns logits and asks for its weights
in order: `param(name, shape, bound=0.0, center=0.0)` is the next one, initially uniform in
`center +- bound`. `build_model_fns` turns a network into TFF's two kinds of model.
"""

import collections
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff


class _Parameter(NamedTuple):
  name: str
  shape: tuple[int, ...]
  bound: float
  center: float
  seed: tuple[int, int]

  def initial_value(self):
    if not self.bound:
      return tf.fill(self.shape, self.center)
    # Uniform, by a named algorithm: the same bits on every device (a normal goes through
    # logarithms and cosines, which are not).
    return tf.random.stateless_uniform(
      self.shape,
      self.seed,
      minval=self.center - self.bound,
      maxval=self.center + self.bound,
      alg='philox',
    )


def build_model_fns(
  network: Callable[..., tf.Tensor], input_spec: Any, seed: int = 0
) -> tuple[
  Callable[[], tff.learning.models.VariableModel],
  Callable[[], tff.learning.models.FunctionalModel],
]:
  """Builds TFF models of a classifier.

  Args:
    network: A function `network(param, x, training)` returning logits; see the module's docstring.
    input_spec: `OrderedDict(x=..., y=...)` of `tf.TensorSpec`, `y` the integer labels.
    seed: The seed of the initial weights: the same seed gives the same weights anywhere.

  Returns:
    Two no-argument functions, returning a `VariableModel` and a `FunctionalModel` that have the
    same initial weights, loss (mean cross-entropy) and metrics (`loss`, `accuracy`,
    `num_examples`).
  """
  parameters = _trace_parameters(network, input_spec['x'], seed)

  def predict(weights, x, training):
    remaining = iter(weights)
    return network(lambda *args, **kwargs: next(remaining), x, training)

  def model_fn():
    return _ClassifierModel(parameters, predict, input_spec)

  def functional_model_fn():
    with tf.init_scope():
      initial_weights = tuple(p.initial_value().numpy() for p in parameters)
    return tff.learning.models.FunctionalModel(
      initial_weights=(initial_weights, ()),
      predict_on_batch_fn=tf.function(
        lambda model_weights, x, training: predict(model_weights[0], x, training)
      ),
      loss_fn=lambda output, label, sample_weight=None: _mean_loss(label, output),
      metrics_fns=(
        tf.function(_initial_metrics),
        tf.function(_updated_metrics),
        tf.function(_finalized_metrics),
      ),
      input_spec=input_spec,
    )

  return model_fn, functional_model_fn


def _trace_parameters(network, x_spec, seed):
  """Finds a network's parameters by running it once on symbolic inputs."""
  parameters = []

  def param(name, shape, bound=0.0, center=0.0):
    digest = hashlib.sha256(f'weights/{int(seed)}/{len(parameters)}'.encode()).digest()
    pair = tuple(int.from_bytes(digest[i : i + 4], 'little', signed=True) for i in (0, 4))
    parameters.append(_Parameter(name, tuple(shape), bound, center, pair))
    return tf.zeros(shape)

  tf.function(lambda x: network(param, x, False)).get_concrete_function(x_spec)
  return tuple(parameters)


def _mean_loss(labels, logits):
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
  )


def _num_correct(labels, logits):
  guesses = tf.argmax(logits, axis=-1, output_type=labels.dtype)
  return tf.reduce_sum(tf.cast(tf.equal(guesses, labels), tf.float32))


def _initial_metrics():
  return collections.OrderedDict(
    loss=[tf.zeros([]), tf.zeros([])],
    accuracy=[tf.zeros([]), tf.zeros([])],
    num_examples=[tf.zeros([], tf.int32)],
  )


def _updated_metrics(state, labels, batch_output, sample_weight=None):
  del sample_weight  # Every example counts the same.
  count = tf.cast(batch_output.num_examples, tf.float32)
  (loss_sum, loss_count), (correct, correct_count) = state['loss'], state['accuracy']
  return collections.OrderedDict(
    loss=[loss_sum + batch_output.loss * count, loss_count + count],
    accuracy=[correct + _num_correct(labels, batch_output.predictions), correct_count + count],
    num_examples=[state['num_examples'][0] + batch_output.num_examples],
  )


def _finalized_metrics(state):
  return collections.OrderedDict(
    (name, finalizer(state[name])) for name, finalizer in _metric_finalizers().items()
  )


def _metric_finalizers():
  return collections.OrderedDict(
    loss=tf.function(lambda totals: tf.math.divide_no_nan(totals[0], totals[1])),
    accuracy=tf.function(lambda totals: tf.math.divide_no_nan(totals[0], totals[1])),
    num_examples=tf.function(lambda totals: totals[0]),
  )


class _ClassifierModel(tff.learning.models.VariableModel):
  """A `VariableModel` of a network, with three scalars as its only metric variables."""

  def __init__(self, parameters, predict, input_spec):
    self._predict = predict
    self._input_spec = input_spec
    self._weights = tuple(tf.Variable(p.initial_value, name=p.name) for p in parameters)
    self._loss_sum = tf.Variable(0.0, trainable=False, name='loss_sum')
    self._num_correct = tf.Variable(0.0, trainable=False, name='num_correct')
    self._num_examples = tf.Variable(0, trainable=False, name='num_examples')

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

  @tf.function
  def predict_on_batch(self, x, training=True):
    return self._predict(self._weights, x, training)

  @tf.function
  def forward_pass(self, batch_input, training=True):
    x, labels = batch_input['x'], batch_input['y']
    logits = self._predict(self._weights, x, training)
    loss = _mean_loss(labels, logits)
    num_examples = tf.shape(labels)[0]
    self._loss_sum.assign_add(loss * tf.cast(num_examples, tf.float32))
    self._num_correct.assign_add(_num_correct(labels, logits))
    self._num_examples.assign_add(num_examples)
    return tff.learning.models.BatchOutput(loss=loss, predictions=logits, num_examples=num_examples)

  @tf.function
  def report_local_unfinalized_metrics(self):
    count = tf.cast(self._num_examples, tf.float32)
    return collections.OrderedDict(
      loss=[self._loss_sum.read_value(), count],
      accuracy=[self._num_correct.read_value(), count],
      num_examples=[self._num_examples.read_value()],
    )

  def metric_finalizers(self):
    return _metric_finalizers()

  @tf.function
  def reset_metrics(self):
    for variable in self.local_variables:
      variable.assign(tf.zeros_like(variable))


def dense(param, x, units, name):
  """A fully connected layer; initial weights and biases uniform in +- 1 / sqrt(inputs)."""
  inputs = x.shape[-1]
  kernel = param(f'{name}/kernel', [inputs, units], bound=inputs**-0.5)
  bias = param(f'{name}/bias', [units], bound=inputs**-0.5)
  return tf.nn.bias_add(tf.linalg.matmul(x, kernel), bias)


def conv(param, x, filters, size, name, *, stride=1, use_bias=True):
  """A convolution padded by `size // 2` on each side, initialised as `dense` is."""
  fan_in = size * size * x.shape[-1]
  kernel = param(f'{name}/kernel', [size, size, x.shape[-1], filters], bound=fan_in**-0.5)
  # With stride 1 this is 'SAME'; with stride 2 'SAME' would pad one side only.
  pad = [size // 2, size // 2]
  x = tf.nn.conv2d(x, kernel, stride, padding=[[0, 0], pad, pad, [0, 0]])
  if use_bias:
    x = tf.nn.bias_add(x, param(f'{name}/bias', [filters], bound=fan_in**-0.5))
  return x


def build_mlp(num_classes: int, hidden: tuple[int, ...] = (128,)) -> Callable[..., tf.Tensor]:
  """Builds a multilayer perceptron on flattened inputs.

  Args:
    num_classes: The number of classes.
    hidden: The widths of the hidden layers.

  Returns:
    A network.
  """

  def mlp(param, x, training):
    del training  # Unused.
    x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    for i, width in enumerate(hidden):
      x = tf.nn.relu(dense(param, x, width, f'hidden{i}'))
    return dense(param, x, num_classes, 'logits')

  return mlp


def build_cnn(num_classes: int) -> Callable[..., tf.Tensor]:
  """Builds a small CNN: conv 5x5x32, pool, conv 5x5x64, pool, dense 128, dense.

  Args:
    num_classes: The number of classes.

  Returns:
    A network.
  """

  def cnn(param, x, training):
    del training  # Unused.
    for i, filters in enumerate((32, 64)):
      x = conv(param, x, filters, 5, f'conv{i}')
      # Pooling first: the same values, a quarter of the rectifications.
      x = tf.nn.relu(tf.nn.max_pool2d(x, 2, 2, 'SAME'))
    x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    x = tf.nn.relu(dense(param, x, 128, 'hidden'))
    return dense(param, x, num_classes, 'logits')

  return cnn
