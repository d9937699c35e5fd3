# SPDX-License-Identifier: Apache-2.0
"""TFF's own drivers on the in-process runtime train to the numbers of `simulation.run`."""

import asyncio
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import optimizers, runtime, simulation
from tests import warm_command
from tests.simulation.tff_drivers import (
  CLIENTS,
  DATA,
  ROUNDS,
  leaves,
  saved_state,
  train_model,
)

ROOT = pathlib.Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures('in_process_runtime')


@pytest.fixture(scope='module')
def expected(task, processes):
  """What `simulation.run` gives, after each round: leaves of the weights and, at the end, of the
  clients' states."""
  found = {}
  for name in ('fed_avg', 'scaffold', 'fed_dyn'):
    process = processes[name]
    run = simulation.run(task, process, total_rounds=ROUNDS, clients_per_round=CLIENTS, **DATA)
    weights = [leaves(run.model_weights) for _ in run]
    states = run.client_states
    found[name] = weights, states and {i: leaves(states.get([i])) for i in states.client_ids()}
  return found


def assert_close(found, wanted):
  for x, y in zip(leaves(found), wanted, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def assert_same_clients(process, state, wanted):
  found = process.client_states(state)
  assert sorted(found) == sorted(wanted) and len(found) > CLIENTS
  for client_id, client_state in found.items():
    assert any(np.abs(leaf).max() > 1e-3 for leaf in wanted[client_id])
    assert_close(client_state, wanted[client_id])


@pytest.mark.parametrize('algorithm', ['scaffold', 'fed_dyn'])
def test_run_training_process_trains_an_algorithm_with_client_states_and_resumes(
  task, processes, expected, algorithm, tmp_path
):
  process = simulation.keep_client_states(processes[algorithm])
  data_source = simulation.build_data_source(task, process, **DATA)
  metrics = tff.program.MemoryReleaseManager()

  def train(total_rounds):
    # A manager of its own for each part, as a new process would have.
    return tff.simulation.run_training_process(
      process,
      data_source.selection_fn(CLIENTS),
      total_rounds,
      program_state_manager=tff.program.FileProgramStateManager(tmp_path),
      metrics_managers=[metrics],
    )

  asyncio.set_event_loop(asyncio.new_event_loop())  # TFF's loop takes the current one.
  train(3)
  state = train(ROUNDS)
  weights, client_states = expected[algorithm]
  assert_close(process.get_model_weights(state), weights[-1])
  assert_same_clients(process, state, client_states)
  assert sorted(metrics.values()) == list(range(1, ROUNDS + 1))
  rates = [metrics.values()[t]['client_work']['learning_rate'] for t in range(1, ROUNDS + 1)]
  np.testing.assert_allclose(rates, 0.1 * 0.9 ** np.arange(ROUNDS), rtol=1e-6)


def test_a_process_of_tff_takes_datasets_of_batches(task):
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    task.model_fn,
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
  )
  run = simulation.run(
    task, process, total_rounds=2, clients_per_round=CLIENTS, packed=False, **DATA
  )
  run.finish(quiet=True)
  data_source = simulation.build_data_source(task, process, **DATA)
  assert data_source.federated_type == process.next.type_signature.parameter[1]
  asyncio.set_event_loop(asyncio.new_event_loop())
  state = tff.simulation.run_training_process(process, data_source.selection_fn(CLIENTS), 2)
  assert_close(process.get_model_weights(state), leaves(run.model_weights))


def test_all_states_pass_a_file_manager_to_the_bit(task, processes, tmp_path):
  process = simulation.keep_client_states(processes['scaffold'])
  data_source = simulation.build_data_source(task, process, **DATA)
  manager = tff.program.FileProgramStateManager(tmp_path)
  state = process.initialize()
  assert not process.client_states(state)
  for round_index in range(2):
    before = state
    state = process.next(state, data_source.select(round_index, 2)).state
    asyncio.run(manager.save(state, round_index))
  assert len(process.client_states(before)) == 2  # What went in stays as it was.
  loaded, version = asyncio.run(manager.load_latest(process.initialize()))
  assert version == 1
  for x, y in zip(leaves(loaded), leaves(state), strict=True):
    np.testing.assert_array_equal(x, y)
  again = [process.next(s, data_source.select(2, 3)).state for s in (state, loaded)]
  for x, y in zip(*map(leaves, again), strict=True):
    np.testing.assert_array_equal(x, y)


def test_weights_and_hparams_of_a_plain_process_can_be_read_and_set(processes):
  process = simulation.keep_client_states(processes['scaffold'])
  state = process.initialize()
  weights = tf.nest.map_structure(lambda w: w + 1.0, process.get_model_weights(state))
  assert_close(
    process.get_model_weights(process.set_model_weights(state, weights)), leaves(weights)
  )
  hparams = process.get_hparams(state)
  hparams['client_work']['weight_decay'] = np.float32(0.75)
  changed = process.get_hparams(process.set_hparams(state, hparams))
  assert changed['client_work']['weight_decay'] == np.float32(0.75)


