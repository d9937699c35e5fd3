# SPDX-License-Identifier: Apache-2.0
"""The algorithms of docs/algorithms.md once more, in float64 NumPy. Imports nothing from the
package.

The model is `tanh(x w + b)` with squared loss; weights are lists `[w, b]`, and a client is a list
of batches `(x, y)`. With the option `released=True`, a server follows the conventions of the
paper's released code where they differ from the paper, marked by their numbers in docs/paper.md.
"""

import numpy as np


def norm(leaves):
  return float(np.sqrt(sum(np.sum(np.square(v)) for v in leaves)))


def gradient(weights, batch):
  w, b = weights
  x, y = (np.asarray(v, np.float64) for v in batch)
  prediction = np.tanh(x @ w + b)
  d_logit = 2 * (prediction - y) * (1 - prediction**2) / y.size
  return [x.T @ d_logit, d_logit.sum(axis=0)]


def squared_errors(weights, batch):
  w, b = weights
  return np.ravel((np.tanh(batch[0] @ w + b) - batch[1]) ** 2)


class Client:
  """Local training, and what it counts."""

  def __init__(self, batches, data_size=None):
    self.batches = batches
    self.data_size = data_size
    self.norm_epsilon = 0.0
    self.clipped_norms, self.squared_errors = [], []

  @property
  def num_processed(self):
    return sum(len(y) for _, y in self.batches)

  def step(self, rule, x, g, lr, wd, bound):
    if rule == 'nar':
      d = [a + wd * b for a, b in zip(g, x)]
      size = norm(d)
      s = min(1.0, bound / (size + self.norm_epsilon))
      new = [b - lr * s * a for a, b in zip(d, x)]
    elif rule == 'clip':
      size = norm(g)
      s = min(1.0, bound / (size + self.norm_epsilon))
      new = [(1 - lr * wd) * b - lr * s * a for a, b in zip(g, x)]
    else:
      raise ValueError(rule)
    if size > bound:
      self.clipped_norms.append(size)
    return new

  def train(self, rule, server, lr, wd, bound, correction):
    """Returns the update, initial minus final."""
    self.clipped_norms, self.squared_errors = [], []
    y = [np.array(v) for v in server]
    for batch in self.batches:
      self.squared_errors.extend(squared_errors(y, batch))
      g = gradient(y, batch)
      g = [a + c for a, c in zip(g, correction(y))]
      y = self.step(rule, y, g, lr, wd, bound)
    return [a - b for a, b in zip(server, y)]


def weighted_mean(values, weights):
  return sum(w * v for v, w in zip(values, weights)) / sum(weights)


class Server:
  """One algorithm: `round(...)` trains, `weights` is the model, `evaluated` the one to evaluate."""

  def __init__(self, algorithm, weights, clients, data_sizes=None, released=False, **options):
    self.algorithm, self.options, self.released = algorithm, options, released
    self.weights = [np.array(v, np.float64) for v in weights]
    self.evaluated = self.weights
    self.clients = [
      Client(batches, size) for batches, size in zip(clients, data_sizes or [None] * len(clients))
    ]
    if released:  # D10.
      for client in self.clients:
        client.norm_epsilon = 1e-6
    self.t = 0
    zeros = [np.zeros_like(v) for v in self.weights]
    self.c, self.c_i = zeros, [zeros for _ in clients]
    self.m, self.v = zeros, zeros
    self.step_size = None
    self.metrics = {}

  def correction(self, i):
    if self.algorithm == 'fed_prox':
      server = self.weights
      return lambda y: [self.options['prox'] * (a - b) for a, b in zip(y, server)]
    if self.algorithm == 'scaffold':
      return lambda y: [a - b for a, b in zip(self.c, self.c_i[i])]
    return lambda y: [np.zeros_like(a) for a in y]

  def weight(self, i, by_examples):
    if self.released:  # D2, F7.
      return self.clients[i].data_size
    return self.clients[i].num_processed if by_examples else 1.0

  def epsilon(self):
    """The server's epsilon in round `t`, from 1: with F6 and F8 it decays, before round 1
    already."""
    if not self.released:
      return self.options['eps']
    return self.options['eps'] * self.options['decay'] ** (2 * self.t)

  def round(self, participants, rule, lr, wd, bound, by_examples=False):
    updates = [
      self.clients[i].train(rule, self.weights, lr, wd, bound, self.correction(i))
      for i in participants
    ]
    p = [self.weight(i, by_examples) for i in participants]
    if self.algorithm == 'scaffold':
      self.update_control(participants, updates, lr)
    mean = [weighted_mean(leaf, p) for leaf in zip(*updates)]
    self.t += 1
    previous = self.weights
    step = self.server_step(mean, updates, p)
    self.weights = [a - b for a, b in zip(previous, step)]
    self.evaluated = self.weights
    if self.options.get('average_last_two') and self.t > 1:
      self.evaluated = [(a + b) / 2 for a, b in zip(previous, self.weights)]
    clipped = [n for i in participants for n in self.clients[i].clipped_norms]
    self.metrics = {
      'clipped_steps': len(clipped),
      'total_steps': sum(len(self.clients[i].batches) for i in participants),
      'mean_clipped_norm': float(np.mean(clipped)) if clipped else 0.0,
      'mse': np.mean([e for i in participants for e in self.clients[i].squared_errors]),
      'server_step_size': self.step_size,
      'model_norm': norm(self.weights),
      'learning_rate': lr,
      'weight_decay': wd,
    }

  def update_control(self, participants, updates, lr):
    new = list(self.c_i)
    for i, update in zip(participants, updates):
      distance = len(self.clients[i].batches) * lr
      new[i] = [a - b + u / distance for a, b, u in zip(self.c_i[i], self.c, update)]
    self.c_i = new
    # By definition the mean over all clients, those too that did not take part.
    p = [self.weight(i, False) for i in range(len(new))]  # D9, F7.
    self.c = [weighted_mean(leaf, p) for leaf in zip(*new)]

  def server_step(self, mean, updates, p):
    o, self.step_size = self.options, 1.0
    if self.algorithm == 'fed_avgm':
      self.m = [o['momentum'] * m + d for m, d in zip(self.m, mean)]
      return self.m
    if self.algorithm == 'fed_adam':
      self.step_size = o['eta']
      self.m = [o['beta_1'] * m + (1 - o['beta_1']) * d for m, d in zip(self.m, mean)]
      if not self.released:
        self.v = [o['beta_2'] * v + (1 - o['beta_2']) * d**2 for v, d in zip(self.v, mean)]
        unbias = np.sqrt(1 - o['beta_2'] ** self.t) / (1 - o['beta_1'] ** self.t)
        return [
          o['eta'] * unbias * m / (np.sqrt(v) + self.epsilon()) for m, v in zip(self.m, self.v)
        ]
      # D5, D6.
      self.v = [o['beta_2'] * v + (1 - o['beta_2']) * m**2 for v, m in zip(self.v, self.m)]
      return [
        o['eta'] * (m / (1 - o['beta_1'])) / np.sqrt(v / (1 - o['beta_2']) + self.epsilon())
        for m, v in zip(self.m, self.v)
      ]
    if self.algorithm == 'fed_exp':
      mean_square = weighted_mean([norm(u) ** 2 for u in updates], p)
      added = self.epsilon() * (len(updates) if self.released else 1)  # F8.
      self.step_size = max(1.0, mean_square / (2 * (norm(mean) ** 2 + added)))
      return [self.step_size * d for d in mean]
    return mean
