# SPDX-License-Identifier: Apache-2.0
"""How figures are drawn: panels on pages, one legend outside of them, bands over seeds, colours."""

import dataclasses
import io
import pathlib
import textwrap
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib import axes as axes_lib
from matplotlib import colors, figure, ticker

from experiments.definition import catalogue
from experiments.reading.runs import Run

# An optimizer and an algorithm have a colour each, and no two of them the same.
_OPTIMIZER_COLORS = {'clip': 'tab:blue', 'nar': 'tab:orange', 'sgd': 'tab:gray'}
_ALGORITHM_COLORS = (
  'tab:green', 'tab:red', 'tab:purple', 'tab:brown', 'tab:cyan', 'tab:pink', 'tab:olive', 'black',
)  # fmt: skip
_OPTIMIZER_STYLES = {'clip': '--', 'nar': '-', 'sgd': ':'}
_LINE_STYLES = ('-', '--', '-.', ':')

# What lines are, beside their looks.
_DIVERGED, _CROSS = 'diverged', 'cross'

_ROWS_OF_A_PAGE = 4
_MAX_COLUMNS = 3
_WIDTHS = {1: 5.5, 2: 8.0, 3: 10.0}  # In inches, by the number of columns.
_ROW_HEIGHT = 2.5


@dataclasses.dataclass(frozen=True)
class Panel:
  """One pair of axes.

  Attributes:
    title: What sets it apart from the other panels.
    draw: A function that draws into given axes.
    xlabel: The label of its horizontal axis.
    ylabel: The label of its vertical axis.
    from_zero: Whether the vertical axis begins at zero.
  """

  title: str
  draw: Callable[[axes_lib.Axes], None]
  xlabel: str
  ylabel: str
  from_zero: bool = False


def optimizer_style(optimizer: str, shade: int = 0, num_shades: int = 1) -> dict:
  """Returns the style of an optimizer's line; several lines of it differ in shade and dashes."""
  color = np.array(colors.to_rgb(_OPTIMIZER_COLORS[optimizer]))
  share = 0.5 * shade / max(num_shades - 1, 1)
  return {
    'color': tuple(color + share * (1 - color)),
    'linestyle': _LINE_STYLES[shade % len(_LINE_STYLES)],
  }


def algorithm_style(algorithm: str, optimizer: str) -> dict:
  """Returns the style of a line that stands for an algorithm with an optimizer."""
  index = list(catalogue.ALGORITHMS).index(algorithm)
  return {
    'color': _ALGORITHM_COLORS[index % len(_ALGORITHM_COLORS)],
    'linestyle': _OPTIMIZER_STYLES[optimizer],
  }


def band(axis: axes_lib.Axes, runs: Sequence[Run], name: str, scale=1.0, **style) -> None:
  """Plots the mean of a metric over seeds, with a band of one standard deviation.

  A run that diverged is no part of the mean: it is a thin line that ends in a cross, or a cross
  alone, at the bottom, if the metric was never measured.
  """
  series = [
    dict(zip(*run.series(name))) for run in runs if run.is_finished and not run.has_diverged
  ]
  rounds = sorted(set.intersection(*map(set, series))) if series else []
  if rounds:
    values = scale * np.array([[s[r] for r in rounds] for s in series])
    mean = values.mean(0)
    plot_line(axis, rounds, mean, **style)
    if len(values) > 1:
      deviation = values.std(0, ddof=1)
      axis.fill_between(
        rounds, mean - deviation, mean + deviation, alpha=0.2, color=style['color'], linewidth=0
      )
  for run in runs:
    if not run.has_diverged:
      continue
    found = run.series(name)
    thin = {**style, 'label': None if rounds else style.get('label'), 'linewidth': 0.8}
    values = scale * np.array(found[1])
    cross = {'marker': 'x', 'color': style['color'], 'clip_on': False, 'gid': _CROSS}
    axis.plot(found[0], values, gid=_DIVERGED, **thin)
    if found[0]:
      axis.plot(found[0][-1], values[-1], **cross)
    elif run.rows:
      axis.plot(run.rows[-1]['round_num'], 0.03, transform=axis.get_xaxis_transform(), **cross)


def plot_line(axis: axes_lib.Axes, rounds: Sequence[int], values, **style) -> None:
  """Plots values by round; a single one is a dot, since a line would not be seen."""
  axis.plot(rounds, values, **{'marker': '.' if len(rounds) == 1 else '', **style})


def describe_bands(runs: Sequence[Sequence[Run]], mark: str = 'band') -> str:
  """Returns what lines and bands stand for.

  Args:
    runs: The runs of each line.
    mark: What shows the deviation.
  """
  counts = [sum(run.counts for run in line) for line in runs]
  low, high = min(filter(None, counts), default=0), max(counts, default=0)
  if high > 1:
    text = f'line: mean over {describe_count(low, high)}; {mark}: ± one standard deviation'
  else:
    text = 'one seed for each line'
  if any(run.has_diverged for line in runs for run in line):
    text += '; ×: a run that diverged, no part of the mean'
  return text


def describe_count(low: int, high: int) -> str:
  """Returns how many seeds there are, from the fewest to the most."""
  return (f'{high} seeds' if high > 1 else 'one seed') if low == high else f'{low} to {high} seeds'


