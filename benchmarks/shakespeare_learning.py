# SPDX-License-Identifier: Apache-2.0
"""How fast Shakespeare is learned: `python -m benchmarks.shakespeare_learning`.

Trains the transformer for a number of steps, on all clients' windows mixed (`--training=central`)
or by FedAvg (`federated`), and prints its accuracy on a sample of the test windows. Above the curve
stand the accuracies of the best guess from the last one, two and three characters (bigrams,
trigrams, four-grams): learned by counting the training windows, and the best that any such guess
can be, counted on all test windows themselves.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import collections
import itertools
import time

import numpy as np
from absl import app, flags

_TRAINING = flags.DEFINE_enum('training', 'central', ['central', 'federated'], 'Who trains.')
_STEPS = flags.DEFINE_integer('steps', 600, 'Steps; of one client of a round if federated.')
_SECONDS = flags.DEFINE_float('seconds', 0.0, 'Ends after this processor time, unless 0.')
_EVALUATE = flags.DEFINE_integer('steps_per_evaluation', 100, 'Steps from line to line.')
_WINDOWS = flags.DEFINE_integer('test_windows', 4000, 'How many test windows are evaluated.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 20, 'Windows in a batch.')
_OPTIMIZER = flags.DEFINE_enum('optimizer', 'nar', ['nar', 'clip', 'adam'], 'adam is co-clipped.')
_LEARNING_RATE = flags.DEFINE_float('learning_rate', 0.1, 'The learning rate.')
_DECAY = flags.DEFINE_float('final_learning_rate', 0.0, 'If not 0: that of the last step or round.')
_WEIGHT_DECAY = flags.DEFINE_float('weight_decay', 1e-4, 'The weight decay.')
_MAX_NORM = flags.DEFINE_float('max_norm', 10.0, 'The bound.')
_CLIENTS = flags.DEFINE_integer('clients_per_round', 10, 'Clients of a round, if federated.')
_LOCAL_STEPS = flags.DEFINE_integer(
  'local_steps', 10, 'Steps of a client in a round, if federated.'
)
_NUM_CLIENTS = flags.DEFINE_integer('num_clients', 100, 'Roles.')
_SEED = flags.DEFINE_integer('seed', 0, 'Of initial weights, batches and dropout.')
_THREADS = flags.DEFINE_integer('threads', 1, "TensorFlow's threads.")
# Switches of the task.
_PREDICTION = flags.DEFINE_enum('prediction', 'last', ['last', 'every'], 'Targets of a window.')
_INITIALIZATION = flags.DEFINE_enum('initialization', 'released', ['released', 'uniform'], 'Start.')
_IDENTICAL = flags.DEFINE_bool('identical_layers', False, 'Whether layers start identical.')
_DROPOUT = flags.DEFINE_float('dropout', 0.1, 'The share that training drops.')
_INPUT_DROPOUT = flags.DEFINE_bool('input_dropout', False, 'Whether of the embedded input, too.')
_TEXT = flags.DEFINE_enum('text', 'tff', ['tff', 'leaf'], 'The rule for line breaks and spaces.')
_CROP = flags.DEFINE_bool('crop_windows', True, 'Whether a role has 2,000 windows, or all of its.')


def _counts(windows, length):
  """Returns how often each character follows on each `length` characters, at the end of windows."""
  found = collections.defaultdict(collections.Counter)
  rows = windows[:, -length - 1 :].astype(np.uint8)
  for row, number in zip(*np.unique(rows, axis=0, return_counts=True)):
    found[row[:length].tobytes()][int(row[length])] += int(number)
  return found


def learned_accuracy(train, test, length):
  """Returns the accuracy of guessing the most frequent character after `length` others.

  Where `train` does not have those, fewer of them are looked up.

  Args:
    train: Windows, integers `[n, positions]`.
    test: Windows alike.
    length: How many characters before the last one are known.
  """
  learned = [_counts(train, known) for known in range(length + 1)]
  hits = 0
  for context, after in _counts(test, length).items():
    known = next(k for k in range(length, -1, -1) if context[length - k :] in learned[k])
    (guess, _), *_ = learned[known][context[length - known :]].most_common(1)
    hits += after[guess]
  return hits / len(test)


def best_accuracy(test, length):
  """Returns the most that any guess from the `length` characters before it can reach."""
  return sum(max(after.values()) for after in _counts(test, length).values()) / len(test)


def whole_windows(dataset, prediction):
  """Returns the windows of a dataset of examples with their next character, `[n, 81]`."""
  batch = dataset.batch(10**7).get_single_element()
  y = batch['y'][:, -1:] if prediction == 'every' else batch['y'][:, np.newaxis]
  return np.concatenate([batch['x']['tokens'], y], axis=1)


def build_optimizer():
  """Returns the client optimizer of the flags."""
  import tensorflow_federated as tff

  from fednar_tff import optimizers

  rates = (_LEARNING_RATE.value, _WEIGHT_DECAY.value, _MAX_NORM.value)
  if _OPTIMIZER.value == 'nar':
    return optimizers.build_nar(*rates)
  if _OPTIMIZER.value == 'clip':
    return optimizers.build_clipped_sgd(*rates)
  return optimizers.co_clip(tff.learning.optimizers.build_adam(rates[0]), *rates[1:])


def decay_rate(number):
  """Returns the factor from one step or round to the next, `number` in all."""
  if not _DECAY.value:
    return 1.0
  return (_DECAY.value / _LEARNING_RATE.value) ** (1 / max(number - 1, 1))


def train_centrally(task):
  """Yields the steps done, the weights, the mean training loss and the share of clipped steps."""
  import tensorflow as tf
  import tensorflow_federated as tff

  from fednar_tff import optimizers

  model, optimizer = task.model_fn(), build_optimizer()
  weights = tff.learning.models.ModelWeights.from_model(model)
  data = task.datasets.train_data.create_tf_dataset_from_all_clients(seed=0)
  data = data.batch(10**7).get_single_element()
  # As variables, so that the step need not hand them around.
  specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in weights.trainable)
  state = tf.nest.map_structure(tf.Variable, optimizer.initialize(specs))

  @tf.function
  def step(rows, seed, learning_rate):
    x = collections.OrderedDict(tokens=tf.gather(data['x']['tokens'], rows), seed=seed)
    batch = collections.OrderedDict(x=x, y=tf.gather(data['y'], rows))
    with tf.GradientTape() as tape:
      loss = model.forward_pass(batch, training=True).loss
    gradient = tape.gradient(loss, weights.trainable)
    now = optimizer.set_hparams(
      tf.nest.map_structure(lambda v: v.read_value(), state), {'learning_rate': learning_rate}
    )
    new_state, new_weights = optimizer.next(
      now, tuple(v.read_value() for v in weights.trainable), tuple(gradient)
    )
    tf.nest.map_structure(lambda v, n: v.assign(n), state, new_state)
    for variable, value in zip(weights.trainable, new_weights):
      variable.assign(value)
    return loss

  generator = np.random.Generator(np.random.Philox(_SEED.value))
  factor, losses, clipped = decay_rate(_STEPS.value), [], 0
  for number in itertools.count(1):
    rows = generator.integers(len(data['y']), size=_BATCH_SIZE.value, dtype=np.int32)
    seed = generator.integers(2**31, size=2, dtype=np.int32)
    rate = np.float32(_LEARNING_RATE.value * factor ** (number - 1))
    losses.append(float(step(tf.constant(rows), tf.constant(seed), tf.constant(rate))))
    if number % _EVALUATE.value == 0 or number == _STEPS.value:
      _, all_clipped, _ = optimizers.get_clipping_statistics(state)
      share = (int(all_clipped) - clipped) / len(losses)
      clipped = int(all_clipped)
      yield number, weights, np.mean(losses), share
      losses = []


def train_federated(task):
  """Yields the same after rounds of FedAvg; a step is one of each client of the round."""
  from fednar_tff import algorithms, simulation

  rounds = -(-_STEPS.value // _LOCAL_STEPS.value)
  process = algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=build_optimizer(),
    learning_rate_fn=algorithms.exponential_decay(_LEARNING_RATE.value, decay_rate(rounds)),
    loop_implementation=algorithms.PACKED,
  )
  run = simulation.run(
    task,
    process,
    total_rounds=rounds,
    clients_per_round=_CLIENTS.value,
    batch_size=_BATCH_SIZE.value,
    local_steps=_LOCAL_STEPS.value,
    seed=_SEED.value,
    rounds_per_evaluation=10**9,
  )
  losses, clipped = [], []
  while run.round_num < rounds - 1:  # The last round would evaluate all test windows.
    metrics = next(run).metrics
    losses.append(metrics['train_loss'])
    clipped.append(metrics['clipped_steps'] / metrics['total_steps'])
    done = run.round_num * _LOCAL_STEPS.value
    if done % _EVALUATE.value < _LOCAL_STEPS.value or run.round_num == rounds - 1:
      yield done, run.model_weights, np.mean(losses), np.mean(clipped)
      losses, clipped = [], []


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f'Unknown argument {argv[1]}.')
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(_THREADS.value)
  tf.config.threading.set_inter_op_parallelism_threads(_THREADS.value)
  from fednar_tff import runtime, simulation, tasks

  runtime.set_in_process_context()
  task = tasks.create_task(
    'shakespeare',
    num_clients=_NUM_CLIENTS.value,
    seed=_SEED.value,
    partition_seed=0,
    prediction=_PREDICTION.value,
    initialization=_INITIALIZATION.value,
    identical_layers=_IDENTICAL.value,
    dropout=_DROPOUT.value,
    input_dropout=_INPUT_DROPOUT.value,
    text=_TEXT.value,
    crop_windows=_CROP.value,
  )
  train = whole_windows(
    task.datasets.train_data.create_tf_dataset_from_all_clients(0), _PREDICTION.value
  )
  test_data = task.datasets.test_data.take(_WINDOWS.value)
  test = whole_windows(task.datasets.test_data, _PREDICTION.value)
  sample = test[: _WINDOWS.value]
  print(f'{len(train)} training windows, {len(test)} test windows, evaluated are {len(sample)}.')
  for length in (1, 2, 3):
    learned = learned_accuracy(train, sample, length)
    best = best_accuracy(test, length)
    print(
      f'last {length} characters: learned {100 * learned:.1f} %, best possible {100 * best:.1f} %'
    )
  evaluate = simulation.build_evaluation(task.model_fn, task.datasets.eval_preprocess_fn(test_data))
  print('step, processor seconds, train loss, clipped %, test loss, test accuracy %')
  seconds, start = 0.0, time.process_time()
  trains = {'central': train_centrally, 'federated': train_federated}[_TRAINING.value]
  for number, weights, loss, clipped in trains(task):
    seconds += time.process_time() - start
    metrics = evaluate(weights)
    print(
      f'{number}, {seconds:.0f}, {loss:.3f}, {100 * clipped:.0f}, '
      f'{metrics["loss"]:.3f}, {100 * metrics["accuracy"]:.2f}',
      flush=True,
    )
    if number >= _STEPS.value or 0 < _SECONDS.value < seconds:
      break
    start = time.process_time()


if __name__ == '__main__':
  app.run(main)
