"""Where and how computations run."""

import tensorflow_federated as tff

from fednar_tff.runtime.async_in_process import (
  create_async_in_process_context as create_async_in_process_context,
)
from fednar_tff.runtime.client_pool import ClientError as ClientError
from fednar_tff.runtime.in_process import create_in_process_context as create_in_process_context
from fednar_tff.runtime.in_process import set_in_process_context as set_in_process_context
from fednar_tff.runtime.native import create_native_context as create_native_context
from fednar_tff.runtime.native import set_native_context as set_native_context
from fednar_tff.runtime.remote import WorkerLostError as WorkerLostError
from fednar_tff.runtime.remote import create_remote_context as create_remote_context
from fednar_tff.runtime.remote import set_remote_context as set_remote_context


def describe() -> dict[str, object]:
  """Says which runtime computations run on, and on which devices its clients have trained."""
  context = tff.framework.get_context_stack().current
  if hasattr(context, 'describe'):
    return context.describe()
  return {'runtime': type(context).__name__}
