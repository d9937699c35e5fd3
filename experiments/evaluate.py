# SPDX-License-Identifier: Apache-2.0
r"""Evaluates the model of a run: on the whole test set, by client, by class, and after local steps.

  python -m experiments.evaluate --run=runs/first

Prints a table, and writes the numbers (clients.csv, confusion.csv, summary.csv) and a picture
(evaluation.png). By client, the accuracy is that on the training examples that the client holds:
their mean, their standard deviation and the mean of the worst tenth, once with each client counting
the same and once weighted by its examples. Personalisation lets each client take local steps of the
run's optimizer, at the rates of the round to come, on four fifths of its examples, and compares the
accuracy on the fifth that is held out, before and after.
"""

import pathlib

from absl import flags

from experiments import command_line
from experiments.definition import help_text
from experiments.definition.settings import UsageError
from experiments.running import directory, tensorflow_import

_RUN = flags.DEFINE_string('run', None, 'The directory of the run, the --output_dir of `train`.')
_ROUND = flags.DEFINE_integer(
  'round', None, 'After which round; the last that is saved unless given.', lower_bound=0
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'Where the data is here, if it is not where the run had it.'
)
_STEPS = flags.DEFINE_integer(
  'personalization_steps', 10, 'Local steps of each client; 0 leaves them out.', lower_bound=0
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Decides what each client holds out, and its batches.', lower_bound=0
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Where to; evaluation_round<N> in the directory of the run unless given.'
)
_GROUPS = {
  'Which model': ('run', 'round', 'data_dir'),
  'Personalisation': ('personalization_steps', 'seed'),
  'Of this command': ('output_dir', 'debug'),
}


def main():
  if not _RUN.value:
    raise UsageError('--run is missing: the directory of a run, the --output_dir of `train`.')
  directory.read_run_config(_RUN.value)
  directory.check_writable(_OUTPUT_DIR.value or _RUN.value, 'output_dir')
  tensorflow_import.import_tensorflow()  # As `train` does: the arithmetic of a run of today.
  from experiments.reading import evaluations, tables
  from experiments.running import evaluating

  found = evaluating.evaluate(_RUN.value, _ROUND.value, _DATA_DIR.value, _STEPS.value, _SEED.value)
  table = evaluations.summary_table(found)
  print('\n'.join([table.title, *table.notes, '']))
  print(tables.format_table(table, 'terminal'))
  folder = pathlib.Path(_RUN.value) / f'evaluation_round{found.round_num}'
  try:
    written = evaluations.save(found, pathlib.Path(_OUTPUT_DIR.value or folder))
  except OSError as e:
    raise UsageError(f'--output_dir={_OUTPUT_DIR.value or folder}: {e.strerror}.') from e
  print('written: ' + ', '.join(map(str, written)))


if __name__ == '__main__':
  command_line.run('evaluate', main, help_text=lambda: help_text.grouped(__doc__, _GROUPS))
