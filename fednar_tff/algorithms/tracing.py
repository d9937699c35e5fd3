# SPDX-License-Identifier: Apache-2.0
"""Functions of TensorFlow that AutoGraph converts only if they need it."""

import functools
from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

Function = TypeVar('Function', bound=Callable)


def function(python_function: Function) -> Function:
  """Decorates a function as `tf.function` does; converts it by AutoGraph if it fails without.

  AutoGraph rewrites each function that is called, which for a federated algorithm takes several
  times as long as everything else. This package does not need it. But a model, an optimizer or a
  schedule may have been written with Python's `if` or `for` over tensors, which is a `TypeError`
  without AutoGraph.
  """
  plain = tf.function(python_function, autograph=False)
  converted = tf.function(python_function)

  @functools.wraps(python_function)
  def call(*args, **kwargs):
    try:
      return plain(*args, **kwargs)
    except TypeError:
      pass  # What is wrong even with AutoGraph is raised below.
    return converted(*args, **kwargs)

  return call  # type: ignore[return-value]
