# SPDX-License-Identifier: Apache-2.0
"""Run directories that are written by hand, so that every number is known."""

import csv
import json

from experiments.definition import identity

METRICS = (
  'round_num',
  'test_accuracy',
  'test_loss',
  'train_loss',
  'clipped_steps',
  'total_steps',
  'mean_clipped_norm',
)
# A reduced run on CIFAR-10.
SETTINGS = {
  'task': 'cifar10',
  'model': 'cnn',
  'algorithm': 'fed_avg',
  'client_optimizer': 'nar',
  'weight_decay': 0.01,
  'alpha': 0.3,
  'seed': 0,
  'local_steps': 20,
  'clients_per_round': 10,
  'max_norm': 1.0,
}


def write_run(folder, accuracies, *, diverged=False, **settings):
  """Writes a run into a new directory of a folder, and returns the directory.

  Args:
    folder: The folder.
    accuracies: The test accuracy of each round; None for one without evaluation.
    diverged: Whether it is marked as diverged.
    **settings: What differs from `SETTINGS`; None leaves a setting out.
  """
  settings = {**SETTINGS, 'total_rounds': len(accuracies), **settings}
  left_out = {name for name, value in settings.items() if value is None}
  # As `train` writes them: what a file does not say is what was done before there was a setting for
  # it.
  settings = {n: v for n, v in identity.resolve(settings).items() if n not in left_out}
  path = folder / f'run{len(list(folder.glob("run*"))):03d}'
  path.mkdir(parents=True)
  (path / 'config.json').write_text(json.dumps({'settings': settings}))
  with open(path / 'metrics.csv', 'w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(METRICS)
    for i, accuracy in enumerate(accuracies, 1):
      # A round without a client has no training loss.
      train_loss = '' if diverged else 1.0
      writer.writerow(
        [i, '' if accuracy is None else accuracy, 1.5, train_loss, 3 * i, 200, 10 + i]
      )
  if diverged:
    (path / 'result.json').write_text(json.dumps({'diverged': True}))
  return path
