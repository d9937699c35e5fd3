# SPDX-License-Identifier: Apache-2.0
"""The figures: of one run, and those of the paper.

Each of the paper's figures is a function of an experiment that returns its pages, or none if the
runs have nothing for it. No line is a mean over runs that differ in anything but their seeds.
"""

import collections
import pathlib
from collections.abc import Callable

import numpy as np
from matplotlib import ticker

from experiments.reading import drawing, grouping, runs, tables

_ACCURACY = 'test accuracy (%)'
_STATISTIC_TITLES = {'final': 'final', 'best': 'best', 'last10': 'last ten'}
_UPPER = 'centralized'  # No federation: a line above the others.
_MOST_LINES = 6  # Of a panel in which algorithms are compared.
# The baseline's points are rings: they are seen where those of NAR lie on them.
_MARKERS = {'clip': {'markersize': 8, 'markerfacecolor': 'none'}}


def plot_run(run: runs.Run, path: pathlib.Path) -> None:
  """Plots one run: test accuracy, losses, and the share of steps that were clipped."""
  page = drawing.new_page(10, 3.2)
  axes = page.subplots(1, 3)
  page.suptitle(run.settings.get('title') or run.path.name, fontsize=10)
  rounds, values = run.series('test_accuracy')
  axes[0].plot(rounds, 100 * np.array(values), marker='.')
  axes[0].set_ylabel(_ACCURACY)
  for name in ('train_loss', 'test_loss'):
    drawing.plot_line(axes[1], *run.series(name), label=name.replace('_', ' '))
  axes[1].set_ylabel('loss')
  total = dict(zip(*run.series('total_steps')))
  shares = {r: 100 * c / total[r] for r, c in zip(*run.series('clipped_steps')) if total.get(r)}
  drawing.plot_line(axes[2], list(shares), list(shares.values()))
  axes[2].set_ylabel('clipped steps (%)')
  axes[2].set_ylim(-2, 102)
  for axis in axes:
    drawing.finish_axes(axis, 'round')
  handles, labels = axes[1].get_legend_handles_labels()
  drawing.add_legend(page, dict(zip(labels, handles)))
  drawing.save([page], path)


def _plot_accuracy(experiment, title, line_names=()):
  """Plots accuracy by round: a panel for all that is equal but the optimizer and some settings.

  Args:
    experiment: The experiment.
    title: The figure's title.
    line_names: The settings that tell the lines of a panel apart; a panel needs two of their
      values.
  """
  panel_names = [name for name in experiment.columns if name not in line_names]
  panels = collections.defaultdict(dict)
  for algorithm, condition, optimizer, cell in experiment.cells():
    line = experiment.part(condition, line_names)
    panels[algorithm, experiment.part(condition, panel_names)][line, optimizer] = cell
  upper = _take_upper_lines(panels) if not line_names else {}
  if line_names:
    panels = {k: lines for k, lines in panels.items() if len({line for line, _ in lines}) > 1}
  shades = sorted({line for lines in panels.values() for line, _ in lines}, key=_order)
  has_several = len({algorithm for algorithm, _ in panels}) > 1
  groups = collections.defaultdict(list)
  for (algorithm, setting), lines in panels.items():
    above = _fitting(upper, setting)

    def draw(axis, lines=lines, above=above):
      for optimizer, cell in above.items():
        label = _join(grouping.algorithm_title(_UPPER), tables.optimizer_title(optimizer))
        style = drawing.algorithm_style(_UPPER, optimizer)
        drawing.band(axis, cell, 'test_accuracy', 100, label=label, **style)
      for (line, optimizer), cell in lines.items():
        style = drawing.optimizer_style(optimizer, shades.index(line), len(shades))
        label = _join(tables.optimizer_title(optimizer), grouping.describe(line))
        drawing.band(axis, cell, 'test_accuracy', 100, label=label, **style)

    text = _join(grouping.algorithm_title(algorithm), grouping.describe(setting))
    # Side by side stand the settings of an algorithm, or the algorithms where lines are settings.
    groups[setting if line_names and has_several else algorithm].append(
      drawing.Panel(text, draw, 'round', _ACCURACY)
    )
  return drawing.draw_pages(list(groups.values()), title, drawing.describe_bands(_lines(panels)))


def _take_upper_lines(panels):
  """Takes the panels of centralised training out, if there are others, which they become lines of.

  Returns:
    The runs by setting and optimizer.
  """
  own = [key for key in panels if key[0] == _UPPER]
  if len(own) == len(panels):
    return {}
  return {
    setting: {optimizer: cell for (_, optimizer), cell in panels.pop((_UPPER, setting)).items()}
    for _, setting in own
  }


