r"""Trains one federated run: a task, an algorithm, a client optimizer.

  python -m experiments.train --task=digits --algorithm=scaffold --client_optimizer=nar \
      --learning_rate=0.1 --weight_decay=0.001 --max_norm=0.3 --total_rounds=50

Everything is written to --output_dir: the configuration, metrics by round (metrics.csv), TensorBoard events, checkpoints, and at the
end result.json and curves.png. The same command resumes a run that was stopped, to the same bits.
"""

import signal
import sys

from absl import app, flags, logging

from experiments import settings as settings_lib
from experiments import training

settings_lib.define_flags()
flags.adopt_module_key_flags(settings_lib)  # So that --help lists them.


def main(argv):
  if len(argv) > 1:
    raise settings_lib.UsageError(f'{argv[1]!r} is not a flag; all arguments are --name=value.')
  values = {s.name: flags.FLAGS[s.name].value for s in settings_lib.SETTINGS}
  given = frozenset(s.name for s in settings_lib.SETTINGS if flags.FLAGS[s.name].present)
  settings_lib.check(values, given)
  training.train(settings_lib.resolve(values))


def parse_flags(argv):
  try:
    return flags.FLAGS(argv)
  except flags.Error as e:
    exit_with_usage_error(' '.join(str(e).split()))


def exit_with_usage_error(message):
  print(f'train: {message}', file=sys.stderr)
  sys.exit(2)


def run_main(argv):
  """Calls `main`; what a user can mend is one line, not a traceback."""
  try:
    main(argv)
  except settings_lib.UsageError as e:
    exit_with_usage_error(e)
  except KeyboardInterrupt:
    print('train: interrupted; the same command resumes.', file=sys.stderr)
    sys.exit(130)


def stop(signum, frame):
  del frame
  sys.exit(128 + signum)  # As on Ctrl-C, the rounds that are done are saved.


if __name__ == '__main__':
  logging.set_verbosity(logging.WARNING)
  signal.signal(signal.SIGTERM, stop)
  app.run(run_main, flags_parser=parse_flags)
