# SPDX-License-Identifier: Apache-2.0
"""Installs fednar_tff. TFF itself follows with `pip install --no-deps
tensorflow-federated==0.87.0`."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent


def read_requirements(name):
  """Returns the lines that the lock files are made from, too: one source for both."""
  lines = [line.split('#')[0].strip() for line in (HERE / name).read_text().splitlines()]
  return [line for line in lines if line]


REQUIREMENTS = read_requirements('requirements.in')
TENSORFLOW_GPU = next(
  r.replace('tensorflow==', 'tensorflow[and-cuda]==')
  for r in REQUIREMENTS
  if r.startswith('tensorflow==')
)
# The same CUDA packages as TensorFlow 2.14.1's extra `and-cuda`, but for TensorRT, which that extra
# pins to a version without a build for Python 3.11, so that it cannot be installed there. Training
# does not use TensorRT.
CUDA = [
  'nvidia-cublas-cu11==11.11.3.6',
  'nvidia-cuda-cupti-cu11==11.8.87',
  'nvidia-cuda-nvcc-cu11==11.8.89',
  'nvidia-cuda-runtime-cu11==11.8.89',
  'nvidia-cudnn-cu11==8.7.0.84',
  'nvidia-cufft-cu11==10.9.0.58',
  'nvidia-curand-cu11==10.3.0.86',
  'nvidia-cusolver-cu11==11.4.1.48',
  'nvidia-cusparse-cu11==11.7.5.86',
  'nvidia-nccl-cu11==2.16.5',
]
VERSION = re.search(r"__version__ = '(.+)'", (HERE / 'fednar_tff' / '__init__.py').read_text())[1]

setuptools.setup(
  name='fednar_tff',
  version=VERSION,
  description='Weight decay, clipping and normalisation in federated optimization, on TensorFlow '
  'Federated.',
  long_description=(HERE / 'README.md').read_text(),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  # Not `experiments`: its name is too common for other people's environments. It runs from the
  # checkout, or the sdist.
  packages=setuptools.find_packages(include=['fednar_tff', 'fednar_tff.*']),
  package_data={'fednar_tff': ['py.typed']},
  python_requires='>=3.10,<3.12',
  install_requires=REQUIREMENTS,
  extras_require={
    'cluster': read_requirements('requirements-cluster.txt'),
    'gpu': [
      f'{TENSORFLOW_GPU}; python_version < "3.11"',
      *(f'{package}; python_version >= "3.11"' for package in CUDA),
    ],
  },
  classifiers=[
    'License :: OSI Approved :: Apache Software License',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
  ],
)
