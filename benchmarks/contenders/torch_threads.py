# SPDX-License-Identifier: Apache-2.0
"""PyTorch without a federated framework: slices of resident tensors, a thread on each core."""

import concurrent.futures
import contextlib
import copy

import numpy as np
import torch

from benchmarks import workloads
from benchmarks.contenders import torch_models


def threads(workload: workloads.Workload, precision: str = 'float32'):
  """Returns a function that runs a round; on S it draws a new order of each client's rows first."""
  torch.set_num_threads(1)
  model = torch_models.network(workload)
  x, y = torch_models.tensors(workload)
  index, rng = workloads.index(workload), np.random.default_rng(0)

  def in_precision():
    if precision == 'float32':
      return contextlib.nullcontext()
    return torch.autocast('cpu', getattr(torch, precision))

  def run_client(rows):
    local = copy.deepcopy(model)
    with in_precision():
      torch_models.train(local, ((x[row], y[row]) for row in torch.from_numpy(rows).long()))
    return [(a - b).detach() for a, b in zip(model.parameters(), local.parameters(), strict=True)]

  pool = concurrent.futures.ThreadPoolExecutor(workloads.num_threads())

  def run_round():
    rows = [workloads.shuffled(r, rng) for r in index] if workload.makes_data else index
    updates = list(pool.map(run_client, rows))
    with torch.no_grad():
      for parameter, *update in zip(model.parameters(), *updates, strict=True):
        parameter -= torch.stack(update).mean(0)

  return run_round
