# SPDX-License-Identifier: Apache-2.0
"""Runs every algorithm once on the paper's real models: `make test-full`, hours on a small machine.

A cell is a preset of the paper (a variant, a task, an algorithm, baseline or NAR) at its own batch
size, with 4 clients x 12 steps on 2 threads instead of 20 clients x 20 steps (100 on Shakespeare):
one round, then an evaluation on a part of the test set. Each cell is a process of its own, so that
its peak memory is its own. Cells that are done are not run again; the table is printed at the end,
with the estimate of a whole run.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time

from experiments.definition import identity, presets

_CLIENTS, _STEPS, _THREADS, _TEST_EXAMPLES = 4, 12, 2, 2000
_RESULTS = pathlib.Path('runs/full_size')


def all_cells() -> dict[str, dict]:
  """Returns the settings of each cell by its name, such as `paper_cifar10_fed_avg_nar`."""
  # One of each kind: heterogeneity and weight decay change neither time nor memory.
  found = {}
  for task, variant in itertools.product(presets.TABLES, ('paper', 'reference')):
    for cell in presets.cells(table=task, variant=variant).values():
      name = f'{variant}_{task}_{cell["algorithm"]}_{cell["client_optimizer"]}'
      found.setdefault(name, cell)
  return found


def run_cell(values: dict, data_dir: str | None) -> dict:
  """Trains a round of one cell and evaluates, in this process."""
  import numpy as np
  import tensorflow as tf

  import fednar_tff
  from experiments.running import building

  fednar_tff.runtime.set_in_process_context(num_threads=_THREADS)
  settings = identity.resolve({**values, 'data_dir': data_dir})
  seeds = building.derive_seeds(settings)
  task = building.create_task(settings, seeds)
  process = building.create_process(settings, task)
  ids = task.partition.client_ids[:_CLIENTS]

  def run_round(state, ids, steps):
    arguments = {'batch_size': settings['batch_size'], 'local_steps': steps, 'seed': seeds.batches}
    if fednar_tff.algorithms.takes_data_size(process):
      arguments['with_size'] = True
    data = [task.packed_client(i, 0, **arguments) for i in ids]
    if fednar_tff.algorithms.has_client_states(process):
      states = [process.initial_client_state() for _ in ids]
      state, states, metrics = process.next(state, states, data)
    else:
      (state, metrics), states = process.next(state, data), ()
    return state, states, metrics['client_work']['train']

  state = process.initialize()
  run_round(state, ids[:_THREADS], 1)  # TensorFlow optimises the graph in the first round.
  wall, cpu = time.perf_counter(), time.process_time()
  state, states, metrics = run_round(state, ids, _STEPS)
  wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
  test = task.datasets.get_centralized_test_data()
  test = test.take(_TEST_EXAMPLES // len(next(iter(test))['y']))
  evaluation = fednar_tff.simulation.build_evaluation(task.model_fn, test)(
    process.get_model_weights(state)
  )
  leaves = [np.asarray(x) for x in tf.nest.flatten([state, states])]
  return {
    'seconds': wall,
    'core_seconds': cpu,
    'rounds': settings['total_rounds'],
    'batch_size': settings['batch_size'],
    'train_loss': float(metrics['loss']),
    'test_accuracy': evaluation['accuracy'],
    'all_finite': all(np.isfinite(x).all() for x in leaves if x.dtype.kind == 'f')
    and int(metrics['num_non_finite_clients']) == 0,
    'clients_times_steps_of_a_round': settings['clients_per_round']
    * (settings.get('local_steps') or settings['local_epochs'] * 2000 // settings['batch_size']),
  }


def run_in_process_of_its_own(name: str, data_dir: str | None) -> dict:
  """Runs a cell and adds its peak memory, or the reason why it failed."""
  command = [
    sys.executable,
    '-m',
    'tools.full_size',
    f'--cell={name}',
    f'--data_dir={data_dir or ""}',
  ]
  log = _RESULTS / f'{name}.log'
  with open(log, 'w') as file:
    child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
      _, status, usage = os.wait4(child.pid, 0)
    except BaseException:
      child.kill()
      child.wait()
      raise
  lines = log.read_text().splitlines() or ['']
  if status != 0:
    return {'name': name, 'error': lines[-1]}
  return {'name': name, 'peak_gb': usage.ru_maxrss / 2**20, **json.loads(lines[-1])}


def table(results: list[dict]) -> str:
  """Returns the cells as a Markdown table."""
  header = (
    'cell', 'round: wall s', 'core s', 'peak GB', f'accuracy on {_TEST_EXAMPLES}', 'finite',
    f'whole run on {_THREADS} cores',
  )  # fmt: skip
  rows = []
  for r in results:
    if 'error' in r:
      rows.append((r['name'], 'FAILED', r['error'], '', '', '', ''))
      continue
    core_seconds_of_a_step = r['core_seconds'] / (_CLIENTS * _STEPS)
    steps = r['rounds'] * r['clients_times_steps_of_a_round']
    days = steps * core_seconds_of_a_step / _THREADS / 86400
    rows.append(
      (
        r['name'],
        f'{r["seconds"]:.0f}',
        f'{r["core_seconds"]:.0f}',
        f'{r["peak_gb"]:.2f}',
        f'{r["test_accuracy"]:.3f}',
        'yes' if r['all_finite'] else 'NO',
        f'{r["rounds"]} rounds, {days:.1f} days',
      )
    )
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--only', default='', help='Run only the cells whose name contains this.')
  parser.add_argument(
    '--data_dir', default=None, help="Where the data is, if not in the libraries' own folders."
  )
  parser.add_argument('--cell', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  cells = all_cells()
  if arguments.cell:
    print(json.dumps(run_cell(cells[arguments.cell], arguments.data_dir or None)))
    return 0
  _RESULTS.mkdir(parents=True, exist_ok=True)
  results = []
  for name in cells:
    saved = _RESULTS / f'{name}.json'
    if saved.exists():
      results.append(json.loads(saved.read_text()))
    elif arguments.only in name:
      print(f'{name} ...', flush=True)
      results.append(run_in_process_of_its_own(name, arguments.data_dir))
      if 'error' not in results[-1]:
        saved.write_text(json.dumps(results[-1]) + '\n')
  print(table(results))
  return 1 if any('error' in r or not r['all_finite'] for r in results) else 0


if __name__ == '__main__':
  sys.exit(main())