def _fitting(upper, setting):
  """Returns the centralised runs of a panel: those that have its settings."""
  for own, cells in upper.items():
    if all(value in (None, wanted) for (_, value), (_, wanted) in zip(own, setting, strict=True)):
      return cells
  return {}


def plot_curves(experiment: grouping.Experiment, title: str, statistic: str):
  """Plots accuracy by round: a panel for each row of the table, a band for each optimizer."""
  del statistic
  return _plot_accuracy(experiment, title)


def plot_robustness(experiment: grouping.Experiment, title: str, statistic: str):
  """Plots accuracy by round at several weight decays: a panel for all else that is equal."""
  del statistic
  return _plot_accuracy(experiment, title, ['weight_decay'])


def plot_weight_decay(experiment: grouping.Experiment, title: str, statistic: str):
  """Plots accuracy against weight decay: a panel for each setting, a line for each algorithm.

  Where that would be too many lines, or there is but one algorithm, each has panels of its own, in
  which the colours are those of baseline and NAR.
  """
  panels = collections.defaultdict(lambda: collections.defaultdict(dict))
  for setting, key, condition, cell in _by_algorithm(experiment, but='weight_decay'):
    decay = dict(experiment.part(condition, ['weight_decay'])).get('weight_decay')
    panels[setting][key][decay] = cell
  panels = {
    ('', grouping.describe(setting)): {key: cells for key, cells in lines.items() if len(cells) > 1}
    for setting, lines in panels.items()
  }
  algorithms = {algorithm for lines in panels.values() for _, algorithm, _ in lines}
  if max(map(len, panels.values()), default=0) > (1 if len(algorithms) == 1 else _MOST_LINES):
    panels = _apart_by_algorithm(panels)
  panels = {key: lines for key, lines in panels.items() if lines}
  group = []
  for titles, lines in panels.items():

    def draw(axis, lines=lines, is_alone=bool(titles[0])):
      for (label, algorithm, optimizer), cells in lines.items():
        style = drawing.algorithm_style(algorithm, optimizer)
        if is_alone:
          style = {**drawing.optimizer_style(optimizer), **_MARKERS.get(optimizer, {})}
        _draw_decays(axis, cells, statistic, {'label': label, **style})
      _scale_decays(axis, sorted({decay for cells in lines.values() for decay in cells}))

    ylabel = f'{_ACCURACY}, {_STATISTIC_TITLES[statistic]}'
    group.append(drawing.Panel(_join(*titles), draw, 'weight decay', ylabel))
  cells = [cell for lines in panels.values() for found in lines.values() for cell in found.values()]
  return drawing.draw_pages([group], title, drawing.describe_bands(cells, mark='bar'))


def _apart_by_algorithm(panels):
  """Returns a panel for each algorithm and setting; its lines' labels leave the algorithm out."""
  apart = collections.defaultdict(dict)
  for (_, setting), lines in panels.items():
    for (label, algorithm, optimizer), cells in lines.items():
      name = grouping.algorithm_title(algorithm)
      apart[name, setting][label.removeprefix(f'{name} '), algorithm, optimizer] = cells
  names = list(dict.fromkeys(name for name, _ in apart))
  return dict(sorted(apart.items(), key=lambda item: names.index(item[0][0])))


def _draw_decays(axis, cells, statistic, style):
  """Draws the accuracy of cells, given by weight decay, with the deviations as bars."""
  spreads = {decay: runs.accuracy(cell, statistic) for decay, cell in sorted(cells.items())}
  spreads = {decay: spread for decay, spread in spreads.items() if spread}
  axis.errorbar(
    list(spreads),
    [100 * s.mean for s in spreads.values()],
    yerr=[0 if np.isnan(s.deviation) else 100 * s.deviation for s in spreads.values()],
    **{'marker': 'o', 'markersize': 4, 'capsize': 2, **style},
  )  # fmt: skip
  for decay, cell in cells.items():
    if any(run.has_diverged for run in cell):  # At the bottom: it has no accuracy.
      axis.plot(decay, 0.03, marker='x', color=style['color'], transform=axis.get_xaxis_transform())


def _scale_decays(axis, decays):
  """Makes the axis logarithmic, with a tick at each weight decay; zero has a place, too."""
  if decays[0] > 0:
    axis.set_xscale('log')
  else:
    axis.set_xscale('symlog', linthresh=decays[1])
  axis.xaxis.set_major_locator(ticker.FixedLocator(decays))
  axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{value:g}'))
  axis.xaxis.set_minor_locator(ticker.NullLocator())
  axis.tick_params(axis='x', rotation=45)


