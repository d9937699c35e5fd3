# SPDX-License-Identifier: Apache-2.0
"""The update rules of docs/paper.md once more, in float64 NumPy on lists of arrays. Imports nothing
from the package."""

import numpy as np


def norm(leaves):
  return float(np.sqrt(sum(np.sum(np.square(np.asarray(v, np.float64))) for v in leaves)))


def shrink(value, bound):
  """The factor that brings a norm down to its bound."""
  return bound / value if value > bound else 1.0


class Steps:
  """Runs a rule `rates(g, x) -> lam, mu, norm that was compared with the bound` and keeps count."""

  def __init__(self, rates, bound):
    self.rates, self.bound = rates, bound
    self.count, self.clipped, self.clipped_norms = 0, 0, 0.0

  def step(self, x, g):
    lam, mu, size = self.rates(g, x)
    self.count += 1
    if size > self.bound:
      self.clipped += 1
      self.clipped_norms += size
    return [(1 - mu) * w - lam * d for w, d in zip(x, g)]


def nar(l, wd, bound):
  def rates(g, x):
    size = norm([d + wd * w for d, w in zip(g, x)])
    s = shrink(size, bound)
    return l * s, l * wd * s, size

  return Steps(rates, bound)


def clipped_sgd(l, wd, bound):
  def rates(g, x):
    size = norm(g)
    del x
    return l * shrink(size, bound), l * wd, size

  return Steps(rates, bound)


def bounded_decay(l, wd, bound, weight_bound):
  def rates(g, x):
    size = norm(g)
    return l * shrink(size, bound), l * wd * shrink(norm(x), weight_bound), size

  return Steps(rates, bound)


class CoClippedMomentum:
  """Heavy-ball SGD on co-clipped gradients."""

  def __init__(self, l, momentum, wd, bound):
    self.l, self.momentum, self.wd, self.bound = l, momentum, wd, bound
    self.velocity = None
    self.count, self.clipped, self.clipped_norms = 0, 0, 0.0

  def step(self, x, g):
    d = [b + self.wd * w for b, w in zip(g, x)]
    size = norm(d)
    self.count += 1
    if size > self.bound:
      self.clipped += 1
      self.clipped_norms += size
    d = [shrink(size, self.bound) * v for v in d]
    self.velocity = (
      d if self.velocity is None else [self.momentum * a + b for a, b in zip(self.velocity, d)]
    )
    return [w - self.l * v for w, v in zip(x, self.velocity)]


class CoClippedAdam:
  """Adam without bias correction of epsilon, on co-clipped gradients."""

  def __init__(self, l, wd, bound, beta_1=0.9, beta_2=0.999, epsilon=1e-7):
    self.l, self.wd, self.bound = l, wd, bound
    self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
    self.m = self.v = None
    self.count, self.clipped, self.clipped_norms = 0, 0, 0.0

  def step(self, x, g):
    d = [b + self.wd * w for b, w in zip(g, x)]
    size = norm(d)
    self.count += 1
    if size > self.bound:
      self.clipped += 1
      self.clipped_norms += size
    d = [shrink(size, self.bound) * v for v in d]
    m = self.m or [np.zeros_like(a) for a in d]
    v = self.v or [np.zeros_like(a) for a in d]
    self.m = [self.beta_1 * a + (1 - self.beta_1) * b for a, b in zip(m, d)]
    self.v = [self.beta_2 * a + (1 - self.beta_2) * b * b for a, b in zip(v, d)]
    rate = self.l * np.sqrt(1 - self.beta_2**self.count) / (1 - self.beta_1**self.count)
    return [w - rate * a / (np.sqrt(b) + self.epsilon) for w, a, b in zip(x, self.m, self.v)]
