# SPDX-License-Identifier: Apache-2.0
"""Wrong flags meet one line that says what was given and what is allowed."""

import pytest

from tests.experiments.command import call


@pytest.mark.parametrize(
  'arguments, message',
  [
    (
      ['--algorithm=fedavg'],
      'value should be one of <fed_avg|fed_prox|scaffold|fed_exp|fed_adam|fed_avgm|fed_dyn|'
      'centralized>',
    ),
    (
      ['--task=mnist'],
      '--task=mnist is unknown: it takes digits, cifar10, cifar100, shakespeare, synthetic, or '
      'a task that --task_module registers.',
    ),
    (
      ['--task=synthetic', '--model=cnn'],
      '--model=cnn does not fit --task=synthetic: it takes mlp.',
    ),
    (
      ['--task=cifar100', '--partition_seed=1'],
      '--partition_seed means nothing with --task=cifar100; it goes with task digits, cifar10, '
      'shakespeare, synthetic.',
    ),
    (
      ['--partition=iid', '--alpha=1'],
      '--alpha means nothing with --partition=iid; it goes with partition dirichlet, '
      'dirichlet_unequal.',
    ),
    (
      ['--task=cifar10', '--model=cnn', '--pooling=top_left'],
      '--pooling means nothing with --model=cnn; it goes with model resnet18.',
    ),
    (
      ['--algorithm=fed_dyn', '--server_learning_rate=1'],
      '--server_learning_rate means nothing with --algorithm=fed_dyn; it goes with algorithm '
      'fed_avg,',
    ),
    (
      ['--task_module=no_such_module'],
      '--task_module=no_such_module cannot be imported: ModuleNotFoundError: No module named '
      "'no_such_module'",
    ),
    (['--preset=paper/cifar10'], '--preset=paper/cifar10 is unknown; '),
    (
      ['--learning_rat=0.1'],
      "Unknown command line flag 'learning_rat'. Did you mean: learning_rate",
    ),
    (['--learning_rate=fast'], "could not convert string to float: 'fast'"),
    (
      ['--learning_rate=-1'],
      '--learning_rate=-1.0 is out of range: it takes a nonnegative number.',
    ),
    (
      ['--learning_rate_decay=1.5'],
      '--learning_rate_decay=1.5 is out of range: it takes a number in (0, 1].',
    ),
    (
      ['--learning_rate_schedule=linear'],
      'value should be one of <constant|exponential|cosine|step>',
    ),
    (
      ['--learning_rate_schedule=constant', '--learning_rate_decay=0.9'],
      '--learning_rate_decay means nothing with --learning_rate_schedule=constant; it goes with '
      'learning_rate_schedule exponential, step.',
    ),
    (
      ['--weight_decay_final_fraction=0.5'],
      '--weight_decay_final_fraction means nothing with --weight_decay_schedule=exponential; it '
      'goes with weight_decay_schedule cosine.',
    ),
    (
      ['--weight_decay_schedule=cosine'],
      '--weight_decay_schedule=cosine needs --weight_decay_decay_rounds, a number of rounds.',
    ),
    (
      ['--learning_rate_schedule=step', '--learning_rate_decay_rounds=0'],
      '--learning_rate_decay_rounds=0 is out of range: it takes a positive number.',
    ),
    (
      ['--learning_rate_warm_up=-1'],
      '--learning_rate_warm_up=-1 is out of range: it takes a nonnegative number.',
    ),
    (
      [
        '--learning_rate_schedule=constant',
        '--weight_decay_schedule=constant',
        '--first_round_decays',
      ],
      '--first_round_decays means nothing with --learning_rate_schedule=constant and '
      '--weight_decay_schedule=constant; it goes with a schedule exponential.',
    ),
    (
      ['--algorithm=fed_adam', '--server_variant=reference', '--learning_rate_schedule=constant'],
      '--server_variant=reference decays with the learning rate and needs '
      '--learning_rate_schedule=exponential, found constant.',
    ),
    (['--max_norm=0'], '--max_norm=0.0 is out of range: it takes a positive number.'),
    (
      ['--runtime=native', '--notf32'],
      '--tf32 means nothing with --runtime=native; it goes with runtime in_process, cluster.',
    ),
    (
      ['--clients_per_device=0'],
      '--clients_per_device=0 is out of range: it takes a positive number.',
    ),
    (
      ['--client_optimizer=sgd', '--max_norm=1'],
      '--max_norm means nothing with --client_optimizer=sgd; it goes with client_optimizer nar, '
      'clip.',
    ),
    (
      ['--proximal_strength=0.1'],
      '--proximal_strength means nothing with --algorithm=fed_avg; it goes with algorithm '
      'fed_prox.',
    ),
    (
      ['--server_momentum=0.5', '--algorithm=fed_adam'],
      '--server_momentum means nothing with --algorithm=fed_adam; it goes with algorithm fed_avgm.',
    ),
    (
      ['--task=shakespeare', '--alpha=1'],
      '--alpha means nothing with --task=shakespeare; it goes with task digits, cifar10, '
      'synthetic.',
    ),
    (
      ['--local_steps=5', '--local_epochs=1'],
      '--local_steps and --local_epochs exclude each other: give one.',
    ),
    (
      ['--clients_per_round=30', '--num_clients=20'],
      '--clients_per_round=30 is more than --num_clients=20.',
    ),
    (
      ['--task=synthetic', '--clients_per_round=99'],
      '--clients_per_round=99 is more than --num_clients=10.',
    ),
    (
      ['--runtime=remote'],
      '--runtime=remote needs --workers=host:port,host:port, found --workers=.',
    ),
    (
      ['--runtime=remote', '--workers=foo'],
      '--runtime=remote needs --workers=host:port,host:port, found --workers=foo.',
    ),
    (
      ['--runtime=remote', '--workers=a:1,b:99999'],
      '--runtime=remote needs --workers=host:port,host:port, found --workers=a:1,b:99999.',
    ),
    (
      ['--output_dir=/proc/none/run'],
      '--output_dir=/proc/none/run cannot be written: No such file or directory.',
    ),
    (
      ['--output_dir=/dev/null/run'],
      '--output_dir=/dev/null/run cannot be written: Not a directory.',
    ),
    (['--total_rounds=0'], '--total_rounds=0 is out of range: it takes a positive number.'),
    (['--flagfile=not/there.flags'], 'not/there.flags'),
    (['train', 'please'], "'train' is not a flag; all arguments are --name=value."),
  ],
)
def test_wrong_flags_are_one_line(arguments, message, tmp_path):
  result = call(*arguments, cwd=tmp_path)
  assert result.returncode == 2
  assert len(result.stderr.splitlines()) == 1, result.stderr
  assert result.stderr.startswith('train: ') and message in result.stderr
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--task=cifar10', '--data_dir=none'], 'train: '),
    (['--runtime=remote', '--workers=localhost:9'], 'train: No TFF worker answers at localhost:9'),
    (
      ['--task=synthetic', '--jit_compile', '--batch_size=7'],
      'train: --jit_compile needs full batches: client ',
    ),
  ],
)
def test_what_only_the_data_or_the_network_knows_is_one_line_too(arguments, message, tmp_path):
  result = call(*arguments, cwd=tmp_path)
  assert result.returncode == 2
  assert result.stderr.splitlines()[-1].startswith(message)
  assert 'Traceback' not in result.stderr
  assert not (tmp_path / 'runs').exists()