def plot_clipping(experiment: grouping.Experiment, title: str, statistic: str):
  """Plots how often and how strongly steps are clipped, in two panels for each setting."""
  del statistic
  panels = collections.defaultdict(dict)
  for setting, key, _, cell in _by_algorithm(experiment):
    if key[2] != 'sgd':  # It clips nothing.
      panels[setting][key] = cell
  metrics = {
    'clipped_steps': 'clipped steps a round',
    'mean_clipped_norm': 'mean norm of clipped steps',
  }
  settings = sorted(panels, key=_order)
  groups = []
  for some in (settings[i : i + 3] for i in range(0, len(settings), 3)):
    for metric, ylabel in metrics.items():
      groups.append([])
      for setting in some:

        def draw(axis, metric=metric, lines=panels[setting]):
          for (label, algorithm, optimizer), cell in lines.items():
            style = drawing.algorithm_style(algorithm, optimizer)
            drawing.band(axis, cell, metric, label=label, **style)

        panel = drawing.Panel(grouping.describe(setting), draw, 'round', ylabel, from_zero=True)
        groups[-1].append(panel)
  return drawing.draw_pages(groups, title, drawing.describe_bands(_lines(panels)))


def plot_differences(
  experiment: grouping.Experiment, title: str, statistic: str, published: Callable, guess: float
):
  """Plots NAR minus baseline beside the paper's difference: a panel for each setting.

  Where the two differ little, their curves lie on each other, and only this tells them apart.

  Args:
    experiment: The experiment.
    title: The figure's title.
    statistic: Which accuracy of a run.
    published: A function from the settings of a run to the paper's baseline and NAR.
    guess: The accuracy that a run counts with if it diverged.
  """
  panels, counts, has_diverged = collections.defaultdict(list), set(), False
  places = {}  # Of the rows, which all panels have: one that has no runs for a row leaves it empty.
  traits = [name for name in experiment.columns if name not in experiment.axes]
  for algorithm, condition in experiment.rows:
    pair = [experiment.cell(algorithm, condition, optimizer) for optimizer in ('clip', 'nar')]
    difference = runs.paired_difference(*pair, statistic, guess)
    if difference:
      trait = grouping.describe(experiment.part(condition, traits))
      place = places.setdefault(_join(grouping.algorithm_title(algorithm), trait), -len(places))
      papers = published(pair[1][0].identity)
      panels[experiment.part(condition, experiment.axes)].append(
        (place, algorithm, difference, papers)
      )
      counts.add(difference.count)
      has_diverged |= any(run.has_diverged for cell in pair for run in cell)
  if not panels:
    return []
  group = []
  for setting in sorted(panels, key=_order):

    def draw(axis, setting=setting):
      for place, algorithm, difference, (baseline, nar) in panels[setting]:
        style = {'color': drawing.algorithm_style(algorithm, 'nar')['color'], 'linestyle': ''}
        bar = None if np.isnan(difference.half_width) else 100 * difference.half_width
        mean = 100 * difference.mean
        axis.errorbar(mean, place, xerr=bar, marker='o', markersize=4, capsize=2, **style)
        axis.plot(nar - baseline, place, marker='D', markersize=5, fillstyle='none', **style)
      axis.set_yticks(list(places.values()), list(places))
      axis.axvline(0, color='gray', linewidth=0.8)

    group.append(drawing.Panel(grouping.describe(setting), draw, 'NAR - baseline (points)', ''))
  seeds = drawing.describe_count(min(counts), max(counts))
  explanation = f"dot: mean over {seeds}; bar: its 95 % interval; diamond: the paper's, full size"
  if has_diverged:
    explanation += '; a run that diverged counts as a guess'
  return drawing.draw_pages([group], title, explanation, share_x=True)


def _by_algorithm(experiment, but=None):
  """Yields setting, line, condition and runs of each cell, for panels that compare algorithms.

  A setting that varies within an algorithm sets panels apart. One that only differs between
  algorithms is said in the line's label.
  """
  others = [name for name in experiment.columns if name not in experiment.axes]
  for algorithm, condition, optimizer, cell in experiment.cells():
    setting = experiment.part(condition, [name for name in experiment.axes if name != but])
    traits = experiment.part(condition, [name for name in others if name != but])
    label = f'{grouping.algorithm_title(algorithm)} {tables.optimizer_title(optimizer)}'
    label = _join(label, grouping.describe(traits))
    yield setting, (label, algorithm, optimizer), condition, cell


def _lines(panels):
  return [cell for lines in panels.values() for cell in lines.values()]


def _order(settings):
  return grouping.order(value for _, value in settings)


def _join(*parts):
  return ', '.join(part for part in parts if part)


FIGURES = {
  'curves': plot_curves,
  'weight_decay': plot_weight_decay,
  'robustness': plot_robustness,
  'clipping': plot_clipping,
}
