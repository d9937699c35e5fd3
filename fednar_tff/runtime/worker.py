# SPDX-License-Identifier: Apache-2.0
"""Starts a TFF worker on this machine, for `set_remote_context` on another one.

SECURITY: TFF's worker listens on every network interface, has no authentication and no encryption,
and runs any TensorFlow graph that it is sent, so whoever reaches the port can run code as you. Keep
the port inside a private network or behind a firewall, or let only an SSH tunnel reach it:
`ssh -N -L 8000:localhost:8000 worker-host`, and then use `localhost:8000`.
"""

import argparse
import signal
import sys

from fednar_tff import argument_parser
from fednar_tff.runtime.workers import launcher

_SECONDS_TO_START = 60.0


def main(arguments: list[str] | None = None) -> int:
  """Runs a worker until it is told to stop (Ctrl-C or SIGTERM)."""
  parser = argument_parser.Parser(
    prog='python -m fednar_tff.runtime.worker',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--port', type=int, required=True, help='the port to listen on')
  port = parser.parse_args(arguments).port
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
  try:
    worker = launcher.WorkerProcess(port)
  except ValueError as e:
    parser.error(str(e))
  except OSError as e:
    print(f'{parser.prog}: {e.strerror}.', file=sys.stderr)
    return 1
  try:
    if worker.wait_until_ready(_SECONDS_TO_START):
      print(
        f'TFF worker on port {port}, all interfaces, no authentication. Ctrl-C stops it.',
        flush=True,
      )
      status = worker.wait()
      print(f'{parser.prog}: the worker ended with status {status}.', file=sys.stderr)
    else:
      print(f'{parser.prog}: the worker does not answer on port {port}.', file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    return 0
  finally:
    worker.stop()


if __name__ == '__main__':
  sys.exit(main())
