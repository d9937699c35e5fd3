# SPDX-License-Identifier: Apache-2.0
"""Small clients run in groups, and nothing but the time shows it."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, runtime
from fednar_tff.runtime.in_process import groups
from fednar_tff.tasks import models

_NUM_CLIENTS = 11
_PLACED = tff.FederatedType(np.float32, tff.CLIENTS)


@pytest.fixture
def in_groups(monkeypatch):
  """Returns a function that fixes the size of groups, and the list of the groups that ran."""
  ran = []
  run_clients = groups.Group.run_clients

  def spy(self, clients, *arguments):
    ran.append(clients)
    return run_clients(self, clients, *arguments)

  def fix(size):
    monkeypatch.setattr(groups.Group, 'run_clients', spy)
    monkeypatch.setattr(groups.Group, 'size', lambda self, num_left, _: min(size, num_left))
    return ran

  return fix


def _in_threads(num_threads):
  context = runtime.create_in_process_context(num_threads=num_threads)
  return tff.framework.get_context_stack().install(context)


def _client(seed):
  """A packed client; some have fewer steps, and fewer examples than a batch."""
  rng = np.random.default_rng(seed)
  num_examples = 3 if seed % 4 == 1 else 8
  data = collections.OrderedDict(
    x=rng.normal(size=[num_examples, 5]).astype(np.float32),
    y=rng.integers(0, 3, [num_examples]).astype(np.int32),
  )
  index = np.array([rng.permutation(num_examples)[:4] for _ in range(1 + seed % 3)], np.int32)
  return tf.data.Dataset.from_tensors(collections.OrderedDict(data=data, index=index))


def _batches(seed):
  """The same client as a dataset of batches."""
  packed = _client(seed).get_single_element()
  return tf.data.Dataset.from_tensor_slices(packed['index']).map(
    lambda rows: tf.nest.map_structure(lambda leaf: tf.gather(leaf, rows), packed['data'])
  )


def _process(name, *, functional=False, packed=True):
  spec = collections.OrderedDict(x=tf.TensorSpec([None, 5]), y=tf.TensorSpec([None], tf.int32))
  model_fn, functional_model_fn = models.build_model_fns(models.build_mlp(3, hidden=(6,)), spec)
  loop = algorithms.PACKED if packed else tff.learning.LoopImplementation.DATASET_ITERATOR
  return algorithms.get_builder(name)(
    functional_model_fn() if functional else model_fn,
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, max_norm=1.0),
    loop_implementation=loop,
    **({'num_clients': _NUM_CLIENTS} if name == 'scaffold' else {}),
  )


def _two_rounds(process, clients):
  state = process.initialize()
  if not hasattr(process, 'initial_client_state'):
    for _ in range(2):
      state, metrics = process.next(state, clients)
    return tf.nest.flatten((state, metrics))
  client_states = [process.initial_client_state()] * len(clients)
  for _ in range(2):
    state, client_states, metrics = process.next(state, client_states, clients)
  return tf.nest.flatten((state, client_states, metrics))


@pytest.mark.parametrize(
  ('name', 'options', 'make_client'),
  [
    pytest.param('fed_avg', {}, _client, marks=pytest.mark.slow),
    pytest.param('fed_avg', {'functional': True}, _client, marks=pytest.mark.slow),
    pytest.param('fed_avg', {'packed': False}, _batches, marks=pytest.mark.slow),
    pytest.param('fed_exp', {}, _client, marks=pytest.mark.slow),
    ('scaffold', {}, _client),
  ],
  ids=['variables', 'functional', 'batches', 'fed_exp', 'scaffold'],
)
def test_the_bits_are_those_of_every_size_and_number_of_threads(
  name, options, make_client, in_groups, monkeypatch
):
  process = _process(name, **options)
  clients = [make_client(seed) for seed in range(_NUM_CLIENTS)]
  found = []
  for num_threads, size in ((1, 1), (1, 4), (3, 2), (2, _NUM_CLIENTS)):
    ran = in_groups(size)
    with _in_threads(num_threads):
      found.append(_two_rounds(process, clients))
    assert {len(group) for group in ran} >= {size}
    ran.clear()
  for leaves in found[1:]:
    for leaf, expected in zip(leaves, found[0], strict=True):
      np.testing.assert_array_equal(leaf, expected)
  # One by one, it is another graph, which TensorFlow may compute with other roundings.
  monkeypatch.setattr(groups, '_MAX_CLIENT_BYTES', 0)
  with _in_threads(1):
    one_by_one = _two_rounds(process, clients)
  assert not ran
  for leaf, expected in zip(one_by_one, found[0], strict=True):
    np.testing.assert_allclose(leaf, expected, rtol=1e-5, atol=1e-6)


@tff.tensorflow.computation(np.float32)
def _refuse_negative(x):
  with tf.control_dependencies([tf.debugging.assert_non_negative(x, 'too cold')]):
    return tf.sqrt(x)


@tff.federated_computation(_PLACED)
def _sum_of_roots(xs):
  return tff.federated_sum(tff.federated_map(_refuse_negative, xs))


@pytest.mark.parametrize('num_threads', [1, 3])
@pytest.mark.parametrize('size', [1, 4, _NUM_CLIENTS])
def test_an_error_in_a_group_names_its_client(size, num_threads, in_groups):
  ran = in_groups(size)
  values = [float(i) for i in range(_NUM_CLIENTS)]
  values[6] = -1.0
  with _in_threads(num_threads):
    with pytest.raises(runtime.ClientError, match='Client 6 failed.*too cold') as error:
      _sum_of_roots(values)
    assert error.value.client_index == 6
    assert isinstance(error.value.__cause__, tf.errors.InvalidArgumentError)
    values[6] = 36.0  # A group that failed runs again.
    expected = sum(np.sqrt(np.float32(value)) for value in values)
    assert _sum_of_roots(values) == pytest.approx(expected)
  assert any(6 in group for group in ran)


def test_the_clients_of_all_groups_are_counted_and_come_in_order(in_groups):
  in_groups(3)
  context = runtime.create_in_process_context(num_threads=2)

  @tff.federated_computation(_PLACED)
  def roots(xs):
    return tff.federated_map(_refuse_negative, xs)

  with tff.framework.get_context_stack().install(context):
    assert roots([float(i * i) for i in range(_NUM_CLIENTS)]) == list(range(_NUM_CLIENTS))
  assert sum(context.describe()['clients_by_device'].values()) == _NUM_CLIENTS


@pytest.mark.parametrize(
  'shape', [[groups._MAX_CLIENT_BYTES // 4 + 1], [None]], ids=['large', 'unknown']
)
def test_clients_that_send_much_or_who_knows_what_run_one_by_one(shape, in_groups):
  ran = in_groups(2)

  @tff.tensorflow.computation(tff.TensorType(np.float32, shape))
  def double(x):
    return 2.0 * x

  @tff.federated_computation(tff.FederatedType(tff.TensorType(np.float32, shape), tff.CLIENTS))
  def mapped(xs):
    return tff.federated_map(double, xs)

  xs = [np.full([shape[0] or 1 + i], i, np.float32) for i in range(3)]
  with _in_threads(2):
    for x, found in zip(xs, mapped(xs), strict=True):
      np.testing.assert_array_equal(found, 2.0 * x)
  assert not ran


def test_a_group_is_short_in_time_and_leaves_work_for_all_threads():
  @tff.federated_computation(_PLACED)
  def roots(xs):
    return tff.federated_map(_refuse_negative, xs)

  context = runtime.create_in_process_context(num_threads=2)
  plan = context._plan_of(roots)
  (current,) = (p for p in plan.passes if p.client_steps)
  group = groups.make_group(current, [0], ['/device:CPU:0'])
  assert group.size(1000, 2) == 1  # Nothing is known about the time yet.
  group._seconds = 1e-3
  assert group.size(1000, 2) == round(groups._GROUP_SECONDS / 1e-3)
  assert group.size(20, 2) == 5
  group._seconds = 1.0
  assert group.size(1000, 2) == 1
  assert groups.make_group(current, [0], ['/device:GPU:0']) is None
  assert groups.make_group(current, [0], ['/device:CPU:0', '/device:CPU:1']) is None
