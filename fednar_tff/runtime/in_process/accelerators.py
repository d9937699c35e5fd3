# SPDX-License-Identifier: Apache-2.0
"""GPUs: how TensorFlow is to use them, and why it does not use one that is there."""

import os
import pathlib
import re
import subprocess
import sys

import tensorflow as tf
from absl import logging

_PCI_DEVICES = pathlib.Path('/sys/bus/pci/devices')
_NVIDIA, _DISPLAY = '0x10de', '0x03'
_SECONDS_TO_ANSWER = 60
# Of a card's memory, for one client at a time: ResNet-18 with batches of 50 needs about half of it.
_GIGABYTES_FOR_A_CLIENT = 4
# More clients at a time find no idle time left on a card, but need their memory.
_MAX_CLIENTS_BY_DEFAULT = 4


def configure(
  *, memory_growth: bool = True, deterministic: bool = False, allow_tf32: bool | None = None
) -> None:
  """Sets how TensorFlow uses GPUs, all of this process; see `create_in_process_context`."""
  if deterministic:
    tf.config.experimental.enable_op_determinism()
  if allow_tf32 is not None:
    tf.config.experimental.enable_tensor_float_32_execution(allow_tf32)
  if not memory_growth:
    return
  for gpu in tf.config.list_physical_devices('GPU'):
    try:
      tf.config.experimental.set_memory_growth(gpu, True)
    except (RuntimeError, ValueError) as e:
      logging.info('The memory of %s does not grow on demand: %s', gpu.name, e)


def executing_device(device: str) -> str:
  """Multiplies two matrices on a device and returns the one that did it, as '/device:GPU:0'."""
  with tf.device(device):
    ones = tf.ones([8, 8])
    return '/device:' + tf.linalg.matmul(ones, ones).backing_device.rpartition('device:')[2]


def find_nvidia_cards(pci_devices: pathlib.Path = _PCI_DEVICES) -> list[str]:
  """Lists the PCI addresses of the NVIDIA cards of this machine, with a driver or without."""
  found = []
  for vendor in sorted(pci_devices.glob('*/vendor')):
    try:
      if vendor.read_text().strip() == _NVIDIA and (
        vendor.with_name('class').read_text().startswith(_DISPLAY)
      ):
        found.append(vendor.parent.name)
    except OSError:
      continue
  return found


def reason_of_tensorflow() -> str:
  """Asks TensorFlow, in a process that may say all it has to say, why it sees no GPU."""
  program = 'import tensorflow as tf; tf.config.list_physical_devices("GPU")'
  try:
    done = subprocess.run(
      [sys.executable, '-c', program],
      capture_output=True,
      text=True,
      timeout=_SECONDS_TO_ANSWER,
      env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '0'},
    )
  except subprocess.TimeoutExpired:
    return f'no answer within {_SECONDS_TO_ANSWER} s'
  return _reason_in(done.stderr)


def _reason_in(log: str) -> str:
  """Returns the last line of TensorFlow's log that speaks of GPUs, without its prefix."""
  lines = re.findall(r'(?m)^\S+ \S+ [IWE] \S+\] (.*(?:GPU|CUDA|cuda|NVIDIA).*)$', log)
  lines = [line for line in lines if 'factory' not in line and 'optimized to use' not in line]
  return lines[-1].strip() if lines else 'it gives no reason'


def unused_card(pci_devices: pathlib.Path = _PCI_DEVICES) -> str | None:
  """Says why TensorFlow does not use an NVIDIA card of this machine.

  Args:
    pci_devices: Where the system lists its devices.

  Returns:
    A sentence, or None if there is no such card or the user hides it.
  """
  if os.environ.get('CUDA_VISIBLE_DEVICES', '0') in ('', '-1'):
    return None
  cards = find_nvidia_cards(pci_devices)
  if not cards or tf.config.list_physical_devices('GPU'):
    return None
  return (
    f'Clients train on the CPU: TensorFlow does not use the NVIDIA card at {", ".join(cards)}. '
    f'It says: {reason_of_tensorflow()}'
  )


def clients_that_fit() -> int:
  """Returns how many clients may train at once on each GPU, by the memory of the smallest."""
  try:
    done = subprocess.run(
      ['nvidia-smi', '--query-gpu=memory.total', '--format=csv,noheader,nounits'],
      capture_output=True,
      text=True,
      timeout=_SECONDS_TO_ANSWER,
    )
  except (OSError, subprocess.TimeoutExpired):
    return 1
  return _clients_for(done.stdout)


def _clients_for(megabytes: str) -> int:
  """Returns the same for what `nvidia-smi` prints: the megabytes of each card."""
  sizes = [int(line) for line in megabytes.split() if line.isdecimal()]
  if not sizes:
    return 1
  return max(1, min(_MAX_CLIENTS_BY_DEFAULT, min(sizes) // (1024 * _GIGABYTES_FOR_A_CLIENT)))
