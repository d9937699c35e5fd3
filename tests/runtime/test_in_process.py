# SPDX-License-Identifier: Apache-2.0
"""The in-process runtime: every kind of computation gives what it must, for every size of the
pool."""

import collections
import gc
import re
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import runtime
from fednar_tff.runtime.in_process import graph_function

_INTS = tff.FederatedType(np.int32, tff.CLIENTS)
_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
_SERVER_FLOAT = tff.FederatedType(np.float32, tff.SERVER)


@tff.tensorflow.computation(np.int32)
def _double(x):
  return 2 * x


@tff.tensorflow.computation(np.float32, np.float32)
def _multiply(x, y):
  return x * y


@pytest.fixture(params=[1, 3], ids=['one_thread', 'three_threads'])
def context(request):
  return runtime.create_in_process_context(num_threads=request.param)


def _elements(dataset):
  return list(dataset.as_numpy_iterator())


def test_tensorflow_results_have_numpy_types_and_python_containers(context):
  Pair = collections.namedtuple('Pair', ['b', 'a'])

  @tff.tensorflow.computation
  def make():
    return collections.OrderedDict(
      z=tf.constant(1),
      text=tf.constant('abc'),
      texts=tf.constant(['a', 'bc']),
      pair=Pair(b=tf.constant(2.5), a=[tf.constant([1, 2]), ()]),
    )

  result = context.invoke(make, None)
  assert list(result) == ['z', 'text', 'texts', 'pair']
  assert type(result['z']) is np.int32 and result['z'] == 1
  assert result['text'] == b'abc' and type(result['text']) is bytes
  assert result['texts'].dtype == object and result['texts'].tolist() == [b'a', b'bc']
  assert isinstance(result['pair'], Pair) and type(result['pair'].a) is list
  assert result['pair'].b == np.float32(2.5) and result['pair'].a[1] == ()
  np.testing.assert_array_equal(result['pair'].a[0], [1, 2])


@pytest.mark.parametrize(
  ('value', 'type_spec', 'expected'),
  [
    ('abc', np.str_, b'abc'),
    (True, np.bool_, True),
    (7, np.int64, 7),
    (np.int8(7), np.int32, 7),
    (1.5, np.float32, 1.5),
    ([1, 2], tff.TensorType(np.int32, [2]), [1, 2]),
    ([], tff.TensorType(np.float32, [None]), []),
    (['a', 'b'], tff.TensorType(np.str_, [None]), [b'a', b'b']),
    (np.ones([2, 3], np.float32), tff.TensorType(np.float32, [None, 3]), np.ones([2, 3])),
  ],
)
def test_arguments_are_converted_as_by_tff(context, value, type_spec, expected):
  echo = tff.tensorflow.computation(lambda x: x, type_spec)
  np.testing.assert_array_equal(context.invoke(echo, value), expected)


@pytest.mark.parametrize(
  ('value', 'type_spec', 'message'),
  [
    (1.5, np.int32, 'dtype float64'),
    (1, np.float32, 'dtype int64'),
    ('a', np.int32, 'dtype <U1'),
    (np.int64(1), np.int32, 'dtype int64'),
    (2**40, np.int32, 'dtype int64'),
    (np.float64(1), np.float32, 'dtype float64'),
    (np.ones([2]), tff.TensorType(np.float64, [3]), 'shape'),
    (tf.ones([2]), tff.TensorType(np.float32, [3]), 'shape'),
    (3, tff.SequenceType(np.int32), 'found int'),
    (tf.data.Dataset.range(3), tff.SequenceType(np.int32), 'int64'),
  ],
)
def test_arguments_of_another_type_are_refused(context, value, type_spec, message):
  @tff.federated_computation(type_spec)
  def echo(x):
    return x

  with pytest.raises(TypeError, match=message):
    context.invoke(echo, value)


def test_elements_of_a_structure_are_found_by_name(context):
  @tff.tensorflow.computation(collections.OrderedDict(b=np.int32, a=np.int32))
  def first(x):
    return x['b']

  assert context.invoke(first, collections.OrderedDict(a=1, b=2)) == 2
  with pytest.raises(TypeError, match='named c'):
    context.invoke(first, collections.OrderedDict(b=1, c=2))
  with pytest.raises(TypeError, match='1 elements'):
    context.invoke(first, collections.OrderedDict(b=1))


