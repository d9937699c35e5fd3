# SPDX-License-Identifier: Apache-2.0
"""One graph in many threads at the same time gives the bits of one thread.

For large tensors, TensorFlow's memory optimizer turns a sum into a temporary variable, in which
clients that trained at the same time used to meet (`runtime/in_process/call_options.py`). The
graphs here make that rewrite certain, at small cost: it needs terms that live while more than 205
MB are *estimated* to be in use, and such a tensor stands in a branch that is never taken.
"""

import collections
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context

from fednar_tff import algorithms, optimizers, runtime

_TERMS, _SIZE = 5, 20_000
_NUM_CLIENTS, _NUM_THREADS = 12, 4
# `make test` runs each case twice; FEDNAR_STRESS=1000 is the long form, `make test-stress`.
_REPEATS = int(os.environ.get('FEDNAR_STRESS', 2))


def _sum_of_large_terms(x):
  """Sums terms of the shape of `x`, as a graph that the optimizer takes for one that is short of
  memory."""
  terms = [tf.abs(x - float(k)) for k in range(_TERMS)]

  def fill_memory():
    return tf.reduce_sum(tf.stack([tf.reduce_sum(tf.fill([80_000_000], t[0])) for t in terms]))

  small = tf.cond(x[0] > 1e30, fill_memory, lambda: terms[0][0] * 0.0)
  return tf.add_n([*terms, tf.zeros_like(x) + small]) / (_TERMS + 1)


@tf.function
def _loop(x):
  for _ in tf.range(40):
    x = tf.tanh(_sum_of_large_terms(x))
  return x


_VECTOR = tff.TensorType(np.float32, [_SIZE])


@tff.tensorflow.computation(_VECTOR)
def _loop_over_a_sum(x):
  return _loop(x)


@tff.tensorflow.computation(_VECTOR)
def _accumulate_n(x):
  terms = [_loop(x + float(k)) for k in range(3)]
  return tf.raw_ops.AccumulateNV2(inputs=terms, shape=[_SIZE])


@tff.tensorflow.computation(_VECTOR)
def _own_temporary_variable(x):
  variable = tf.raw_ops.TemporaryVariable(shape=[_SIZE], dtype=tf.float32, var_name='own')
  assigned = tf.raw_ops.Assign(ref=variable, value=x)
  with tf.control_dependencies([assigned]):
    y = _loop(x)
  with tf.control_dependencies([y]):
    return y + tf.raw_ops.DestroyTemporaryVariable(ref=assigned, var_name='own')


@tff.tensorflow.computation(_VECTOR)
def _tensor_array_and_stack(x):
  array, flow = tf.raw_ops.TensorArrayV3(size=1, dtype=tf.float32)
  flow = tf.raw_ops.TensorArrayWriteV3(handle=array, index=0, value=x, flow_in=flow)
  stack = tf.raw_ops.StackV2(max_size=-1, elem_type=tf.float32)
  pushed = tf.raw_ops.StackPushV2(handle=stack, elem=2.0 * x)
  with tf.control_dependencies([flow, pushed]):
    y = _loop(x)
  with tf.control_dependencies([y]):
    popped = tf.raw_ops.StackPopV2(handle=stack, elem_type=tf.float32)
  read = tf.raw_ops.TensorArrayReadV3(handle=array, index=0, flow_in=flow, dtype=tf.float32)
  return y + popped + read


def _in_threads(num_threads):
  context = runtime.create_in_process_context(num_threads=num_threads)
  return tff.framework.get_context_stack().install(context)


def test_tensorflow_would_rewrite_these_sums():
  """Without this, a change of TensorFlow could make the tests below pass for nothing."""
  context = eager_context.context()
  context.enable_graph_collection()
  try:
    _loop(tf.zeros([_SIZE]))
    graphs = context.export_run_metadata().function_graphs
  finally:
    context.disable_graph_collection()
  ops = {node.op for graph in graphs for node in graph.post_optimization_graph.node}
  assert 'TemporaryVariable' in ops


@pytest.mark.parametrize(
  'computation',
  [_loop_over_a_sum, _accumulate_n, _own_temporary_variable, _tensor_array_and_stack],
  ids=['loop_over_a_sum', 'accumulate_n', 'own_temporary_variable', 'tensor_array_and_stack'],
)
def test_computations_give_the_bits_of_one_thread(computation):
  federated = tff.federated_computation(
    lambda xs: tff.federated_map(computation, xs), tff.FederatedType(_VECTOR, tff.CLIENTS)
  )
  rng = np.random.default_rng(0)
  xs = list(rng.normal(size=[_NUM_CLIENTS, _SIZE]).astype(np.float32))
  with _in_threads(1):
    expected = federated(xs)
  with _in_threads(_NUM_THREADS):
    for _ in range(_REPEATS):
      np.testing.assert_array_equal(federated(xs), expected)


def _model():
  """A functional model whose every step sums large terms, in a loop that has its gradient."""

  @tf.function
  def predict(weights, x, training):
    del training
    (w,), _ = weights
    return tf.matmul(x, tf.reshape(_sum_of_large_terms(w), [-1, 1]))

  initial = np.linspace(-1.0, 1.0, _SIZE, dtype=np.float32)
  return tff.learning.models.FunctionalModel(
    initial_weights=((initial,), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean((output - label) ** 2),
    metrics_fns=tff.learning.metrics.create_functional_metric_fns(
      lambda: collections.OrderedDict(mse=tf.keras.metrics.MeanSquaredError())
    ),
    input_spec=collections.OrderedDict(x=tf.TensorSpec([None, _SIZE]), y=tf.TensorSpec([None, 1])),
  )


def _client(seed):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[2, _SIZE]).astype(np.float32) / 100.0
  data = collections.OrderedDict(x=x, y=rng.normal(size=[2, 1]).astype(np.float32))
  index = np.tile(np.arange(2, dtype=np.int32), [15, 1])
  return tf.data.Dataset.from_tensors(collections.OrderedDict(data=data, index=index))


_BUILDERS = {name: algorithms.get_builder(name) for name in algorithms.ALGORITHMS}
_EXTRA = {
  'fed_prox': {'proximal_strength': 0.1},
  'scaffold': {'num_clients': _NUM_CLIENTS},
  'fed_dyn': {'num_clients': _NUM_CLIENTS, 'regularization_strength': 0.1},
}


# The runtime knows no algorithm; these two are the two kinds of process, without and with states of
# clients.
_KINDS = ('fed_avg', 'scaffold')


@pytest.mark.parametrize(
  'name',
  [pytest.param(name, marks=[] if name in _KINDS else [pytest.mark.slow]) for name in _BUILDERS],
)
def test_algorithms_give_the_bits_of_one_thread(name):
  process = _BUILDERS[name](
    _model(),
    client_optimizer_fn=optimizers.build_nar(0.01, 0.01, max_norm=1.0),
    loop_implementation=algorithms.PACKED,
    **_EXTRA.get(name, {}),
  )
  clients = [_client(seed) for seed in range(_NUM_CLIENTS)]

  def run_round():
    arguments = [process.initialize(), clients]
    if algorithms.has_client_states(process):
      arguments.insert(1, [process.initial_client_state()] * _NUM_CLIENTS)
    return tf.nest.flatten(process.next(*arguments))

  with _in_threads(1):
    expected = run_round()
  with _in_threads(_NUM_THREADS):
    for _ in range(_REPEATS):
      for found, wanted in zip(run_round(), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
