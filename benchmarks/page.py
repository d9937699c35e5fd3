# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/performance.md: `python -m benchmarks.page`.

The tables stand between markers, and are made of benchmarks/results.json alone. With `--collect`,
the measurements of runs/bench are taken into that file first. The text around the tables is
written by hand.
"""

import argparse
import pathlib
import re
import sys
from collections.abc import Iterable

from benchmarks import aims, contenders, ratios, results, scaling, workloads

PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'performance.md'
_BLOCK = re.compile(r'(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)', re.DOTALL)
_NOT_MEASURED = 'Not measured yet.'


def table(header: list[str], lines: Iterable[list[str]]) -> str:
  """Returns a table in Markdown."""
  rows = [header, ['---'] * len(header), *lines]
  return '\n'.join('| ' + ' | '.join(row) + ' |' for row in rows)


def _rounds_table(measurements, workload):
  """Returns the table of a workload: of each contender the newest run that it took part in."""
  lines, skipped, speeds = {}, {}, []
  for name, record in aims.newest(measurements, workload):
    own = dict(zip(_keys(record), ratios.rows(name, record), strict=True))
    lines = {**own, **lines}
    skipped = {**record['skipped'], **skipped}
    for kind in ('float32', 'bfloat16'):
      speed = ratios.matrix_speed(record, kind)
      if speed:
        speeds.append(f'{name} {kind} {speed.format(0)}')
  if not lines:
    return _NOT_MEASURED
  order = [*contenders.CONTENDERS, ratios.BEFORE]
  parts = [table(ratios.HEADER, [lines[key] for key in order if key in lines])]
  parts.append(f'Matrix speed of the runs, GFLOP/s: {"; ".join(sorted(speeds))}.')
  for key, reason in skipped.items():
    if key not in lines:
      parts.append(f'Left out: {key}: {reason}.')
  return '\n\n'.join(parts)


def _keys(record):
  return [key for key in record['seconds'] if key not in contenders.MATRICES]


def _runs_table(measurements):
  """Returns a line for each run: when, where, of which commit, how many turns."""
  lines = []
  for name, record in sorted(measurements.items()):
    turns = f'{record["turns"]} x {record["rounds"]}' if 'turns' in record else ''
    lines.append([name, record['date'], record['commit'], turns, record['machine']])
  return table(['run', 'when', 'commit', 'turns x rounds', 'machine'], lines)


def _versions(measurements):
  found = {}
  for record in measurements.values():
    for versions in record.get('versions', {}).values():
      found.update(versions)
  return ', '.join(f'{name} {found[name]}' for name in sorted(found)) + '.'


def _steps_table(measurements):
  record = measurements.get('optimizer_step')
  if not record:
    return _NOT_MEASURED
  lines = []
  for size, seconds in record['seconds'].items():
    _, clip = list(seconds)[:2]
    for name, values in seconds.items():
      milliseconds = ratios.spread(1e3 * value for value in values)
      ratio = ratios.spread(x / y for x, y in zip(values, seconds[clip], strict=True))
      lines.append([size, name, milliseconds.format(3), ratio.format()])
  return table(['weights', 'step', 'milliseconds: median (least to most)', f'over {clip}'], lines)


def _client_data_table(measurements):
  record = measurements.get('client_data')
  if not record:
    return _NOT_MEASURED
  lines = [[way, ratios.spread(ms).format(3)] for way, ms in record['milliseconds'].items()]
  return table(['', 'milliseconds a client: median (least to most)'], lines)


def _input_table(measurements):
  record = measurements.get('input')
  if not record:
    return _NOT_MEASURED
  training = next(iter(record['seconds'].values()))
  lines = []
  for part, seconds in record['seconds'].items():
    share = ratios.spread(100 * x / y for x, y in zip(seconds, training, strict=True))
    lines.append([part, ratios.spread(seconds).format(3), share.format(1) + ' %'])
  return table(['', 'seconds a round: median (least to most)', 'of training'], lines)


def _one_dnn_table(measurements):
  """Returns what oneDNN brings on each workload, by the newest run that has both."""
  lines = []
  for workload in workloads.WORKLOADS:
    for name, record in aims.newest(measurements, workload):
      ratio = ratios.ratio(record, ratios.OURS, 'packed_no_one_dnn')
      if ratio:
        lines.append([workload, ratio.format(), name])
        break
  return table(['', 'with it over without', 'run'], lines) if lines else _NOT_MEASURED


def _scaling_table(measurements):
  models = scaling.models_of(measurements)
  if not models:
    return _NOT_MEASURED
  clients = list(next(iter(models.values()))['seconds'])
  lines = []
  for name, model in models.items():
    medians = [ratios.spread(model['seconds'][n]).median for n in clients]
    memory = [f'{model["megabytes"][n]:.0f}' for n in clients]
    time, _ = scaling.lines(model)
    lines.append(
      [
        name,
        ' / '.join(f'{median:.2f}' for median in medians),
        f'{time.start:.2f} s + {1e3 * time.slope:.2f} ms a client, R² {time.r_squared:.4f}',
        ' / '.join(memory),
      ]
    )
  of = ' / '.join(clients)
  header = [
    'weights',
    f'seconds a round of {of} clients',
    'line fitted',
    f'MB at most, {of} clients',
  ]
  return f'{table(header, lines)}\n\n![Seconds and memory of a round](images/scaling.png)'


def blocks(measurements: aims.Measurements) -> dict[str, str]:
  """Returns what stands between the markers, by name."""
  return {
    'aims': table(aims.HEADER, aims.rows(measurements)),
    **{name: _rounds_table(measurements, name) for name in workloads.WORKLOADS},
    'steps': _steps_table(measurements),
    'client_data': _client_data_table(measurements),
    'input': _input_table(measurements),
    'one_dnn': _one_dnn_table(measurements),
    'scaling': _scaling_table(measurements),
    'runs': _runs_table(measurements),
    'versions': _versions(measurements),
  }


def write(text: str, measurements: aims.Measurements) -> str:
  """Returns a page with what is between its markers written anew.

  Raises:
    ValueError: If a block has no place in the page, or a place no block.
  """
  made = blocks(measurements)
  found = {match[2] for match in _BLOCK.finditer(text)}
  if found != set(made):
    raise ValueError(f'The blocks of the page must be {sorted(made)}, found {sorted(found)}.')
  return _BLOCK.sub(lambda match: f'{match[1]}\n{made[match[2]]}\n\n{match[3]}', text)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--collect', action='store_true', help='take in runs/bench first')
  parser.add_argument('--check', action='store_true', help='fail if the page is not up to date')
  arguments = parser.parse_args()
  measurements = results.collect() if arguments.collect else results.load()
  text = PAGE.read_text()
  written = write(text, measurements)
  if arguments.check:
    sys.exit('docs/performance.md is not what benchmarks.page writes.' if written != text else 0)
  PAGE.write_text(written)
  models = scaling.models_of(measurements)
  if models:
    scaling.plot(models, scaling.IMAGE)
  print(PAGE.relative_to(pathlib.Path(__file__).parents[1]))


if __name__ == '__main__':
  main()
