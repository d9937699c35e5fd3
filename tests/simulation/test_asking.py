# SPDX-License-Identifier: Apache-2.0
"""`simulation.run` finds out what it is not told: the form of the data, the runtime, the seeds."""

import numpy as np
import pytest
import tensorflow_federated as tff

from fednar_tff import algorithms, optimizers, runtime, simulation, tasks

pytestmark = pytest.mark.usefixtures('in_process_runtime')

WORK = {'batch_size': 5, 'local_steps': 2}


@pytest.fixture(scope='module')
def task():
  return tasks.create_task('synthetic', num_clients=4)


def build(task, **arguments):
  return algorithms.build_fed_avg(
    task.functional_model_fn(),
    client_optimizer_fn=optimizers.build_nar(0.1, 0.01, 0.5),
    **arguments,
  )


@pytest.fixture(scope='module')
def process(task):
  return build(task, loop_implementation=algorithms.PACKED)


CONTEXTS = {
  'in_process': lambda: runtime.create_in_process_context(),
  'async_in_process': lambda: runtime.create_async_in_process_context(),
  'native': lambda: runtime.create_native_context(),
  # That of a fresh import of TFF, but without its worker.
  'of_tff': lambda: tff.framework.SyncExecutionContext(
    tff.framework.ResourceManagingExecutorFactory(lambda cardinalities: None)
  ),
}


@pytest.mark.parametrize(
  ('context', 'shares'),
  [('in_process', True), ('async_in_process', True), ('native', False), ('of_tff', False)],
)
def test_data_is_shared_if_the_runtime_is_this_process(task, process, context, shares):
  with tff.framework.get_context_stack().install(CONTEXTS[context]()):
    (client,) = simulation.build_data_source(task, process, **WORK).select(0, 1)
    own = simulation.build_data_source(task, process, **WORK, share_data=False).select(0, 1)
    if not shares:
      with pytest.raises(ValueError, match='`share_data` must be False or None on .*found True'):
        simulation.build_data_source(task, process, **WORK, share_data=True)
  num_rows = client.element_spec['data']['y'].shape[0]
  assert (num_rows == len(task.partition.labels)) == shares
  assert own[0].element_spec['data']['y'].shape[0] < len(task.partition.labels)


@pytest.mark.parametrize(
  'loop', [algorithms.PACKED, tff.learning.LoopImplementation.DATASET_REDUCE]
)
def test_the_form_of_the_data_is_that_of_the_process(task, loop):
  process = build(task, loop_implementation=loop)
  run = simulation.run(task, process, total_rounds=1, clients_per_round=2, **WORK)
  assert run.description['packed'] == (loop is algorithms.PACKED)
  metrics = run.finish(quiet=True).metrics
  assert metrics['total_steps'] == 4
  # The algorithm names its own metrics; the others are the model's.
  assert set(algorithms.TRAINING_METRICS) <= set(metrics)
  assert not {f'train_{name}' for name in algorithms.TRAINING_METRICS} & set(metrics)


def test_seeds_are_derived_once(task, process):
  seeds = simulation.derive_seeds(3, batches=7)
  numbers = {'total_rounds': 1, 'clients_per_round': 2, **WORK}
  run = simulation.run(task, process, seed=seeds, **numbers)
  assert (run.description['sampling_seed'], run.description['batch_seed']) == (seeds.sampling, 7)
  same = simulation.run(task, process, seed=3, batch_seed=7, **numbers)
  assert run.description == same.description
  with pytest.raises(ValueError, match='seed of sampling must be None .* found 5'):
    simulation.run(task, process, seed=seeds, sampling_seed=5, **numbers)


def test_own_rows_train_as_shared_ones_do(task, process):
  runs = []
  for shared in (True, False):
    run = simulation.run(
      task, process, total_rounds=2, clients_per_round=2, share_data=shared, **WORK
    )
    run.finish(quiet=True)
    runs.append(run.model_weights.trainable)
  for a, b in zip(*runs, strict=True):
    np.testing.assert_array_equal(a, b)
