# SPDX-License-Identifier: Apache-2.0
"""Flower's simulation with PyTorch: its FedAvg, and a Ray actor on each core that runs clients."""

import functools
import os
import queue
import tempfile
import threading

# Before Flower and Ray are imported: nothing is reported to anybody.
os.environ['FLWR_TELEMETRY_ENABLED'] = '0'
os.environ['RAY_USAGE_STATS_ENABLED'] = '0'

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks import workloads
from benchmarks.contenders import torch_models


@functools.cache
def _resident(workload):
  """What an actor keeps: the model, the arrays of all clients, and each client's rows."""
  torch.set_num_threads(1)
  index = torch.from_numpy(workloads.index(workload)).long()
  return torch_models.network(workload), torch_models.tensors(workload), index


def _client_app(workload):
  app = ClientApp()

  @app.train()
  def train(message, context):
    network, (x, y), index = _resident(workload)
    network.load_state_dict(message.content['arrays'].to_torch_state_dict())
    rows = index[context.node_config['partition-id']]
    if workload.makes_data:
      rows = rows.flatten()[torch.randperm(rows.numel())].reshape(rows.shape)
    torch_models.train(network, ((x[row], y[row]) for row in rows))
    content = RecordDict(
      {
        'arrays': ArrayRecord(network.state_dict()),
        'metrics': MetricRecord({'num-examples': rows.numel()}),
      }
    )
    return Message(content=content, reply_to=message)

  return app


class _Rounds:
  """Flower runs all rounds in one call; this lets it wait before each one until it is asked."""

  def __init__(self, workload):
    self._workload = workload
    self._asked, self._answers = queue.Queue(), queue.Queue()
    server_app = ServerApp()
    server_app.main()(self._serve)
    # Ray leaves its logs behind, so they go where they are removed.
    self._folder = tempfile.TemporaryDirectory(prefix='ray', ignore_cleanup_errors=True)
    self._thread = threading.Thread(
      target=run_simulation,
      kwargs={
        'server_app': server_app,
        'client_app': _client_app(workload),
        'num_supernodes': workload.num_clients,
        'backend_config': {
          'init_args': {
            'num_cpus': workloads.num_threads(),
            'include_dashboard': False,
            'log_to_driver': False,
            '_node_ip_address': '127.0.0.1',
            '_temp_dir': self._folder.name,
          },
          'client_resources': {'num_cpus': 1, 'num_gpus': 0.0},
        },
      },
    )
    self._thread.start()

  def _serve(self, grid, context):
    """The steps of a round of `Strategy.start`, without evaluation."""
    del context  # Unused.
    strategy = FedAvg(fraction_evaluate=0.0)
    arrays = ArrayRecord(torch_models.network(self._workload).state_dict())
    for round_num in iter(self._asked.get, None):
      try:
        messages = strategy.configure_train(round_num, arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages))
        errors = [reply.error.reason for reply in replies if reply.has_error()]
        if errors:
          raise RuntimeError(f'{len(errors)} clients failed: {errors[0]}')
        arrays, _ = strategy.aggregate_train(round_num, replies)
        self._answers.put(None)
      except Exception as error:  # Raised where the round was asked for.
        self._answers.put(error)

  def __call__(self):
    self._asked.put(1)
    error = self._answers.get()
    if error is not None:
      raise error

  def close(self):
    """Ends the simulation, and the actors with it."""
    self._asked.put(None)
    self._thread.join()
    self._folder.cleanup()


def simulation(workload: workloads.Workload):
  """Returns a function that runs a round; it is to be closed.

  On S a client draws a new order of its rows and slices the arrays in its actor.
  """
  return _Rounds(workload)
