# SPDX-License-Identifier: Apache-2.0
"""The commands of `experiments`, called as a user calls them."""

import os
import pathlib
import subprocess

from tests import warm_command

ROOT = pathlib.Path(__file__).parents[2]
# Flags of a run that takes seconds.
SMALL = [
  '--task=synthetic',
  '--num_clients=6',
  '--clients_per_round=3',
  '--local_steps=2',
  '--batch_size=10',
  '--learning_rate=0.1',
  '--weight_decay=0.01',
  '--max_norm=0.5',
  '--rounds_per_evaluation=5',
  '--rounds_per_checkpoint=4',
]


def call(*arguments, cwd=ROOT, module='experiments.train') -> subprocess.CompletedProcess:
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  return warm_command.run(['-m', module, *arguments], str(cwd), environment)