def draw_pages(
  groups: Sequence[Sequence[Panel]],
  title: str,
  explanation: str,
  columns: int | None = None,
  share_x: bool = False,
) -> list[figure.Figure]:
  """Draws panels on as many pages as they need.

  Args:
    groups: The panels; each group begins a new row.
    title: The title of each page.
    explanation: What lines and bands are; it stands above the legend.
    columns: The number of columns; chosen by the longest group unless given.
    share_x: Whether the horizontal axes of a page have one scale.

  Returns:
    A figure for each page; none if there are no panels.
  """
  if not any(groups):
    return []
  longest = max(map(len, groups))
  columns = columns or (2 if longest == 4 else min(longest, _MAX_COLUMNS))
  rows = [group[i : i + columns] for group in groups for i in range(0, len(group), columns)]
  pages = [rows[i : i + _ROWS_OF_A_PAGE] for i in range(0, len(rows), _ROWS_OF_A_PAGE)]
  figures = []
  for number, page in enumerate(pages, 1):
    suffix = f' (page {number} of {len(pages)})' if len(pages) > 1 else ''
    figures.append(_draw_page(page, columns, title + suffix, explanation, share_x))
  return figures


def new_page(width: float, height: float) -> figure.Figure:
  """Returns an empty figure of some inches, which arranges what is drawn into it."""
  # A figure of its own, not pyplot's: no global state, no screen needed.
  page = figure.Figure(figsize=(width, height), layout='constrained')
  page.get_layout_engine().set(w_pad=0.08, h_pad=0.06)
  return page


def _draw_page(rows, columns, title, explanation, share_x):
  width = _WIDTHS[columns]
  page = new_page(width, _ROW_HEIGHT * len(rows) + 1.1)
  axes = page.subplots(len(rows), columns, squeeze=False, sharex=share_x, sharey='row')
  page.suptitle(_wrap(title, 13 * width), fontsize=10)
  handles = {}
  for row, row_axes in zip(rows, axes):
    for panel, axis in zip(row, row_axes):
      panel.draw(axis)
      finish_axes(axis, panel.xlabel)
      axis.set_title(_wrap(panel.title, 15 * width / columns), fontsize=9)
      handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels())}
    for axis in row_axes[len(row) :]:
      axis.remove()
    row_axes[0].set_ylabel(row[0].ylabel, fontsize=9)
    if row[0].from_zero:  # A count that hardly changes is a flat line, not a magnified one.
      _begin_at_zero(row_axes[: len(row)])
  add_legend(page, handles, explanation)
  return page


def _begin_at_zero(axes):
  """Lets axes of one height begin at zero, and end above the runs that have not diverged."""
  lines = [line for axis in axes for line in axis.get_lines()]
  for left_out in ((_DIVERGED, _CROSS), ()):
    tops = [
      np.nanmax(l.get_ydata()) for l in lines if l.get_gid() not in left_out and len(l.get_ydata())
    ]
    bands = [c.get_datalim(axis.transData).y1 for axis in axes for c in axis.collections]
    top = max([*tops, *bands], default=0.0)
    if tops:
      break
  height = 1.05 * top if 0 < top < np.inf else 1
  axes[0].set_ylim(0, height)
  for line in lines:
    if line.get_gid() == _CROSS:
      line.set_ydata(np.minimum(line.get_ydata(), 0.97 * height))


def add_legend(page: figure.Figure, handles: dict, explanation: str = '') -> None:
  """Puts one legend under all panels, where it covers nothing."""
  width = page.get_figwidth()
  longest = max((len(label) for label in handles), default=1)
  page.legend(
    handles.values(), handles.keys(), title=_wrap(explanation, 15 * width),
    loc='outside lower center',
    ncols=max(1, min(len(handles), int(14 * width / (longest + 8)))),
    fontsize=8, title_fontsize=8, frameon=False,
  )  # fmt: skip


def _wrap(text, width):
  """Returns a text in lines that are broken between its parts, not inside of them."""
  glued = text.replace(' ', '\u00a0')
  for mark in ',;':
    glued = glued.replace(f'{mark}\u00a0', f'{mark} ')
  return textwrap.fill(glued, int(width))


def finish_axes(axis: axes_lib.Axes, xlabel: str) -> None:
  """Gives axes their label, grid and ticks; rounds are whole numbers."""
  axis.set_xlabel(xlabel, fontsize=9)
  axis.tick_params(labelsize=8)
  axis.grid(alpha=0.3)
  axis.spines[['top', 'right']].set_visible(False)
  if xlabel == 'round':
    axis.xaxis.set_major_locator(
      ticker.MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    )


def to_svg(draw: Callable[[io.BytesIO], None], name: str) -> str:
  """Returns a drawing as an element for a page of HTML, whose black is the page's colour of text.

  Args:
    draw: A function that saves a figure into a buffer.
    name: What tells it apart from the other drawings of the page.
  """
  buffer = io.BytesIO()
  options = {
    'savefig.format': 'svg', 'savefig.transparent': True, 'svg.fonttype': 'none',
    'svg.hashsalt': name,
  }  # fmt: skip
  with matplotlib.rc_context(options):
    draw(buffer)
  text = buffer.getvalue().decode()
  return text[text.index('<svg') :].replace('#000000', 'currentColor')


def save(pages: Sequence[figure.Figure], path: pathlib.Path) -> list[pathlib.Path]:
  """Saves pages: each as a PNG, and all in one PDF unless `path` ends in `.png`."""
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  stem = path.with_suffix('') if path.suffix == '.png' else path
  written = []
  for number, page in enumerate(pages, 1):
    suffix = '' if number == 1 else f'_page{number}'
    written.append(stem.with_name(f'{stem.name}{suffix}.png'))
    page.savefig(written[-1], dpi=150)
    page.set_layout_engine('none')  # It is laid out; doing it again for the PDF takes long.
  if path.suffix != '.png':
    from matplotlib.backends import backend_pdf  # Only now: a run, which needs none, ends sooner.

    written.append(stem.with_name(stem.name + '.pdf'))
    with backend_pdf.PdfPages(written[-1]) as pdf:
      for page in pages:
        pdf.savefig(page)
  return written
