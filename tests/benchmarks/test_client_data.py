# SPDX-License-Identifier: Apache-2.0
from benchmarks import client_data


def test_each_way_is_measured_in_each_turn():
  milliseconds = client_data.measure(num_turns=2, num_clients=3)
  assert {'Task.packed_client', 'Task.client_batches'} <= set(milliseconds)
  assert all(len(values) == 2 and min(values) > 0 for values in milliseconds.values())