def test_sum_mean_min_max(context):
  @tff.federated_computation(_FLOATS, _FLOATS)
  def reduce_all(x, w):
    return (
      tff.federated_sum(x),
      tff.federated_mean(x),
      tff.federated_mean(x, w),
      tff.federated_min(x),
      tff.federated_max(x),
    )

  x, w = [3.0, -1.0, 5.0, 2.0], [1.0, 2.0, 3.0, 4.0]
  result = context.invoke(reduce_all, [x, w])
  np.testing.assert_allclose(result, [9, 2.25, np.average(x, weights=w), -1, 5], rtol=1e-6)


def test_client_results_come_in_client_order(context):
  @tff.tensorflow.computation(np.int32)
  def slow_when_small(x):
    # Early clients take longer, so that results are ready in another order.
    spins = tf.while_loop(lambda i: i < 10000 - 500 * x, lambda i: (i + 1,), (0,))[0]
    return x + 0 * spins

  @tff.federated_computation(_INTS)
  def run(x):
    y = tff.federated_map(slow_when_small, x)
    return y, tff.federated_zip((x, y))

  y, zipped = context.invoke(run, list(range(20)))
  assert y == list(range(20)) and type(y[0]) is np.int32
  assert zipped == [(i, i) for i in range(20)]


def test_broadcast_values_literals_and_evaluation_at_placements(context):
  @tff.federated_computation(_SERVER_FLOAT, _FLOATS)
  def run(server, clients):
    scaled = tff.federated_map(
      _multiply, tff.federated_zip((tff.federated_broadcast(server), clients))
    )
    ones = tff.federated_eval(tff.tensorflow.computation(lambda: tf.constant(1)), tff.CLIENTS)
    seven = tff.federated_eval(tff.tensorflow.computation(lambda: tf.constant(7)), tff.SERVER)
    eleven = tff.federated_value(11, tff.CLIENTS)
    return scaled, tff.federated_sum(ones), seven, eleven, tff.federated_sum(eleven)

  result = context.invoke(run, [3.0, [1.0, 2.0, 3.0, 4.0]])
  assert result == ([3.0, 6.0, 9.0, 12.0], 4, 7, 11, 44)


def test_default_number_of_clients():
  @tff.federated_computation
  def count():
    return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))

  assert runtime.create_in_process_context().invoke(count, None) == 0
  assert runtime.create_in_process_context(default_num_clients=3).invoke(count, None) == 3


def test_no_clients_give_the_zero_of_the_sum_and_an_empty_list(context):
  @tff.federated_computation(_INTS)
  def run(x):
    return tff.federated_sum(tff.federated_map(_double, x)), x

  assert context.invoke(run, []) == (0, [])


def test_different_numbers_of_clients_are_refused(context):
  @tff.federated_computation(_INTS, _INTS)
  def run(x, y):
    return tff.federated_sum(x), tff.federated_sum(y)

  with pytest.raises(ValueError, match='found 2 and 3'):
    context.invoke(run, [[1, 2], [1, 2, 3]])


def test_aggregate_accumulates_in_client_order_and_reports(context):
  @tff.tensorflow.computation(np.str_, np.str_)
  def join(total, x):
    return total + x

  @tff.tensorflow.computation(np.str_)
  def report(total):
    return total + '!'

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def run(x):
    return tff.federated_aggregate(x, '>', join, join, report)

  assert context.invoke(run, list('client order')) == b'>client order!'


def test_later_passes_see_the_sums_and_the_client_values_of_earlier_ones(context):
  @tff.tensorflow.computation(np.float32, np.float32)
  def squared_difference(x, mean):
    return (x - mean) ** 2

  @tff.federated_computation(_FLOATS)
  def variance(x):
    y = tff.federated_map(_multiply, tff.federated_zip((x, x)))
    mean = tff.federated_mean(y)
    zipped = tff.federated_zip((y, tff.federated_broadcast(mean)))
    return tff.federated_mean(tff.federated_map(squared_difference, zipped)), y

  x = np.array([1.0, 2.0, 3.0, 4.0, 5.0], np.float32)
  result, y = context.invoke(variance, list(x))
  np.testing.assert_allclose(result, np.var(x**2), rtol=1e-6)
  np.testing.assert_array_equal(y, x**2)


def test_sequences_in_and_out(context):
  @tff.tensorflow.computation(tff.SequenceType(np.int64))
  def shift(dataset):
    return dataset.map(lambda x: x + 10)

  @tff.federated_computation(tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS))
  def run(data):
    return tff.federated_map(shift, data), data

  shifted, data = context.invoke(run, [tf.data.Dataset.range(3), tf.data.Dataset.range(1)])
  assert [_elements(d) for d in shifted] == [[10, 11, 12], [10]]
  assert [_elements(d) for d in data] == [[0, 1, 2], [0]]


