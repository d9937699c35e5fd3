# SPDX-License-Identifier: Apache-2.0
"""Where and how computations run.

The public names are those of this module. The modules behind it are for the package itself.
"""

import tensorflow_federated as tff

from fednar_tff.runtime.cluster.context import create_cluster_context as create_cluster_context
from fednar_tff.runtime.cluster.context import set_cluster_context as set_cluster_context
from fednar_tff.runtime.in_process.async_context import (
  create_async_in_process_context as create_async_in_process_context,
)
from fednar_tff.runtime.in_process.client_pool import ClientError as ClientError
from fednar_tff.runtime.in_process.context import (
  create_in_process_context as create_in_process_context,
)
from fednar_tff.runtime.in_process.context import set_in_process_context as set_in_process_context
from fednar_tff.runtime.workers.native import create_native_context as create_native_context
from fednar_tff.runtime.workers.native import set_native_context as set_native_context
from fednar_tff.runtime.workers.remote import WorkerLostError as WorkerLostError
from fednar_tff.runtime.workers.remote import create_remote_context as create_remote_context
from fednar_tff.runtime.workers.remote import set_remote_context as set_remote_context


def describe() -> dict[str, object]:
  """Says which runtime computations run on, and on which devices its clients have trained.

  `shares_data` says whether computations may refer to arrays of this process; if not, each client
  is sent its own examples.
  """
  context = tff.framework.get_context_stack().current
  if hasattr(context, 'describe'):
    return context.describe()
  return {'runtime': type(context).__name__}
