# SPDX-License-Identifier: Apache-2.0
import pathlib
import re
import runpy

import pytest

from fednar_tff import tasks
from fednar_tff.tasks import registry


@pytest.fixture
def restored_registry(monkeypatch):
  monkeypatch.setattr(registry, '_BUILDERS', dict(registry._BUILDERS))


def test_names_are_the_designs():
  assert tasks.task_names() == ['cifar10', 'cifar100', 'digits', 'shakespeare', 'synthetic']


@pytest.mark.parametrize(
  'arguments, message',
  [
    (
      {'name': 'mnist'},
      "must be one of cifar10, cifar100, digits, shakespeare, synthetic, found 'mnist'",
    ),
    (
      {'name': 'digits', 'model': 'transformer'},
      "`model` of task digits must be one of mlp, cnn, found 'transformer'",
    ),
    (
      {'name': 'digits', 'partition': 'even'},
      "must be one of dirichlet, dirichlet_unequal, iid, found 'even'",
    ),
    ({'name': 'digits', 'pooling': 'global'}, "'digits' does not take pooling; it takes alpha, "),
    ({'name': 'shakespeare', 'alpha': 0.3}, "'shakespeare' does not take alpha"),
    ({'name': 'cifar100', 'num_clients': 3}, "'cifar100' does not take num_clients"),
    (
      {'name': 'digits', 'partition': 'iid', 'alpha': 1.0},
      '`alpha` must be None in an iid partition, found 1.0',
    ),
    (
      {'name': 'cifar10', 'model': 'cnn', 'pooling': 'global'},
      '`pooling` must be None for model cnn',
    ),
    (
      {'name': 'cifar10', 'augmentation': 'some'},
      "must be one of per_image, per_batch, none, found 'some'",
    ),
    ({'name': 'shakespeare', 'dropout': 1.0}, 'less than 1, found 1.0'),
  ],
)
def test_what_does_not_fit_is_named(arguments, message):
  with pytest.raises(ValueError, match=message) as error:
    tasks.create_task(**arguments)
  assert '\n' not in str(error.value)


def test_registered_tasks_are_created_by_name(restored_registry):
  calls = []
  tasks.register_task('mine', lambda *, seed=0, size=1: calls.append((seed, size)))
  tasks.create_task('mine', seed=4, size=2)
  assert calls == [(4, 2)]
  with pytest.raises(ValueError, match='does not take alpha; it takes seed, size'):
    tasks.create_task('mine', alpha=1.0)
  with pytest.raises(ValueError, match="'mine'; taken: cifar10"):
    tasks.register_task('mine', None)


def test_the_guides_code_runs(restored_registry, tmp_path):
  guide = pathlib.Path(__file__).parents[2] / 'docs' / 'add_a_task.md'
  code = '\n'.join(re.findall(r'```python\n(.*?)```', guide.read_text(), re.DOTALL))
  (tmp_path / 'guide.py').write_text(code)
  names = runpy.run_path(str(tmp_path / 'guide.py'))
  assert len(list(names['ordinary'])) == 5
  task = tasks.create_task('circles', num_clients=7)
  assert len(task.partition.client_ids) == 7
  batch = next(
    iter(task.client_batches(task.partition.client_ids[0], 0, batch_size=4, local_steps=1, seed=0))
  )
  assert batch['x'].shape == (4, 2)
