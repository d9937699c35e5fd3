# SPDX-License-Identifier: Apache-2.0
"""What the command lines of this package share."""

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
  """A parser that says what is wrong in one line, and ends with status 2."""

  def error(self, message: str) -> NoReturn:
    """Ends the program."""
    reason = message.rstrip('.')
    self.exit(2, f'{self.prog}: {reason}; --help lists what it takes.\n')
