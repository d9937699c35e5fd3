# SPDX-License-Identifier: Apache-2.0
"""Every algorithm with the switches of the `reference` variant against the released code's round in
float64 NumPy.

Six rounds of partial participation, on clients that hold 8, 11, 3 and 6 examples and take four
steps in batches of 4: so a round has short batches, goes into the next epoch, and a client's weight
(the size of its data) is not the number of examples that it has processed.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, tasks
from tests.algorithms import numpy_reference

ROUNDS = ([0, 1], [1, 2], [2, 0, 3], [3, 1], [0, 2], [3, 2, 1])
SIZES = (8, 11, 3, 6)
BATCH_SIZE, LOCAL_STEPS = 4, 4
LEARNING_RATE, DECAY, WEIGHT_DECAY, BOUND = 0.4, 0.9, 0.3, 0.6
ADAM = dict(beta_1=0.8, beta_2=0.95)
CASES = {
  # Arguments of the builder beside the switches, options of the NumPy reference. The epsilons are
  # large, so that they are seen, and so is the decay.
  'fed_avg': ({}, {}),
  'fed_prox': ({}, {'prox': 0.001}),
  'scaffold': ({'num_clients': 4, 'total_examples': 28}, {}),
  'fed_exp': (
    {'epsilon': 0.01, 'epsilon_decay': DECAY**2},
    {'eps': 0.01, 'decay': DECAY, 'average_last_two': True},
  ),
  'fed_adam': (
    {'server_learning_rate': 0.2, 'epsilon': 0.05, 'epsilon_decay': DECAY**2, **ADAM},
    {'eta': 0.2, 'eps': 0.05, 'decay': DECAY, **ADAM},
  ),
  'fed_avgm': ({}, {'momentum': 0.9}),
}
SWITCHES = {
  'fed_prox': {'proximal_strength': 0.001},
  'fed_exp': {'variant': 'reference', 'average_last_two': True},
  'fed_adam': {'variant': 'reference'},
  'fed_avgm': {'server_momentum': 0.9},
}
OPTIMIZERS = {'nar': optimizers.build_nar, 'clip': optimizers.build_clipped_sgd}


@pytest.fixture(scope='module')
def unequal_task(problem):
  ends = np.cumsum(SIZES)
  data = collections.OrderedDict(x=problem.x, y=problem.y)
  return tasks.build_task(
    'unequal',
    train=data,
    test=data,
    partition=tasks.Partition(
      tuple('0123'), np.split(np.arange(ends[-1]), ends[:-1]), np.zeros(ends[-1], np.int32)
    ),
    model_fn=problem.variable_model,
  )


def packed(task, client, round_num):
  return task.packed_client(
    str(client),
    round_num,
    batch_size=BATCH_SIZE,
    local_steps=LOCAL_STEPS,
    seed=1,
    with_size=True,
  )


def batches_of(dataset):
  """Reads the batches of a packed client with NumPy."""
  (element,) = dataset.as_numpy_iterator()
  x, y = element['data']['x'], element['data']['y']
  return [(x[rows[rows >= 0]], y[rows[rows >= 0]]) for rows in element['index']]


def build(problem, name, rule, **arguments):
  return algorithms.get_builder(name)(
    problem.functional_model(),
    client_optimizer_fn=OPTIMIZERS[rule](1.0, WEIGHT_DECAY, BOUND, epsilon=1e-6),
    learning_rate_fn=algorithms.exponential_decay(LEARNING_RATE, DECAY, first_round_decays=True),
    **{
      'loop_implementation': algorithms.PACKED,
      'client_weighting': algorithms.DATA_SIZE,
      **SWITCHES.get(name, {}),
      **arguments,
    },
  )


def test_rounds_are_what_they_are_to_be(unequal_task):
  sizes = [[len(y) for _, y in batches_of(packed(unequal_task, i, 0))] for i in range(4)]
  assert sizes == [[4, 4, 4, 4], [4, 4, 3, 4], [3, 3, 3, 3], [4, 2, 4, 2]]
  (element,) = packed(unequal_task, 1, 0).as_numpy_iterator()
  assert element['num_examples'] == 11


@pytest.mark.parametrize('rule', OPTIMIZERS)
@pytest.mark.parametrize('name', CASES)
def test_agrees_with_the_released_round(problem, unequal_task, run_beside_numpy, name, rule):
  arguments, options = CASES[name]
  server = numpy_reference.Server(
    name, problem.initial, [[]] * 4, data_sizes=SIZES, released=True, **options
  )

  def numpy_round(t, clients, data):
    for i, dataset in zip(clients, data):
      server.clients[i].batches = batches_of(dataset)
    # D4: decayed in the first round already.
    server.round(clients, rule, LEARNING_RATE * DECAY ** (t + 1), WEIGHT_DECAY, BOUND)

  history = run_beside_numpy(
    build(problem, name, rule, **arguments),
    server,
    ROUNDS,
    lambda t, clients: [packed(unequal_task, i, t) for i in clients],
    numpy_round,
    tolerance=2e-5,
  )
  if name == 'fed_exp':
    sizes = [m['server_step_size'] for m in history]
    assert min(sizes) == 1.0 and max(sizes) > 1.05


@pytest.mark.parametrize(
  ('weighting', 'weights'),
  [
    (tff.learning.ClientWeighting.UNIFORM, (1, 1)),
    (tff.learning.ClientWeighting.NUM_EXAMPLES, (15, 12)),  # Processed: 4 + 4 + 3 + 4, and 4 x 3.
    (algorithms.DATA_SIZE, (11, 3)),
  ],
)
def test_weights_of_unequal_clients(problem, unequal_task, weighting, weights):
  process = build(problem, 'fed_avg', 'nar', client_weighting=weighting)
  with_size = weighting is algorithms.DATA_SIZE
  assert algorithms.takes_data_size(process) == with_size
  data = [
    unequal_task.packed_client(
      client, 0, batch_size=BATCH_SIZE, local_steps=LOCAL_STEPS, seed=1, with_size=with_size
    )
    for client in '12'
  ]

  def moved(clients):
    state, _ = process.next(process.initialize(), clients)
    return [a - b for a, b in zip(state.global_model_weights.trainable, problem.initial)]

  for both, first, second in zip(moved(data), moved(data[:1]), moved(data[1:])):
    expected = (weights[0] * first + weights[1] * second) / sum(weights)
    np.testing.assert_allclose(both, expected, rtol=1e-4, atol=1e-6)


def test_an_ordinary_dataset_weighs_as_what_was_processed(problem, unequal_task):
  results = []
  for weighting in (algorithms.DATA_SIZE, tff.learning.ClientWeighting.NUM_EXAMPLES):
    process = build(
      problem,
      'fed_avg',
      'nar',
      client_weighting=weighting,
      loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
    )
    assert not algorithms.takes_data_size(process)
    data = [
      unequal_task.client_batches(c, 0, batch_size=BATCH_SIZE, local_steps=LOCAL_STEPS, seed=1)
      for c in '12'
    ]
    state, _ = process.next(process.initialize(), data)
    results.append(state.global_model_weights.trainable)
  for a, b in zip(*results):
    np.testing.assert_array_equal(a, b)


def test_packed_clients_without_their_size_are_told_what_is_missing(problem, unequal_task):
  process = build(problem, 'fed_avg', 'nar')
  data = unequal_task.packed_client('1', 0, batch_size=4, local_steps=1, seed=1)
  with pytest.raises(TypeError, match=r'index=int32\[\?,\?\],num_examples=int32>'):
    process.next(process.initialize(), [data])


@pytest.mark.parametrize('decay', [0.9, 0.998, 1.0])
def test_epsilon_of_fed_adam_by_round(problem, decay):
  """Decayed by the square of the learning rate's factor, in the first round already."""
  process = build(problem, 'fed_adam', 'nar', epsilon=0.01, epsilon_decay=decay**2)
  state = process.initialize()
  element = collections.OrderedDict(
    data=collections.OrderedDict(x=problem.x, y=problem.y),
    index=np.array([[0, 1]], np.int32),
    num_examples=np.int32(2),
  )
  for t in (1, 2, 3):
    state, _ = process.next(state, [tf.data.Dataset.from_tensors(element)])
    epsilon = process.get_hparams(state)['finalizer']['epsilon']
    np.testing.assert_allclose(epsilon, 0.01 * decay ** (2 * t), rtol=1e-6)


@pytest.mark.parametrize('name', ['fed_adam', 'fed_exp'])
def test_decay_of_epsilon_is_checked(problem, name):
  with pytest.raises(ValueError, match="must be None if `variant` is 'paper', found 0.9"):
    build(problem, name, 'nar', variant='paper', epsilon_decay=0.9)
  with pytest.raises(ValueError, match='`epsilon_decay` must be a nonnegative number, found -1'):
    build(problem, name, 'nar', epsilon_decay=-1.0)
  with pytest.raises(ValueError, match='`variant` must be one of .*found .code.'):
    build(problem, name, 'nar', variant='code')


def test_total_examples_needs_the_sizes(problem):
  uniform = tff.learning.ClientWeighting.UNIFORM
  with pytest.raises(ValueError, match='must be `algorithms.DATA_SIZE` if `total_examples`'):
    build(problem, 'scaffold', 'nar', num_clients=4, total_examples=28, client_weighting=uniform)
  with pytest.raises(ValueError, match='`total_examples` must be a positive integer, found 0'):
    build(problem, 'scaffold', 'nar', num_clients=4, total_examples=0)
