# SPDX-License-Identifier: Apache-2.0
"""Fetches data sets, where there is a network: `python -m fednar_tff.fetch cifar10`."""

import sys

from fednar_tff import argument_parser
from fednar_tff.tasks import sources


def main(arguments: list[str] | None = None) -> int:
  """Fetches and checks the named data sets; those that are there are only checked."""
  parser = argument_parser.Parser(prog='python -m fednar_tff.fetch', description=__doc__)
  parser.add_argument(
    'names',
    nargs='+',
    choices=sorted(sources.LOADERS),
    metavar='NAME',
    help=f'one or more of {", ".join(sorted(sources.LOADERS))}',
  )
  parser.add_argument(
    '--data_dir',
    help='the folder, which later goes to `create_task` or to `--data_dir`; '
    "the data set's own default",
  )
  options = parser.parse_args(arguments)
  for name in options.names:
    try:
      data = sources.LOADERS[name](options.data_dir)
    except (sources.DataError, OSError) as e:
      print(f'{parser.prog}: {e}', file=sys.stderr)
      return 1
    sizes = [f'{len(next(iter(columns.values())))} {split}' for split, columns in data.items()]
    print(f'{name}: {" and ".join(sizes)} examples in {sources.check(name, options.data_dir).path}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
