# SPDX-License-Identifier: Apache-2.0
"""pfl-research: its FedAvg on its PyTorch model, one client at a time, PyTorch using the cores."""

import asyncio

import torch
from pfl import algorithm, hyperparam
from pfl.aggregate.simulate import SimulatedBackend
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.model.pytorch import PyTorchModel

from benchmarks import workloads
from benchmarks.contenders import torch_models


def simulation(workload: workloads.Workload):
  """Returns a function that runs a round.

  On S the function that pfl-research calls for the data of a client slices and shuffles it then.
  """
  network = torch_models.network(workload)
  x, y = torch_models.tensors(workload)
  rows_of = torch.from_numpy(workloads.index(workload)).long().flatten(1)

  def make_client(client, shuffle=True):
    rows = rows_of[client]
    if shuffle:
      rows = rows[torch.randperm(len(rows))]
    return PyTorchTensorDataset((x[rows], y[rows]))

  ready = [] if workload.makes_data else [make_client(c, False) for c in range(len(rows_of))]
  sampler = get_user_sampler('minimize_reuse', list(range(workload.num_clients)))
  data = FederatedDataset(make_client if workload.makes_data else ready.__getitem__, sampler)
  model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
  backend = SimulatedBackend(training_data=data, val_data=data)
  fed_avg = algorithm.FederatedAveraging()
  num_rounds = 0
  asyncio.set_event_loop(asyncio.new_event_loop())  # pfl takes the current one for granted.

  def run_round():
    nonlocal num_rounds
    num_rounds += 1
    fed_avg.run(  # Goes on where it stopped.
      algorithm_params=algorithm.NNAlgorithmParams(
        central_num_iterations=num_rounds,
        evaluation_frequency=10**6,  # In the first round alone, which does not count.
        train_cohort_size=workload.num_clients,
        val_cohort_size=0,
      ),
      backend=backend,
      model=model,
      model_train_params=hyperparam.NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=workloads.LEARNING_RATE,
        local_batch_size=workload.batch_size,
        local_max_grad_norm=workloads.MAX_NORM,
      ),
    )

  return run_round