def test_lists_are_sequences_whose_elements_may_differ_in_shape(context):
  element = collections.OrderedDict(y=np.int32, x=tff.TensorType(np.float32, [None]))

  @tff.tensorflow.computation(tff.SequenceType(element))
  def total(dataset):
    return dataset.reduce(0.0, lambda s, e: s + tf.reduce_sum(e['x']) + tf.cast(e['y'], tf.float32))

  rows = [dict(y=1, x=[1.0, 2.0]), dict(y=1, x=[3.0, 4.0]), dict(y=1, x=[5.0])]
  rows = [collections.OrderedDict(row) for row in rows]
  assert context.invoke(total, rows) == 18.0
  assert context.invoke(total, []) == 0.0


def test_sequence_operators(context):
  @tff.tensorflow.computation(np.int32, np.int32)
  def add(x, y):
    return x + y

  @tff.federated_computation(tff.SequenceType(np.int32))
  def run(x):
    mapped = tff.sequence_map(_double, x)
    return tff.sequence_reduce(mapped, 100, add), tff.sequence_sum(x), mapped

  reduced, total, mapped = context.invoke(run, [1, 2, 3])
  assert (reduced, total, _elements(mapped)) == (112, 6, [2, 4, 6])


def test_select_gives_each_client_the_slices_of_its_keys(context):
  @tff.tensorflow.computation(tff.TensorType(np.float32, [4]), np.int32)
  def pick(table, key):
    return table[key]

  @tff.federated_computation(
    tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
    tff.FederatedType(tff.TensorType(np.float32, [4]), tff.SERVER),
  )
  def run(keys, table):
    return tff.federated_select(keys, tff.federated_value(4, tff.SERVER), table, pick)

  table = np.array([5.0, 6.0, 7.0, 8.0], np.float32)
  slices = context.invoke(run, [[[0, 1], [3, 3]], table])
  assert [_elements(s) for s in slices] == [[5.0, 6.0], [8.0, 8.0]]
  with pytest.raises(runtime.ClientError, match=r'Client 1 .*key 4 is not in \[0, 4\)'):
    context.invoke(run, [[[0, 1], [3, 4]], table])


def test_variables_are_fresh_at_every_call_and_private_to_every_client(context):
  @tff.tensorflow.computation(np.int32)
  def count_up(times):
    counter = tf.Variable(0)
    loop = tf.while_loop(
      lambda i: i < times, lambda i: (i + tf.minimum(1, counter.assign_add(1)),), (0,)
    )
    with tf.control_dependencies([loop[0]]):
      return counter.read_value()

  @tff.federated_computation(_INTS)
  def run(x):
    return tff.federated_map(count_up, x)

  times = [300 + i for i in range(40)]
  assert context.invoke(run, times) == times
  assert context.invoke(run, times) == times


def test_a_variable_may_start_as_an_argument(context):
  @tff.tensorflow.computation(np.float32, np.float32, np.float32)
  def start_and_add(unused, start, step):
    del unused
    variable = tf.Variable(initial_value=2.0 * start, name='sum')
    with tf.control_dependencies([variable.assign_add(step)]):
      return variable.read_value()

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def at_clients(starts):
    unused = tff.federated_value(7.0, tff.CLIENTS)
    steps = tff.federated_value(1.0, tff.CLIENTS)
    return tff.federated_map(start_and_add, (unused, starts, steps))

  for _ in range(2):
    assert context.invoke(start_and_add, (9.0, 3.0, 0.5)) == 6.5
    assert context.invoke(at_clients, [0.0, 1.0, 2.0, 3.0]) == [1.0, 3.0, 5.0, 7.0]


def test_tables_work_round_after_round(context):
  @tff.tensorflow.computation(np.str_)
  def look_up(word):
    initializer = tf.lookup.KeyValueTensorInitializer(['a', 'b'], tf.constant([1, 2], tf.int64))
    return tf.lookup.StaticHashTable(initializer, -1).lookup(word)

  @tff.federated_computation(tff.FederatedType(np.str_, tff.CLIENTS))
  def run(words):
    return tff.federated_map(look_up, words)

  for _ in range(2):
    assert context.invoke(run, ['a', 'b', 'c', 'a']) == [1, 2, -1, 1]


