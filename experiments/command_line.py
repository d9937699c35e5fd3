# SPDX-License-Identifier: Apache-2.0
"""What all binaries share: help without side effects, and one line for what a user can mend."""

import logging as standard_logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from absl import app, flags, logging

from experiments.definition.settings import UsageError

_DEBUG = flags.DEFINE_boolean('debug', False, 'Show the traceback of an error.')
_HELP = ('-h', '-help', '--help', '-helpshort', '--helpshort')
_FULL_HELP = ('-helpfull', '--helpfull')


def run(
  name: str,
  main: Callable[..., Any],
  help_text: Callable[[], str] | None = None,
  interrupted: str = 'interrupted.',
  takes_words: bool = False,
) -> None:
  """Parses the flags, calls `main` and ends the process.

  A `UsageError` is one line on standard error and its own exit status (a wrong flag 2, a run that
  failed 1, one that diverged 3), Ctrl-C one line and 130; all other errors keep their traceback.
  With --debug, a `UsageError` has one, too.

  Args:
    name: The binary's name, which begins its lines.
    main: What it does.
    help_text: What --help prints; the docstring and the flags of the binary unless given.
    interrupted: What a user is told at Ctrl-C.
    takes_words: Whether `main` takes a list of the arguments that are no flags; otherwise there may
      be none.
  """

  def fail(message, status):
    print(f'{name}: {message}', file=sys.stderr)
    sys.exit(status)

  def parse(argv):
    try:
      return flags.FLAGS(argv)
    except flags.Error as e:
      fail(' '.join(str(e).split()), 2)

  def call(argv):
    try:
      if len(argv) > 1 and not takes_words:
        raise UsageError(f'{argv[1]!r} is not a flag; all arguments are --name=value.')
      status = main(argv[1:]) if takes_words else main()
      sys.stdout.flush()
      sys.exit(status)
    except UsageError as e:
      if _DEBUG.value:
        traceback.print_exc()
      fail(e, e.status)
    except KeyboardInterrupt:
      fail(interrupted, 130)
    except BrokenPipeError:
      _end_unread()

  app.define_help_flags()
  if any(argument in (*_HELP, *_FULL_HELP) for argument in sys.argv[1:]):
    is_full = any(argument in _FULL_HELP for argument in sys.argv[1:])
    try:
      if help_text is None or is_full:
        app.usage(shorthelp=not is_full, writeto_stdout=True)
      else:
        print(help_text())
      sys.stdout.flush()
    except BrokenPipeError:
      _end_unread()
    sys.exit(0)
  logging.set_verbosity(logging.WARNING)
  signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
  _repeat_lost_signals()
  # Not `app.run`: a TensorFlow that is imported inside of it begins in graph mode, and then Keras
  # has no functional models.
  logging.use_absl_handler()
  formatter = standard_logging.Formatter(f'{name}: %(levelname)s: %(message)s')
  logging.get_absl_handler().setFormatter(formatter)
  call(parse(sys.argv))


def _repeat_lost_signals():
  """Sends Ctrl-C or SIGTERM again if its exception was lost.

  The exception is raised in whatever Python runs at that moment. In the `__del__` of an object, as
  TensorFlow's functions have one, Python reports it and goes on, and the program would never end.
  """
  signals = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
  report = sys.unraisablehook

  def repeat_or_report(lost):
    if lost.exc_type not in signals:
      report(lost)
      return
    # A moment later and from another thread: raised in here, it would be lost again.
    again = threading.Timer(0.1, os.kill, (os.getpid(), signals[lost.exc_type]))
    again.daemon = True
    again.start()

  sys.unraisablehook = repeat_or_report


def _end_unread():
  """Ends the process as a command does whose output nobody reads on, as in `report | head`."""
  os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  sys.exit(128 + signal.SIGPIPE)
