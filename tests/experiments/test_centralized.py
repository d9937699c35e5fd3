# SPDX-License-Identifier: Apache-2.0
"""The centralised baseline: plain training on everybody's data, as many examples a round."""

import numpy as np
import pytest

from experiments.definition import identity, settings
from experiments.reading import figures, grouping
from experiments.reading import runs as runs_lib
from experiments.running import building
from fednar_tff import tasks
from tests.experiments.run_files import write_run
from tests.simulation import numpy_reference

pytestmark = pytest.mark.usefixtures('in_process_runtime')


def test_a_round_is_steps_of_the_optimizer_on_all_data():
  chosen = identity.resolve(
    {
      'task': 'synthetic',
      'algorithm': 'centralized',
      'num_clients': 8,
      'clients_per_round': 3,
      'local_steps': 4,
      'batch_size': 10,
      'learning_rate': 0.2,
      'learning_rate_decay': 1.0,
      'weight_decay': 0.05,
      'max_norm': 0.5,
    }
  )
  task = building.create_task(chosen, building.derive_seeds(chosen))
  process = building.create_process(chosen, task)
  pooled, work = building.round_of(chosen, task)
  # Clients of 50 examples: 4 batches of 10 are 40 examples, of 3 clients 120, which are 12 batches.
  assert work == {'clients_per_round': 1, 'local_steps': 12, 'local_epochs': None}
  assert pooled.partition.client_ids == ('everyone',)
  data = pooled.packed_client('everyone', 0, batch_size=10, local_steps=12, seed=5)
  element = next(iter(data))
  x, y = np.asarray(element['data']['x']), np.asarray(element['data']['y'])
  index = np.asarray(element['index'])
  assert len(set(index.ravel())) == 120  # Of 400: none twice.
  state = process.initialize()
  before = [np.asarray(w) for w in process.get_model_weights(state).trainable]
  after = process.get_model_weights(process.next(state, [data]).state).trainable
  for found, expected in zip(after, numpy_reference.nar_steps(before, x, y, index, 0.2, 0.05, 0.5)):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  ('sizes', 'work', 'steps'),
  [
    ((5, 5, 20), {'batch_size': 10, 'local_steps': 4}, (20 + 20 + 40) / 3 * 2 / 10),
    ((5, 25, 30), {'batch_size': 10, 'local_epochs': 2}, (10 + 50 + 60) / 3 * 2 / 10),
    ((25, 25, 25), {'batch_size': 10, 'local_steps': 4}, 35 * 2 / 10),  # 10 + 10 + 5 + 10.
  ],
  ids=['small_clients', 'epochs', 'short_batches'],
)
def test_as_many_examples_as_the_clients_of_a_round(sizes, work, steps):
  task = tasks.create_task('synthetic', num_clients=2)
  ends = np.cumsum(sizes)
  rows = [np.arange(end - size, end) for size, end in zip(sizes, ends)]
  task = task.with_partition(tasks.Partition(['a', 'b', 'c'], rows, task.partition.labels))
  assert task.examples_per_round(2, **work) == pytest.approx(steps * 10)
  chosen = {'algorithm': 'centralized', 'clients_per_round': 2, **work}
  assert building.round_of(chosen, task)[1]['local_steps'] == round(steps)


def test_clients_are_not_evaluated_in_a_run_that_has_none():
  chosen = identity.resolve({'algorithm': 'centralized', 'rounds_per_client_evaluation': 5})
  with pytest.raises(settings.UsageError, match='means nothing with --algorithm=centralized'):
    settings.check(chosen, {})


def lines_of(experiment):
  (page,) = figures.plot_curves(experiment, '', 'final')
  return [
    (axis.get_title(), sorted(line.get_label() for line in axis.get_lines())) for axis in page.axes
  ]


def test_curves_have_it_as_an_upper_line(tmp_path):
  for weight_decay in (0.01, 0.1):
    for algorithm in ('fed_avg', 'scaffold', 'centralized'):
      write_run(tmp_path, [0.1, 0.5], algorithm=algorithm, weight_decay=weight_decay)
  found, _ = runs_lib.find_runs([tmp_path])
  panels = lines_of(grouping.Experiment(found))
  assert len(panels) == 4
  for title, labels in panels:
    assert title.startswith(('FedAvg', 'SCAFFOLD'))
    assert labels == ['NAR', 'centralised, NAR']
  alone = [run for run in found if run.identity['algorithm'] == 'centralized']
  assert len(lines_of(grouping.Experiment(alone))) == 2
