# SPDX-License-Identifier: Apache-2.0
"""`experiments.export` as a user calls it; what it wrote is loaded where this package is not."""

import json
import subprocess
import sys

import numpy as np
import pytest
from sklearn import datasets

from experiments import export
from fednar_tff import simulation
from tests.experiments.command import call

RUN = [
  '--task=digits',
  '--num_clients=5',
  '--clients_per_round=3',
  '--learning_rate=0.1',
  '--max_norm=1',
  '--total_rounds=4',
  '--rounds_per_evaluation=2',
  '--rounds_per_checkpoint=2',
  '--quiet',
]
# Programs that load an exported model and count, each with nothing but the package that its format
# needs.
PROGRAMS = {
  'npz': """
import sys, numpy as np
model, test = np.load(sys.argv[1]), np.load(sys.argv[2])
x = test['images'].reshape(len(test['images']), -1) / np.float32(16)
hidden = np.maximum(x @ model['hidden0/kernel'] + model['hidden0/bias'], 0)
logits = hidden @ model['logits/kernel'] + model['logits/bias']
assert 'tensorflow' not in sys.modules
""",
  'keras': """
import sys, numpy as np, tensorflow as tf
test = np.load(sys.argv[2])
logits = tf.keras.models.load_model(sys.argv[1]).predict(test['images'], verbose=0)
""",
  'saved_model': """
import sys, numpy as np, tensorflow as tf
test, model = np.load(sys.argv[2]), tf.saved_model.load(sys.argv[1])
logits = model(test['images']).numpy()
served = model.signatures['serving_default'](inputs=tf.constant(test['images']))['logits']
np.testing.assert_allclose(served, logits, rtol=1e-5)
assert model.weights['logits/bias'].shape == [10]
""",
}
COUNT = """
packages = ('fednar_tff', 'experiments', 'tensorflow_federated')
assert not [m for m in sys.modules if m.startswith(packages)]
print(np.mean(logits.argmax(-1) == test['labels']))
"""


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  path = tmp_path_factory.mktemp('export') / 'run'
  result = call(*RUN, f'--output_dir={path}')
  assert result.returncode == 0, result.stderr
  return path


@pytest.fixture(scope='module')
def test_set(tmp_path_factory):
  """The images as scikit-learn has them, which are the test set by the task's one shuffle."""
  digits = datasets.load_digits()
  rows = np.random.RandomState(0).permutation(len(digits.target))[1437:]
  path = tmp_path_factory.mktemp('digits') / 'test.npz'
  images = digits.images[rows][..., np.newaxis].astype(np.uint8)
  np.savez(path, images=images, labels=digits.target[rows])
  return path


# That of Keras takes longest, and tests/simulation/test_trained_model.py loads one in this process.
@pytest.mark.parametrize(
  'form', ['npz', 'saved_model', pytest.param('keras', marks=pytest.mark.slow)]
)
def test_exported_model_has_the_accuracy_of_the_run(form, run, test_set, tmp_path):
  output = tmp_path / f'model{export.SUFFIXES[form]}'
  result = call(
    f'--run={run}', f'--format={form}', f'--output={output}', module='experiments.export'
  )
  assert result.returncode == 0, result.stderr
  assert 'hidden0/kernel' in result.stdout and '[64, 128]' in result.stdout
  counted = subprocess.run(
    [sys.executable, '-c', PROGRAMS[form] + COUNT, output, test_set],
    cwd=tmp_path, capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert counted.returncode == 0, counted.stderr
  expected = json.loads((run / 'result.json').read_text())['final_test_accuracy']
  assert expected > 0.3  # More than guessing.
  assert float(counted.stdout) == pytest.approx(expected, abs=1e-6)
  assert [p.name for p in tmp_path.iterdir()] == [output.name]


@pytest.mark.parametrize(
  ('arguments', 'line'),
  [
    ([], '--run is missing'),
    (['--run=/nowhere'], '--run=/nowhere is no directory of a run'),
    (['--run={run}', '--round=3'], 'Round 3 of {run} is not saved; saved are 2, 4.'),
    (['--run={run}', '--format=onnx'], 'should be one of <npz|keras|saved_model>'),
    (['--run={run}', '--format=npz', '--output={tmp}/x.zip'], 'must end in .npz'),
    (['--run={run}', '--output={tmp}'], 'exists already'),
    (['--run={run}', '--data_dir=/data'], '--data_dir means nothing for task digits.'),
  ],
)
def test_what_cannot_be_exported_is_one_line(arguments, line, run, tmp_path):
  names = {'run': run, 'tmp': tmp_path}
  result = call(*(a.format(**names) for a in arguments), module='experiments.export')
  assert result.returncode == 2
  assert len(result.stderr.strip().splitlines()) == 1
  assert line.format(**names) in result.stderr
  assert not list(tmp_path.iterdir())


def test_formats_of_the_binary_are_those_of_the_package():
  assert export.SUFFIXES == simulation.EXPORT_FORMATS


def test_help_is_in_groups():
  text = call('--help', module='experiments.export').stdout
  places = [text.index(part) for part in ('Which model:', '\n  --run\n', 'As what, and where to:')]
  assert places == sorted(places)
  assert 'npz|keras|saved_model; default saved_model' in text
