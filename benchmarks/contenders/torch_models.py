# SPDX-License-Identifier: Apache-2.0
"""The same models in PyTorch, for PyTorch itself, pfl-research and Flower."""

import math

import torch
from torch import nn
from torch.nn import functional

from benchmarks import workloads

_WIDTH, _HIDDEN, _LAYERS, _HEADS, _DROPOUT = 128, 512, 6, 4, 0.1


class _Layer(nn.Module):
  """A post-norm layer of a transformer's encoder, for the last `queries` positions."""

  def __init__(self):
    super().__init__()
    self.project = nn.Linear(_WIDTH, 3 * _WIDTH)
    self.mix = nn.Linear(_WIDTH, _WIDTH)
    self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(2))
    self.hidden = nn.Linear(_WIDTH, _HIDDEN)
    self.out = nn.Linear(_HIDDEN, _WIDTH)
    self.drop = nn.Dropout(_DROPOUT)

  def _projected(self, x, queries):
    """Returns queries, keys and values; the queries of the last positions only."""
    if queries == x.shape[1]:
      return self.project(x).chunk(3, dim=-1)
    weights, biases = self.project.weight, self.project.bias
    query = functional.linear(x[:, -queries:], weights[:_WIDTH], biases[:_WIDTH])
    return query, *functional.linear(x, weights[_WIDTH:], biases[_WIDTH:]).chunk(2, dim=-1)

  def forward(self, x, queries):
    def by_head(values):
      return values.unflatten(-1, (_HEADS, -1)).transpose(1, 2)

    query, key, value = map(by_head, self._projected(x, queries))
    mixed = functional.scaled_dot_product_attention(
      query, key, value, dropout_p=_DROPOUT if self.training else 0.0
    )
    mixed = self.mix(mixed.transpose(1, 2).flatten(2))
    x = self.norms[0](x[:, -queries:] + self.drop(mixed))
    hidden = self.drop(torch.relu(self.hidden(x)))
    return self.norms[1](x + self.drop(self.out(hidden)))


class _Transformer(nn.Module):
  """The paper's transformer; the last layer computes the last position only, as ours does."""

  def __init__(self):
    super().__init__()
    self.characters = nn.Embedding(workloads.NUM_CHARACTERS, _WIDTH)
    self.positions = nn.Parameter(torch.randn(workloads.NUM_POSITIONS, _WIDTH))
    self.layers = nn.ModuleList(_Layer() for _ in range(_LAYERS))
    self.logits = nn.Linear(_WIDTH, workloads.NUM_CHARACTERS)

  def forward(self, x):
    x = self.characters(x) * math.sqrt(_WIDTH) + self.positions
    for i, layer in enumerate(self.layers):
      x = layer(x, x.shape[1] if i < _LAYERS - 1 else 1)
    return self.logits(x[:, -1])


def _layers(workload):
  classes = workloads.NUM_CLASSES
  if workload.model == 'transformer':
    return [_Transformer()]
  if workload.model == 'logistic':
    return [nn.Linear(workloads.NUM_PIXELS, classes)]
  kernel = 3 if workload.model == 'pfl_cnn' else 5
  inner = [] if kernel == 3 else [nn.MaxPool2d(2)]
  flat = 64 * 14 * 14 if kernel == 3 else 64 * 5 * 5
  return [
    *(nn.Conv2d(3, 32, kernel), nn.ReLU(), *inner),
    *(nn.Conv2d(32, 64, kernel), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
    *(nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, classes)),
  ]


class Network(nn.Sequential):
  """A network with what pfl-research wants of one: `loss` and `metrics`."""

  def loss(self, x, y):
    return functional.cross_entropy(self(x), y)

  def metrics(self, x, y):
    from pfl.metrics import Weighted

    return {'loss': Weighted(self.loss(x, y).item() * len(y), len(y))}


def network(workload: workloads.Workload) -> Network:
  """Returns the workload's model, with the same weights at each call."""
  torch.manual_seed(0)
  return Network(*_layers(workload))


def tensors(workload: workloads.Workload) -> tuple[torch.Tensor, torch.Tensor]:
  """Returns the inputs and the labels of all examples; of images, the channels come first."""
  arrays = workloads.arrays(workload)
  x = torch.from_numpy(arrays['x'])
  if x.ndim == 4:
    x = x.permute(0, 3, 1, 2).contiguous()
  return (x.long() if workload.model == 'transformer' else x), torch.from_numpy(arrays['y']).long()


def train(local: Network, batches) -> None:
  """Takes one clipped step of SGD on each batch."""
  optimizer = torch.optim.SGD(local.parameters(), workloads.LEARNING_RATE)
  for x, y in batches:
    optimizer.zero_grad()
    local.loss(x, y).backward()
    nn.utils.clip_grad_norm_(local.parameters(), workloads.MAX_NORM)
    optimizer.step()
