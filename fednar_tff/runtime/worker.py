"""Starts a TFF worker on this machine, for `set_remote_context` on another one.

SECURITY: TFF's worker listens on every network interface, has no authentication and no encryption, and runs any TensorFlow
graph that it is sent, so whoever reaches the port can run code as you. Keep the port inside a private network or behind a firewall, or
let only an SSH tunnel reach it: `ssh -N -L 8000:localhost:8000 worker-host`, and then use `localhost:8000`.
"""

import argparse
import signal
import sys

from fednar_tff.runtime import worker_process


def main(arguments: list[str] | None = None) -> int:
  """Runs a worker until it is told to stop (Ctrl-C or SIGTERM)."""
  parser = argparse.ArgumentParser(
    prog='python -m fednar_tff.runtime.worker',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--port', type=int, required=True, help='the port to listen on')
  port = parser.parse_args(arguments).port
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
  worker = worker_process.WorkerProcess(port)
  print(
    f'TFF worker on port {port}, all interfaces, no authentication. Ctrl-C stops it.', flush=True
  )
  try:
    status = worker.wait()
  except KeyboardInterrupt:
    return 0
  finally:
    worker.stop()
  print(f'The worker ended with status {status}; is port {port} in use?', file=sys.stderr)
  return 1


if __name__ == '__main__':
  sys.exit(main())
