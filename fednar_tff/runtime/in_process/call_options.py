# SPDX-License-Identifier: Apache-2.0
"""Keeps TensorFlow's memory optimizer away from the functions that the runtime calls.

TensorFlow has no public name for this. For large tensors, that optimizer turns a sum into a
*temporary variable*: a buffer to which the terms are added as they come. Its buffer is found by the
names of step, node, loop and iteration. All eager calls of a process have the same step name, so
two clients that train at the same time met in one buffer: an error at best, a wrong sum at worst.
The order of the additions, and so the last bits of the sum, was left to chance even for one client.
"""

import contextlib
import functools

import tensorflow as tf
from tensorflow.python.eager import context


def without_memory_optimizer(config_proto: bytes) -> tf.compat.v1.ConfigProto:
  """Parses a `ConfigProto` and turns that optimizer off in it."""
  config = tf.compat.v1.ConfigProto.FromString(config_proto)
  options = config.graph_options.rewrite_options
  options.memory_optimization = options.NO_MEM_OPT
  return config


@functools.cache
def _changed(config_proto: bytes, executor_type: str | None) -> context.FunctionCallOptions:
  return context.FunctionCallOptions(executor_type, without_memory_optimizer(config_proto))


@contextlib.contextmanager
def memory_optimizer_off():
  """Within the block, functions that this thread calls run without that optimizer."""
  current = context.context()
  options = current.function_call_options
  current.function_call_options = _changed(options.config_proto_serialized, options.executor_type)
  try:
    yield
  finally:
    current.function_call_options = options
