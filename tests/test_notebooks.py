# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from top to bottom, and are committed clean: outputs, but no traces of a
machine."""

import os
import pathlib
import re

import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = [
  ROOT / 'experiments' / 'notebooks' / f'{name}.ipynb'
  for name in ('fednar_tutorial', 'plug_into_your_pipeline')
]
MAX_BYTES = 400_000
# Absolute paths of a user or a temporary folder, and what TensorFlow or a progress bar would print.
NOISE = re.compile(r'/(home|root|tmp|work|Users)/|Warning|WARNING|it/s|round/s|\x1b\[')

notebooks = pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


@notebooks
def test_is_clean(path):
  assert path.stat().st_size < MAX_BYTES
  notebook = nbformat.read(path, as_version=4)
  nbformat.validate(notebook)
  # Names of cells that stay when the notebook is made again, and nothing of the editor that made
  # it.
  assert [cell.id for cell in notebook.cells] == [f'cell-{i}' for i in range(len(notebook.cells))]
  assert set(notebook.metadata) == {'kernelspec', 'language_info'}
  assert notebook.metadata.kernelspec.name == 'python3'
  assert notebook.metadata.language_info == {'name': 'python'}
  assert not any(cell.metadata for cell in notebook.cells)


@notebooks
def test_was_executed_in_order_without_errors_or_noise(path):
  notebook = nbformat.read(path, as_version=4)
  cells = code_cells(notebook)
  assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
  outputs = [output for cell in cells for output in cell.outputs]
  texts = [output.text for output in outputs if output.output_type == 'stream']
  pictures = [output for output in outputs if output.output_type == 'display_data']
  assert len(texts) + len(pictures) == len(outputs)  # No errors, no values that nobody asked for.
  assert all(output.name == 'stdout' for output in outputs if output.output_type == 'stream')
  assert all(set(picture.data) == {'image/png'} for picture in pictures)
  assert texts and pictures
  for text in texts + [cell.source for cell in notebook.cells]:
    assert not NOISE.search(text), text


@notebooks
def test_uses_public_names_only(path):
  source = '\n'.join(cell.source for cell in code_cells(nbformat.read(path, as_version=4)))
  assert not re.search(
    r'\b(fednar_tff|tff|optimizers|algorithms|tasks|simulation)(\.\w+)*\._', source
  )
  assert not re.search(r'tensorflow_federated\.python', source)


@pytest.mark.slow
@notebooks
def test_runs_from_top_to_bottom(path, monkeypatch, tmp_path):
  import nbclient

  monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')]))
  # Without data: the part on CIFAR-10 takes minutes.
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'no_data'))
  notebook = nbformat.read(path, as_version=4)
  committed = [[o.output_type for o in cell.outputs] for cell in code_cells(notebook)]
  client = nbclient.NotebookClient(
    notebook,
    timeout=600,
    kernel_name='python3',
    resources={'metadata': {'path': str(tmp_path)}},
    coalesce_streams=True,
  )
  client.execute()
  assert [[o.output_type for o in cell.outputs] for cell in code_cells(notebook)] == committed
  for cell in code_cells(notebook):
    for output in cell.outputs:
      if output.output_type == 'stream':
        assert output.name == 'stdout', output.text
        assert 'False' not in output.text, output.text  # What a cell claims, it also checks.
