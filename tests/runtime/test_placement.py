# SPDX-License-Identifier: Apache-2.0
"""Where the steps of local training would run on GPUs, and what they would copy, asked of
TensorFlow without a GPU.

Each case is a process of its own (see tools/gpu/placement.py). With logical CPU devices the rounds
are real, and the copies between devices are measured in bytes. With a pretended GPU, TensorFlow
places and partitions the graphs for real against its CUDA kernels.
"""

import functools
import itertools

import pytest

from tools.gpu import placement, workloads

# Kernels that a step may launch. Measured before these were bounded: 2,100 and 2,000.
MAX_LAUNCHES = {'resnet18': 1100, 'transformer': 900, 'cnn': 130}
MAX_COPIES = 12
# The bytes of a batch: 20 images of 32 x 32 x 3 bytes, or 20 windows of 80 characters.
BATCH_BYTES = {'resnet18': 20 * 32 * 32 * 3, 'transformer': 20 * 80}
# What is done on the host in each step: to take the batch out of the resident arrays, or out of the
# dataset.
_READ_DATASET = {'IteratorGetNextAsOptional', 'OptionalGetValue', 'OptionalHasValue'}
HOST_OPS = {
  'packed': {'AddV2', 'GatherV2', 'GreaterEqual', 'StridedSlice', 'Where'},
  'iterator': _READ_DATASET,
  'reduce': _READ_DATASET,
}


@functools.cache
def measured(device, model, algorithms, loops, accelerators):
  try:
    return placement.measure(
      device, model, algorithms=algorithms, loops=loops, accelerators=accelerators
    )
  except placement.UnavailableError as e:
    pytest.skip(f'No pretended GPU: {e}')


def check_step(case):
  """Asserts what must hold for a step on any device, pretended or logical."""
  name = {k: case[k] for k in ('algorithm', 'model', 'loop', 'device')}
  between = [c for c in case['copies'] if 'host' not in (c['from'], c['to'])]
  assert not between, (name, between)
  assert set(case['host_ops']) <= HOST_OPS[case['loop']], (name, case['host_ops'])


def check_pretended(case, max_launches=None):
  check_step(case)
  assert case['num_copies'] <= MAX_COPIES, case['copies']
  # Only what decides on the flow of control comes back.
  back = [c for c in case['copies'] if c['to'] == 'host']
  assert {c['dtype'] for c in back} <= {'bool'}, back
  assert list(case['launches']) == [case['device']]
  max_launches = max_launches or MAX_LAUNCHES[case['model']]
  assert 100 < case['launches'][case['device']] <= max_launches, case['launched']
  assert not case['without_kernel']


def check_logical(case):
  # Not by their number: TensorFlow keeps single numbers, as the rates, on the first of several
  # CPUs, from where they are copied in each step. On a GPU, pretended above, they are not.
  check_step(case)
  measured = [copy for copy in case['copies'] if copy['bytes'] is not None]
  # What was never copied is the way around the step when there is no batch any more.
  unmeasured = [copy for copy in case['copies'] if copy['bytes'] is None]
  assert all('/cond/else/' in copy['producer'] for copy in unmeasured), unmeasured
  assert measured
  for copy in measured:
    # A counter or a decision comes back; a GPU would keep the counter on the host.
    limit = 8 if copy['to'] == 'host' else BATCH_BYTES[case['model']]
    assert copy['bytes'] <= limit, copy


CHECKS = {'pretended': check_pretended, 'logical': check_logical}


def test_steps_stay_on_their_device():
  # The second device: what is right there is right on the first, which has all arguments from the
  # start.
  (case,) = measured('pretended', 'resnet18', ('scaffold',), ('packed',), (1,))
  assert case['device'] == 'GPU:1'
  check_pretended(case)


@pytest.mark.slow
def test_steps_of_tffs_own_fed_avg_with_its_default_loop_stay_on_their_device():
  (case,) = measured('pretended', 'resnet18', (workloads.TFF_FED_AVG,), ('reduce',), (1,))
  assert case['device'] == 'GPU:1'
  # It hands the optimizer the 62 weights one by one.
  check_pretended(case, max_launches=1700)


@pytest.mark.slow
def test_steps_of_the_cnn_stay_on_their_device():
  for case in measured('pretended', 'cnn', ('fed_avg',), ('packed', 'reduce'), (1,)):
    check_pretended(case)
    # Its pooling is written in another way where there is no GPU.
    assert case['launched']['GPU:1']['MaxPoolGrad'] == 2


@pytest.mark.slow
@pytest.mark.parametrize('device', ['pretended', 'logical'])
@pytest.mark.parametrize('model', workloads.MODELS)
def test_steps_of_all_algorithms_stay_on_their_device(device, model):
  loops = tuple(workloads.LOOPS)
  cases = measured(device, model, workloads.ALGORITHMS, loops, (0, 1))
  found = {(case['algorithm'], case['loop'], case['device']) for case in cases}
  assert len(found) == 2 * len(list(itertools.product(workloads.ALGORITHMS, loops)))
  for case in cases:
    CHECKS[device](case)
