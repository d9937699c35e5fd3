# SPDX-License-Identifier: Apache-2.0
"""What `evaluate` shows of one run's model: a table, files of numbers, and a picture."""

import csv
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import ticker

from experiments.reading import drawing, tables


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The numbers of an evaluation.

  Attributes:
    title: What was evaluated.
    round_num: After how many rounds.
    test_metrics: The model's metrics on the whole test set.
    client_ids: The clients.
    num_examples: How many training examples each holds.
    accuracies: The model's accuracy on these.
    alike: Their mean, deviation and worst tenth, each client counting the same.
    by_examples: The same, each client counting as its examples.
    confusion: How often each class of the test set, a row, was taken for each class, a column.
    personalization: Accuracies before and after local steps, or None.
    personalization_steps: How many steps.
  """

  title: str
  round_num: int
  test_metrics: Mapping[str, float]
  client_ids: Sequence[str]
  num_examples: Sequence[int]
  accuracies: np.ndarray
  alike: Any
  by_examples: Any
  confusion: np.ndarray
  personalization: Any
  personalization_steps: int

  @property
  def num_worst(self) -> int:
    """How many clients are the worst tenth."""
    return -(-len(self.client_ids) // 10)


def summary_table(found: Evaluation) -> tables.Table:
  """Returns the table of an evaluation."""
  rows = [
    [f'test set, {name}', f'{value:.4f}' if name == 'loss' else _percent(value), '']
    for name, value in found.test_metrics.items()
    if name != 'num_examples'
  ]
  names = {
    'mean': 'accuracy by client: mean',
    'deviation': 'standard deviation',
    'worst_tenth': f'worst tenth ({found.num_worst} of {len(found.client_ids)} clients)',
  }
  for name, label in names.items():
    rows.append([label, *(_percent(getattr(s, name)) for s in (found.alike, found.by_examples))])
  if found.personalization is not None:
    steps = f'{found.personalization_steps} local step{"s" * (found.personalization_steps > 1)}'
    sizes = found.personalization.num_examples
    for label, values in (
      (f'held-out fifth: before {steps}', found.personalization.before),
      (f'after {steps}', found.personalization.after),
    ):
      rows.append([label, _percent(np.mean(values)), _percent(np.average(values, weights=sizes))])
  notes = ['Accuracies in %; by client on the training examples that it holds.']
  header = ['', 'each client alike', 'weighted by examples']
  return tables.Table(found.title, notes, header, rows, 1)


def _percent(share):
  return f'{100 * share:.2f}'


def save(found: Evaluation, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes the tables by client, by class and in short, and a picture; returns their paths."""
  folder.mkdir(parents=True, exist_ok=True)
  header, rows = ['client', 'examples', 'accuracy'], []
  personal = {}
  if found.personalization is not None:
    header += ['held_out', 'before', 'after']
    p = found.personalization
    personal = dict(zip(p.client_ids, zip(p.num_examples, p.before, p.after)))
  for client_id, size, accuracy in zip(found.client_ids, found.num_examples, found.accuracies):
    row = [client_id, size, float(accuracy)]
    if found.personalization is not None:
      row += personal.get(client_id, ('', '', ''))
    rows.append(row)
  classes = range(len(found.confusion))
  confusion = [['class', *(f'taken_for_{c}' for c in classes)]]
  confusion += [[c, *found.confusion[c].tolist()] for c in classes]
  written = [folder / name for name in ('clients.csv', 'confusion.csv', 'summary.csv')]
  _write_csv(written[0], [header, *rows])
  _write_csv(written[1], confusion)
  written[2].write_text(tables.format_table(summary_table(found), 'csv'))
  return written + drawing.save([plot(found)], folder / 'evaluation.png')


def _write_csv(path, rows):
  with open(path, 'w', newline='') as file:
    csv.writer(file, lineterminator='\n').writerows(rows)


def plot(found: Evaluation):
  """Draws the clients by their accuracy, the classes, and what local steps do."""
  num_panels = 2 if found.personalization is None else 3
  page = drawing.new_page(4.0 * num_panels, 4.0)
  page.suptitle(found.title, fontsize=10)
  axes = page.subplots(1, num_panels)
  _draw_clients(axes[0], found)
  _draw_confusion(page, axes[1], found.confusion)
  if found.personalization is not None:
    _draw_personalization(axes[2], found)
  handles, labels = axes[0].get_legend_handles_labels()
  drawing.add_legend(page, dict(zip(labels, handles)))
  return page


def _draw_clients(axis, found):
  ordered = 100 * np.sort(found.accuracies)
  places = np.arange(1, len(ordered) + 1)
  worst = places <= found.num_worst
  axis.bar(places[~worst], ordered[~worst], 1.0, color='tab:blue')
  axis.bar(places[worst], ordered[worst], 1.0, color='tab:red', label='worst tenth')
  axis.axhline(100 * found.alike.mean, color='black', linewidth=1, linestyle='--', label='mean')
  axis.set_ylabel('accuracy on own examples (%)', fontsize=9)
  axis.set_ylim(0, 100)
  axis.set_title('accuracy by client', fontsize=9)
  drawing.finish_axes(axis, 'clients, by accuracy')
  axis.grid(False, axis='x')
  axis.set_xlim(0.5, len(ordered) + 0.5)
  axis.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))  # There is no client 2.5.


def _draw_confusion(page, axis, confusion):
  shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
  image = axis.imshow(100 * shares, cmap='Blues', vmin=0, vmax=100, interpolation='nearest')
  axis.set_title('test set: row taken for column (%)', fontsize=9)
  axis.set_xlabel('guess', fontsize=9)
  axis.set_ylabel('class', fontsize=9)
  axis.tick_params(labelsize=8)
  if len(confusion) <= 10:
    axis.set_xticks(range(len(confusion)))
    axis.set_yticks(range(len(confusion)))
    for (row, column), share in np.ndenumerate(shares):
      if share >= 0.005:
        color = 'white' if share > 0.5 else 'black'
        axis.text(
          column, row, f'{100 * share:.0f}', ha='center', va='center', fontsize=6, color=color
        )
  page.colorbar(image, ax=axis, shrink=0.8)


def _draw_personalization(axis, found):
  p = found.personalization
  axis.plot([0, 100], [0, 100], color='gray', linewidth=0.8)
  axis.scatter(100 * p.before, 100 * p.after, s=14, alpha=0.6, color='tab:orange')
  axis.set_title(f'held-out fifth, {found.personalization_steps} local steps', fontsize=9)
  axis.set_ylabel('after (%)', fontsize=9)
  axis.set_xlim(-2, 102)
  axis.set_ylim(-2, 102)
  drawing.finish_axes(axis, 'before (%)')
