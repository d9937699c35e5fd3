# SPDX-License-Identifier: Apache-2.0
r"""Takes the trained model out of a run, for use without this package.

  python -m experiments.export --run=runs/first --format=saved_model --output=my_model

npz are the weights by name, for NumPy. keras is a file for `tf.keras.models.load_model`, of stock
layers only. saved_model is a folder for `tf.saved_model.load`: a callable that takes images as they
are stored (uint8), or text, and returns logits. The last two need TensorFlow and nothing else.
"""

import os
import pathlib

from absl import flags

from experiments import command_line
from experiments.definition import help_text
from experiments.definition.settings import UsageError
from experiments.running import directory, tensorflow_import

# As `fednar_tff.simulation.EXPORT_FORMATS`, which a test compares; help is shown without
# TensorFlow.
SUFFIXES = {'npz': '.npz', 'keras': '.keras', 'saved_model': ''}

_RUN = flags.DEFINE_string('run', None, 'The directory of the run, the --output_dir of `train`.')
_FORMAT = flags.DEFINE_enum('format', 'saved_model', list(SUFFIXES), 'What is written.')
_ROUND = flags.DEFINE_integer(
  'round', None, 'After which round; the last that is saved unless given.', lower_bound=0
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'Where to; model_round<N> in the directory of the run unless given.'
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'Where the data is here, if it is not where the run had it.'
)
_GROUPS = {
  'Which model': ('run', 'round', 'data_dir'),
  'As what, and where to': ('format', 'output'),
  'Of this command': ('debug',),
}


def main():
  if not _RUN.value:
    raise UsageError('--run is missing: the directory of a run, the --output_dir of `train`.')
  output = None if _OUTPUT.value is None else pathlib.Path(_OUTPUT.value)
  suffix = SUFFIXES[_FORMAT.value]
  if output is not None and suffix and output.suffix != suffix:
    raise UsageError(f'--output={output} must end in {suffix} for --format={_FORMAT.value}.')
  if output is not None and os.path.lexists(output):
    raise UsageError(f'--output={output} exists already; choose another place.')
  directory.read_run_config(_RUN.value)
  directory.check_writable(output or _RUN.value, 'output')
  tensorflow_import.import_tensorflow()
  from experiments.running import loading
  from fednar_tff import simulation

  model, _ = loading.load_model(_RUN.value, _ROUND.value, _DATA_DIR.value)
  if output is None:
    output = pathlib.Path(_RUN.value) / f'model_round{model.round_num}{suffix}'
  try:
    simulation.export_model(model, output, _FORMAT.value)
  except (simulation.RunDirectoryError, ValueError) as e:
    raise UsageError(str(e)) from e
  for name, value in model.weights.items():
    print(f'{name:40} {value.dtype} {list(value.shape)}')
  spec = model.input_spec
  print(f'takes {spec}' if _FORMAT.value == 'saved_model' else f'{len(model.weights)} arrays')
  print(f'round {model.round_num} of {_RUN.value}: written to {output}')


if __name__ == '__main__':
  command_line.run('export', main, help_text=lambda: help_text.grouped(__doc__, _GROUPS))
