# SPDX-License-Identifier: Apache-2.0
"""The model `mlp` and its training with NAR once more, in NumPy. Imports nothing from the
package."""

import numpy as np


def forward(leaves, x):
  """The mlp in NumPy: the hidden layer and the logits."""
  w0, b0, w1, b1 = leaves
  hidden = np.maximum(x.reshape(len(x), -1) @ w0 + b0, 0)
  return hidden, hidden @ w1 + b1


def nar_steps(leaves, x, y, index, rate, decay, bound):
  """NAR on the mlp's mean cross-entropy, in NumPy."""
  leaves = [leaf.astype(np.float64) for leaf in leaves]
  for rows in index:
    own_x, own_y = x[rows[rows >= 0]], y[rows[rows >= 0]]
    hidden, logits = forward(leaves, own_x)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    p[np.arange(len(own_y)), own_y] -= 1
    p /= len(own_y)
    back = (p @ leaves[2].T) * (hidden > 0)
    gradient = [own_x.T @ back, back.sum(0), hidden.T @ p, p.sum(0)]
    joint = [g + decay * w for g, w in zip(gradient, leaves)]
    factor = min(1, bound / np.sqrt(sum(np.sum(j**2) for j in joint)))
    leaves = [w - rate * factor * j for w, j in zip(leaves, joint)]
  return leaves
