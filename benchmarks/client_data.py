# SPDX-License-Identifier: Apache-2.0
"""What it takes to make a client's data, in milliseconds: `python -m benchmarks.client_data`.

The clients are those of workload S: 20 examples, batches of 10, two steps. Three ways take turns:
packed clients, the ordinary datasets of `Task.client_batches`, and TFF's `ClientData` with a
`preprocess` that shuffles and batches. Made, not read: reading is a part of training.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')  # As `experiments.train` does.

import argparse
import itertools

from benchmarks import ratios, results, timing, workloads
from benchmarks.contenders import tff_models
from fednar_tff import runtime

TURNS = 5
CLIENTS = 100


def measure(num_turns: int, num_clients: int) -> dict[str, list[float]]:
  """Returns the milliseconds a client of each way, in each turn; the first turn does not count."""
  workload = workloads.get('S')
  task = tff_models.task(workload)
  size = workload.num_steps * workload.batch_size
  stock = task.datasets.train_data.preprocess(
    lambda dataset: dataset.shuffle(size).batch(workload.batch_size)
  )
  options = {'batch_size': workload.batch_size, 'local_steps': workload.num_steps, 'seed': 0}
  ways = {
    'Task.packed_client': lambda client, t: task.packed_client(client, t, **options),
    'Task.client_batches': lambda client, t: task.client_batches(client, t, **options),
    "TFF's ClientData, shuffle, batch": lambda client, t: stock.create_tf_dataset_for_client(
      client
    ),
  }
  clients = task.partition.client_ids[:num_clients]

  def for_all_clients(make):
    rounds = itertools.count()

    def make_all():
      round_num = next(rounds)
      for client in clients:
        make(client, round_num)

    return make_all

  parts = {way: for_all_clients(make) for way, make in ways.items()}
  return {
    way: [1e3 * s / len(clients) for s in seconds]
    for way, seconds in timing.take_turns(parts, num_turns).items()
  }


def main():
  runtime.set_in_process_context()  # In place of TFF's, which complains if it is never used.
  milliseconds = measure(TURNS, CLIENTS)
  results.save('client_data', {'kind': 'client_data', 'milliseconds': milliseconds})
  print(f"\nMaking a client's data, milliseconds a client: median (least to most) of {TURNS} turns")
  for way, values in milliseconds.items():
    print(f'  {ratios.spread(values).format(3):28}{way}')


if __name__ == '__main__':
  argparse.ArgumentParser(description=__doc__).parse_args()
  main()
