"""The figures: of one run, and those of the paper."""

import pathlib
from collections.abc import Sequence

import matplotlib

matplotlib.use('Agg')  # No screen is needed.
import numpy as np
from matplotlib import pyplot as plt

from experiments.definition import catalogue
from experiments.reading import runs as results

_COLORS = {'clip': 'tab:blue', 'nar': 'tab:orange', 'sgd': 'tab:gray'}
_LABELS = {name: option.title for name, option in catalogue.CLIENT_OPTIMIZERS.items()}


def save(figure, path: pathlib.Path) -> list[pathlib.Path]:
  """Saves a figure under `path`, and as PDF beside a PNG."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  paths = [path] if path.suffix else [path.with_suffix('.png'), path.with_suffix('.pdf')]
  for p in paths:
    figure.savefig(p, dpi=150, bbox_inches='tight')
  plt.close(figure)
  return paths


def plot_run(run: results.Run, path: pathlib.Path) -> None:
  """Plots one run: test accuracy, losses, and the share of steps that were clipped."""
  figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout='constrained')
  figure.suptitle(run.settings.get('title') or run.path.name, fontsize=10)
  rounds, values = run.series('test_accuracy')
  axes[0].plot(rounds, 100 * np.array(values), marker='.')
  axes[0].set_ylabel('test accuracy (%)')
  for name in ('train_loss', 'test_loss'):
    axes[1].plot(*run.series(name), label=name.replace('_', ' '))
  axes[1].set_ylabel('loss')
  axes[1].legend()
  rounds, clipped = run.series('clipped_steps')
  _, total = run.series('total_steps')
  axes[2].plot(rounds, 100 * np.array(clipped) / np.maximum(total, 1))
  axes[2].set_ylabel('clipped steps (%)')
  axes[2].set_ylim(-2, 102)
  _finish(axes, 'round')
  save(figure, path)


def _finish(axes, xlabel):
  for axis in np.ravel(axes):
    axis.set_xlabel(xlabel)
    axis.grid(alpha=0.3)
    axis.spines[['top', 'right']].set_visible(False)


def band(axis, runs: Sequence[results.Run], name: str, scale=1.0, **style):
  """Plots the mean of a metric over runs, with a band of one standard deviation if there are several."""
  series = [dict(zip(*run.series(name))) for run in runs]
  rounds = sorted(set.intersection(*(set(s) for s in series))) if series else []
  if not rounds:
    return
  values = scale * np.array([[s[r] for r in rounds] for s in series])
  axis.plot(rounds, values.mean(0), **style)
  if len(values) > 1:
    deviation = values.std(0, ddof=1)
    axis.fill_between(
      rounds,
      values.mean(0) - deviation,
      values.mean(0) + deviation,
      alpha=0.2,
      color=style.get('color'),
      linewidth=0,
    )


def style_of(optimizer: str) -> dict:
  return {'color': _COLORS[optimizer], 'label': _LABELS[optimizer]}


def _grid(num_rows, num_columns):
  return plt.subplots(
    num_rows,
    num_columns,
    figsize=(4.2 * num_columns, 3.2 * num_rows),
    layout='constrained',
    squeeze=False,
    sharey='row',
  )


def plot_curves(groups, title: str):
  """Plots accuracy curves: a row for each algorithm, a column for each condition, a band for each optimizer.

  Args:
    groups: `{(algorithm, condition): {optimizer: [run, ...]}}`, where the condition is a text.
    title: The figure's title.
  """
  algorithms = list(dict.fromkeys(algorithm for algorithm, _ in groups))
  conditions = list(dict.fromkeys(condition for _, condition in groups))
  figure, axes = _grid(len(algorithms), len(conditions))
  figure.suptitle(title)
  for (algorithm, condition), by_optimizer in groups.items():
    axis = axes[algorithms.index(algorithm), conditions.index(condition)]
    for optimizer, runs in by_optimizer.items():
      band(axis, runs, 'test_accuracy', 100, **style_of(optimizer))
    axis.set_title(f'{catalogue.ALGORITHMS[algorithm].title}, {condition}', fontsize=10)
    axis.legend(fontsize=8)
  for axis in axes[:, 0]:
    axis.set_ylabel('test accuracy (%)')
  _finish(axes, 'round')
  return figure


def plot_robustness(groups, title: str):
  """Plots accuracy curves at several weight decays: a panel for each algorithm.

  Args:
    groups: `{algorithm: {(weight_decay, optimizer): [run, ...]}}`.
    title: The figure's title.
  """
  figure, axes = _grid(1, len(groups))
  figure.suptitle(title)
  decays = sorted({decay for lines in groups.values() for decay, _ in lines})
  for axis, (algorithm, lines) in zip(axes[0], groups.items()):
    for (decay, optimizer), runs in sorted(lines.items()):
      style = {
        'color': _COLORS[optimizer],
        'linestyle': ('--', '-', ':', '-.')[decays.index(decay) % 4],
      }
      band(axis, runs, 'test_accuracy', 100, label=f'{_LABELS[optimizer]}, WD {decay:g}', **style)
    axis.set_title(catalogue.ALGORITHMS[algorithm].title, fontsize=10)
    axis.legend(fontsize=8)
  axes[0, 0].set_ylabel('test accuracy (%)')
  _finish(axes, 'round')
  return figure


def plot_weight_decay(groups, title: str, statistic: str):
  """Plots accuracy against weight decay: a panel for each condition, a line for each algorithm and optimizer.

  Args:
    groups: `{condition: {(algorithm, optimizer): {weight_decay: [run, ...]}}}`.
    title: The figure's title.
    statistic: One of `results.STATISTICS`.
  """
  figure, axes = _grid(1, len(groups))
  figure.suptitle(title)
  algorithms = list(dict.fromkeys(algorithm for lines in groups.values() for algorithm, _ in lines))
  for axis, (condition, lines) in zip(axes[0], groups.items()):
    for (algorithm, optimizer), by_decay in lines.items():
      decays = sorted(by_decay)
      spreads = [
        results.spread([a for r in by_decay[d] if (a := r.accuracy(statistic)) is not None])
        for d in decays
      ]
      points = [(d, s) for d, s in zip(decays, spreads) if s]
      axis.errorbar(
        [d for d, _ in points],
        [100 * s.mean for _, s in points],
        yerr=[0 if np.isnan(s.deviation) else 100 * s.deviation for _, s in points],
        label=f'{catalogue.ALGORITHMS[algorithm].title} {_LABELS[optimizer]}',
        color=f'C{algorithms.index(algorithm)}',
        linestyle='--' if optimizer == 'clip' else '-',
        marker='o',
        markersize=4,
        capsize=2,
      )
    axis.set_xscale('log')
    axis.set_title(condition, fontsize=10)
    axis.legend(fontsize=8)
  axes[0, 0].set_ylabel(f'test accuracy (%), {statistic}')
  _finish(axes, 'weight decay')
  return figure


def plot_clipping(groups, title: str):
  """Plots frequency and strength of clipping: a column for each condition, a band for each algorithm and optimizer.

  Args:
    groups: `{condition: {(algorithm, optimizer): [run, ...]}}`.
    title: The figure's title.
  """
  figure, axes = _grid(2, len(groups))
  figure.suptitle(title)
  for column, (condition, lines) in enumerate(groups.items()):
    for i, ((algorithm, optimizer), runs) in enumerate(lines.items()):
      style = {
        'label': f'{catalogue.ALGORITHMS[algorithm].title} {_LABELS[optimizer]}',
        'color': f'C{i}',
      }
      band(axes[0, column], runs, 'clipped_steps', **style)
      band(axes[1, column], runs, 'mean_clipped_norm', **style)
    axes[0, column].set_title(condition, fontsize=10)
    axes[0, column].legend(fontsize=8)
  for row in axes:  # From zero: a count that hardly changes is a flat line, not a magnified one.
    top = max(axis.dataLim.y1 for axis in row)
    for axis in row:
      axis.set_ylim(0, 1.05 * top if 0 < top < np.inf else 1)
  axes[0, 0].set_ylabel('clipped steps a round')
  axes[1, 0].set_ylabel('mean norm of clipped steps')
  _finish(axes, 'round')
  return figure