def test_an_error_names_its_client(context):
  @tff.tensorflow.computation(np.int32)
  def check(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, 3, message='too large')]):
      return tf.identity(x)

  @tff.federated_computation(_INTS)
  def run(x):
    return tff.federated_sum(tff.federated_map(check, x))

  with pytest.raises(runtime.ClientError) as error:
    context.invoke(run, [1, 2, 0, 1, 2, 3, 1])
  assert error.value.client_index == 5
  assert re.fullmatch(
    r'Client 5 failed in operation \S*Assert\S*: InvalidArgumentError: assertion failed: .*too '
    r'large.*',
    str(error.value),
  )
  assert isinstance(error.value.__cause__, tf.errors.InvalidArgumentError)
  # The context is as good as new.
  assert context.invoke(run, [1, 2]) == 3


def test_secure_sums_need_consent_to_be_simulated():
  @tff.federated_computation(_INTS)
  def run(x):
    return tff.federated_secure_sum_bitwidth(x, 8)

  with pytest.raises(NotImplementedError, match='federated_secure_sum_bitwidth.*in_the_clear'):
    runtime.create_in_process_context().invoke(run, [1, 2])
  context = runtime.create_in_process_context(simulate_secure_sums_in_the_clear=True)
  assert context.invoke(run, [1, 2]) == 3


def test_unsupported_blocks_are_named(context):
  with pytest.raises(NotImplementedError, match='xla'):
    context.invoke(tff.jax.computation(lambda x: x + 1, np.int32), 1)

  @tff.federated_computation
  def give_function():
    return _double

  with pytest.raises(NotImplementedError, match='function'):
    context.invoke(give_function, None)


def test_a_second_round_compiles_nothing(context, monkeypatch):
  @tff.federated_computation(_INTS)
  def run(x):
    return tff.federated_sum(tff.federated_map(_double, x))

  assert context.invoke(run, [1, 2, 3]) == 12
  monkeypatch.setattr(tff.framework, 'to_call_dominant', None)
  monkeypatch.setattr(tf.compat.v1, 'wrap_function', None)
  assert context.invoke(run, [4, 5]) == 18


def test_plans_are_dropped_with_their_computations(context):
  for _ in range(3):
    assert context.invoke(tff.tensorflow.computation(lambda: tf.constant(1)), None) == 1
  assert len(context._plans) <= 1


def test_a_copy_that_is_collected_while_a_graph_is_built_adds_nothing_to_it():
  # Collection can happen anywhere; inside of TensorFlow's own lock it would wait for ever.
  @tff.tensorflow.computation(np.float32)
  def add_to_variable(x):
    variable = tf.Variable(1.0)
    with tf.control_dependencies([variable.assign_add(x)]):
      return variable.read_value()

  context = runtime.create_in_process_context(num_threads=1)
  assert context.invoke(add_to_variable, 2.0) == 3.0
  del add_to_variable, context
  with tf.Graph().as_default() as graph:
    gc.collect()
    assert not graph.get_operations()
  assert graph_function._abandoned_variables
  graph_function._destroy_abandoned_variables()
  assert not graph_function._abandoned_variables


@pytest.mark.parametrize('num_threads', [1, 2, 5])
def test_at_most_the_pool_runs_at_the_same_time(num_threads):
  pool = runtime.in_process.client_pool.ClientPool(['/device:CPU:0'], num_threads)
  lock = threading.Lock()
  running, most, started = 0, 0, 0

  def client(index, device):
    nonlocal running, most, started
    with lock:
      running, started = running + 1, started + 1
      most = max(most, running)
    time.sleep(0.002)
    with lock:
      running -= 1
    return index, device

  for taken, result in enumerate(pool.map(client, 40)):
    assert result == (taken, '/device:CPU:0')
    assert started - taken <= 2 * num_threads
  assert taken == 39 and most == num_threads


def test_clients_go_to_devices_in_turn():
  pool = runtime.in_process.client_pool.ClientPool(['a', 'b', 'c'], 4)
  assert list(pool.map(lambda index, device: device, 7)) == list('abcabca')
  assert pool.num_threads == 6


def test_bad_settings_are_refused():
  with pytest.raises(ValueError, match='num_threads.*found 0'):
    runtime.create_in_process_context(num_threads=0)
  context = runtime.create_in_process_context(devices=['GPU:7'])
  with pytest.raises(ValueError, match="'GPU:7'"):
    context.invoke(_double, 1)


def test_describe_names_the_runtime_and_the_devices_that_trained():
  runtime.set_in_process_context(num_threads=2)

  @tff.federated_computation(_INTS)
  def run(x):
    return tff.federated_sum(tff.federated_map(_double, x))

  assert run([1, 2, 3]) == 12
  description = runtime.describe()
  assert description['runtime'] == 'in_process'
  assert description['clients_by_device'] == {'/device:CPU:0': 3}
  runtime.set_native_context()
  assert runtime.describe()['runtime'] == 'native'
