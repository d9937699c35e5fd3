# SPDX-License-Identifier: Apache-2.0
r"""Trains one federated run: a task, an algorithm, a client optimizer.

  python -m experiments.train --task=digits --algorithm=scaffold --client_optimizer=nar \
      --learning_rate=0.1 --weight_decay=0.001 --max_norm=0.3 --total_rounds=50
  python -m experiments.train --preset=cpu/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05

Everything is written to --output_dir: the configuration, metrics by round (metrics.csv),
TensorBoard events, checkpoints, and at the end result.json and curves.png. The same command resumes
a run that was stopped, to the same bits; with a larger --total_rounds it continues one that is
finished.
"""

from absl import flags

from experiments import command_line
from experiments.definition import help_text, parsing

parsing.define_flags()
_PRINT_FLAGS = flags.DEFINE_boolean(
  'print_flags', False, 'Only print the settings of the run, as a file for --flagfile.'
)
_QUIET = flags.DEFINE_boolean('quiet', False, 'Print nothing but errors.')


def main():
  settings = parsing.read()
  if _PRINT_FLAGS.value:
    print('\n'.join(parsing.as_arguments(settings)))
    return
  from experiments.running import training

  training.train(settings, quiet=_QUIET.value)


if __name__ == '__main__':
  command_line.run(
    'train',
    main,
    help_text=lambda: help_text.train(__doc__),
    interrupted='interrupted; the same command resumes.',
  )