@pytest.mark.parametrize('algorithm', ['fed_avg', 'scaffold'])
def test_train_model_gives_the_weights_of_run_in_every_round(
  task, processes, expected, algorithm, tmp_path
):
  context = runtime.create_async_in_process_context()
  process = processes[algorithm]
  if algorithm == 'scaffold':
    process = simulation.keep_client_states(process, context=context)
  data_source = simulation.build_data_source(task, process, **DATA)
  train_model(process, data_source, context, tmp_path, rounds=3)
  managers = train_model(process, data_source, context, tmp_path)  # Goes on.
  assert sorted(managers['train_metrics_manager'].values()) == list(range(4, ROUNDS + 1))
  weights, client_states = expected[algorithm]
  for round_num in (1, 3, 4, ROUNDS):
    state = saved_state(process, data_source, tmp_path, round_num)
    assert_close(process.get_model_weights(state), weights[round_num - 1])
  assert (tmp_path / 'models' / f'release_training_checkpoint_round_{ROUNDS}').is_dir()
  if client_states is not None:
    assert_same_clients(process, state, client_states)


def test_an_evaluation_manager_evaluates_beside_the_training(task, processes, expected, tmp_path):
  context = runtime.create_async_in_process_context()
  evaluated = tff.program.MemoryReleaseManager()
  batches = task.datasets.train_data.create_tf_dataset_from_all_clients(0).batch(50)
  manager = tff.learning.programs.EvaluationManager(
    data_source=tff.program.DatasetDataSource([batches]),
    aggregated_metrics_manager=evaluated,
    create_state_manager_fn=lambda name: tff.program.FileProgramStateManager(tmp_path / name),
    create_process_fn=lambda name: (tff.learning.algorithms.build_fed_eval(task.model_fn), None),
    cohort_size=1,
    duration=datetime.timedelta(seconds=0),
  )
  data_source = simulation.build_data_source(task, processes['fed_avg'], **DATA)
  train_model(
    processes['fed_avg'], data_source, context, tmp_path, 4,
    evaluation_manager=manager, evaluation_periodicity=2,
  )  # fmt: skip
  assert sorted(evaluated.values()) == [2, 4]
  evaluate = simulation.build_evaluation(task.model_fn, batches)
  for round_num, found in evaluated.values().items():
    trainable = expected['fed_avg'][0][round_num - 1]
    wanted = evaluate(tff.learning.models.ModelWeights(trainable, []))
    metrics = found['model_metrics']
    np.testing.assert_allclose(metrics['accuracy'], wanted['accuracy'], rtol=1e-6)


_PROGRAM = """
import asyncio, json, pathlib, sys
import tensorflow_federated as tff
sys.path.insert(0, {root!r})
from fednar_tff import runtime, simulation, tasks
from tests.simulation import small_runs
from tests.simulation import tff_drivers as drivers

folder = pathlib.Path(sys.argv[1])
context = runtime.create_async_in_process_context()
task = tasks.create_task('synthetic', num_clients=6)
process = small_runs.build(task, 'fed_avg')
data_source = simulation.build_data_source(task, process, **drivers.DATA)
print('starts', flush=True)
drivers.train_model(process, data_source, context, folder)
runtime.set_in_process_context()
state = drivers.saved_state(process, data_source, folder, drivers.ROUNDS)
weights = drivers.leaves(process.get_model_weights(state))
print(json.dumps([w.tolist() for w in weights]))
"""


def test_train_model_is_killed_and_resumes(expected, tmp_path):
  command = ['-c', _PROGRAM.format(root=str(ROOT)), str(tmp_path)]
  first = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL)
  states = tmp_path / 'states'
  deadline = time.monotonic() + 200
  while not (states / 'program_state_2').exists():
    assert first.poll() is None and time.monotonic() < deadline
    time.sleep(0.005)
  os.kill(first.pid, signal.SIGKILL)
  assert first.wait() == -signal.SIGKILL
  assert not (states / f'program_state_{ROUNDS}').exists()
  second = warm_command.run(command, str(ROOT), os.environ)
  assert second.returncode == 0, second.stderr
  found = json.loads(second.stdout.splitlines()[-1])
  assert_close(list(map(np.asarray, found)), expected['fed_avg'][0][-1])


def test_bad_input_is_one_line(task, processes, tmp_path):
  with pytest.raises(TypeError, match='found LearningProcess, which is plain already'):
    simulation.keep_client_states(processes['fed_avg'])
  process = simulation.keep_client_states(processes['scaffold'])
  data_source = simulation.build_data_source(task, process, **DATA)
  pair = data_source.select(0, 1)[0]
  state = process.initialize()
  with pytest.raises(
    TypeError, match='a list of pairs of a client id and its data, found a list of'
  ):
    process.next(state, [pair[1]])
  with pytest.raises(ValueError, match='at least one client, found none'):
    process.next(state, [])
  with pytest.raises(ValueError, match='once in a round, found .* more than once'):
    process.next(state, [pair, pair])
  context = tff.program.NativeFederatedContext(runtime.create_async_in_process_context())
  with tff.framework.get_context_stack().install(context):
    with pytest.raises(ValueError, match='`context` of `keep_client_states` must be the context'):
      process.next(state, [pair])
  with pytest.raises(ValueError, match='from 1 to the number of clients, 6, found 7'):
    data_source.selection_fn(7)
  with pytest.raises(ValueError, match='`k`, the number of clients, must be given'):
    data_source.iterator().select()
  with pytest.raises(ValueError, match='Exactly one of `local_steps` and `local_epochs`'):
    simulation.build_data_source(task, process, batch_size=10)
  other = simulation.build_data_source(task, process, **{**DATA, 'batch_size': 5})
  message = 'other data: batch_size 5 there, 10 now. Choose another directory'
  with pytest.raises(ValueError, match=message):
    type(data_source.iterator()).from_bytes(other.iterator().to_bytes())