FOREIGN_ERROR = """
from fednar_tff import tasks

def build(*, num_clients=3):
  raise ValueError('what a library says')

tasks.register_task('broken', build)
"""


def test_an_error_that_is_not_ours_keeps_its_traceback_and_ours_has_it_with_debug(tmp_path):
  (tmp_path / 'broken_task.py').write_text(FOREIGN_ERROR)
  task = ['--task_module=broken_task', '--task=broken', '--clients_per_round=1']
  result = call(*task, cwd=tmp_path)
  assert result.returncode == 1
  assert 'Traceback' in result.stderr and 'what a library says' in result.stderr
  result = call('--learning_rate=-1', '--debug', cwd=tmp_path)
  assert result.returncode == 2 and 'Traceback' in result.stderr
  assert result.stderr.splitlines()[-1].startswith('train: --learning_rate=-1.0 is out of range')


def test_help_lists_the_flags_and_does_nothing_else(tmp_path):
  for module, flag in (('train', '--learning_rate'), ('sweep', '--table'), ('demo', '')):
    result = call('--help', module=f'experiments.{module}', cwd=tmp_path)
    assert result.returncode == 0 and flag in result.stdout, module
    assert not list(tmp_path.iterdir()), module


def test_printed_flags_are_a_flag_file(tmp_path):
  preset = '--preset=cpu/cifar10_fed_avg_nar_alpha0.3_steps20_wd0.1'
  printed = call(preset, '--print_flags', cwd=tmp_path)
  assert printed.returncode == 0 and '--weight_decay=0.1\n' in printed.stdout
  (tmp_path / 'my.flags').write_text(printed.stdout)
  again = call('--flagfile=my.flags', '--print_flags', cwd=tmp_path)
  assert again.stdout == printed.stdout
  assert [p.name for p in tmp_path.iterdir()] == ['my.flags']
