# SPDX-License-Identifier: Apache-2.0
"""FedJAX: its FedAvg, whose clients run one after the other in functions compiled by XLA."""

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import optax

from benchmarks import workloads


def _forward(workload):
  def conv(filters, kernel):
    return hk.Conv2D(filters, kernel, padding='VALID')

  def forward(x):
    if workload.model != 'logistic':
      kernel = 3 if workload.model == 'pfl_cnn' else 5
      x = jax.nn.relu(conv(32, kernel)(x))
      if kernel == 5:
        x = hk.MaxPool(2, 2, 'VALID')(x)
      x = hk.MaxPool(2, 2, 'VALID')(jax.nn.relu(conv(64, kernel)(x)))
      x = jax.nn.relu(hk.Linear(128)(hk.Flatten()(x)))
    return hk.Linear(workloads.NUM_CLASSES)(x)

  return hk.without_apply_rng(hk.transform(forward))


def for_each_client(workload: workloads.Workload):
  """Returns a function that runs a round.

  A client's batches are made by FedJAX inside of the round on all workloads: `ClientDataset`
  shuffles and batches NumPy arrays on S, and only batches them on the others. On S the datasets
  are also fetched from `InMemoryFederatedData` then.
  """
  arrays = workloads.arrays(workload)
  network = _forward(workload)

  def loss(params, batch, rng):
    del rng  # Unused.
    logits = network.apply(params, batch['x'])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch['y'])
    return jnp.mean(losses)

  clip = optax.clip_by_global_norm(workloads.MAX_NORM)
  client_optimizer = optax.chain(clip, optax.sgd(workloads.LEARNING_RATE))
  size = workload.num_steps * workload.batch_size
  fed_avg = fedjax.algorithms.fed_avg.federated_averaging(
    jax.grad(loss),
    fedjax.optimizers.create_optimizer_from_optax(client_optimizer),
    fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(
      batch_size=workload.batch_size,
      num_epochs=1,
      seed=0,
      skip_shuffle=not workload.makes_data,
    ),
  )
  data = fedjax.InMemoryFederatedData(
    {
      f'{client:06d}'.encode(): {
        name: array[client * size : (client + 1) * size] for name, array in arrays.items()
      }
      for client in range(workload.num_clients)
    }
  )
  ids = list(data.client_ids())
  ready = None if workload.makes_data else list(data.get_clients(ids))
  state = fed_avg.init(network.init(jax.random.PRNGKey(0), arrays['x'][:1]))
  key = jax.random.PRNGKey(1)  # The same for all: no model here draws random numbers.

  def run_round():
    nonlocal state
    clients = [(client, dataset, key) for client, dataset in ready or data.get_clients(ids)]
    state, _ = fed_avg.apply(state, clients)
    jax.block_until_ready(state)

  return run_round
