# SPDX-License-Identifier: Apache-2.0
"""Whether cost grows as the work does: `python -m benchmarks.scaling` (about ten minutes).

Rounds of 50, 100, 200 and 400 clients, with models of 0.1, 1 and 10 million weights (two hidden
layers), 2 steps of batch 10 each. For each model the four take turns, each in a process of its
own, so that the most memory that one held is its own. A line is fitted to the seconds by least
squares. Each model is kept in runs/bench for itself (`--widths 280 960` measures some), and
`benchmarks.page` draws docs/images/scaling.png.
"""

import argparse
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks import ratios, results, turns, workloads

CLIENTS = (50, 100, 200, 400)
WIDTHS = (280, 960, 3120)  # 0.1, 1 and 10 million weights.
IMAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'images' / 'scaling.png'


def num_weights(width: int) -> int:
  """Returns the weights, biases included, of the model with two hidden layers of a width."""
  widths = [workloads.NUM_FEATURES, width, width, workloads.NUM_CLASSES]
  return sum((inputs + 1) * units for inputs, units in zip(widths, widths[1:]))


class Line(NamedTuple):
  """`start + slope * clients`, and the share of the variance that it explains."""

  start: float
  slope: float
  r_squared: float


def fit(clients: list[int], values: list[float]) -> Line:
  """Fits a line by least squares."""
  slope, start = np.polyfit(clients, values, 1)
  rest = np.asarray(values) - (start + slope * np.asarray(clients))
  total = np.sum(np.square(values - np.mean(values)))
  return Line(float(start), float(slope), float(1 - np.sum(np.square(rest)) / total))


def measure(width: int, clients: tuple[int, ...], num_turns: int, rounds: int) -> dict[str, Any]:
  """Returns the seconds of each turn and the peak megabytes, by the number of clients."""
  places = [turns.Place(str(n), 'packed', f'mlp{width}x{n}') for n in clients]
  taken = turns.take(places, num_turns, rounds)
  for n, reason in taken.skipped.items():
    raise SystemExit(f'{n} clients, width {width}: {reason}')
  return {'seconds': taken.seconds, 'megabytes': taken.peak_megabytes}


def lines(model: dict[str, Any]) -> tuple[Line, Line]:
  """Returns the lines of the median seconds and of the megabytes of one model."""
  clients = [int(n) for n in model['seconds']]
  medians = [ratios.spread(values).median for values in model['seconds'].values()]
  return fit(clients, medians), fit(clients, list(model['megabytes'].values()))


def models_of(measurements: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the measured models by their number of weights, the smallest one first."""
  found = [record for record in measurements.values() if record['kind'] == 'scaling']
  found.sort(key=lambda record: record['weights'])
  return {f'{record["weights"]:,}': record for record in found}


def plot(models: Mapping[str, Any], path: pathlib.Path) -> None:
  """Draws seconds and memory against the clients of a round, a line for each model."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout='constrained')
  for name, model in models.items():
    clients = [int(n) for n in model['seconds']]
    spreads = [ratios.spread(values) for values in model['seconds'].values()]
    medians = np.array([s.median for s in spreads])
    errors = [medians - [s.least for s in spreads], [s.most for s in spreads] - medians]
    bars = left.errorbar(
      clients, medians, errors, fmt='o', markersize=4, capsize=5, label=f'{name} weights'
    )
    color, line = bars.lines[0].get_color(), lines(model)[0]
    between = np.linspace(min(clients), max(clients), 100)  # A line is a curve on these axes.
    left.plot(between, line.start + line.slope * between, color=color, linewidth=1)
    right.plot(
      clients, list(model['megabytes'].values()), 'o-', color=color, markersize=4, linewidth=1
    )
  left.set(ylabel='seconds a round', xscale='log', yscale='log')
  right.set(ylabel='most memory of the process, MB', xscale='log', ylim=(0, None))
  ticks = sorted({int(n) for model in models.values() for n in model['seconds']})
  for axes in (left, right):
    axes.set_xlabel('clients of a round')
    axes.set_xticks(ticks, map(str, ticks), minor=False)
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
  figure.legend(loc='outside lower center', ncols=3, frameon=False)
  path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(path, dpi=120, metadata={'Software': None})
  pyplot.close(figure)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--widths', type=int, nargs='+', default=WIDTHS, help='of hidden layers')
  parser.add_argument('--turns', type=int, default=5)
  parser.add_argument('--rounds', type=int, default=1, help='rounds of a turn')
  parser.add_argument(
    '--resume', action='store_true', help='skip it if it is there for this version'
  )
  arguments = parser.parse_args()
  for width in arguments.widths:
    name = f'scaling-{width}'
    if arguments.resume and results.is_done(name):
      print(f'{name}: is there already', flush=True)
      continue
    model = measure(width, CLIENTS, arguments.turns, arguments.rounds)
    results.save(
      name,
      {
        'kind': 'scaling',
        'turns': arguments.turns,
        'rounds': arguments.rounds,
        'weights': num_weights(width),
        **model,
      },
    )
    time, memory = lines(model)
    print(
      f'{num_weights(width):,} weights: {time.start:.3f} s + {1e3 * time.slope:.2f} ms a client '
      f'(R^2 {time.r_squared:.4f}); {memory.start:.0f} MB + {memory.slope:.3f} MB a client',
      flush=True,
    )


if __name__ == '__main__':
  main()
