# SPDX-License-Identifier: Apache-2.0
"""Ratios by turn, the tables that are made of them, and the committed page."""

import pytest

from benchmarks import aims, page, ratios, results, scaling

_WHERE = {'commit': 'def5678', 'date': '2026-01-01 00:00 UTC', 'machine': 'a machine'}


def _run(workload='B', date=_WHERE['date'], **seconds):
  return {
    'kind': 'rounds',
    'workload': workload,
    'turns': 3,
    'rounds': 2,
    'before': 'abc1234',
    'matrix_flop': 10**11,
    'seconds': seconds,
    'skipped': {'flower': 'it is not there'},
    'versions': {'torch': {'torch': '2.13.0'}},
    **_WHERE,
    'date': date,
  }


def _cells(text, first):
  (line,) = (line for line in text.splitlines() if line.startswith(f'| {first} |'))
  return [cell.strip() for cell in line.strip('|').split('|')]


def test_ratio_is_the_median_of_the_ratios_of_the_turns():
  record = _run(packed=[1.0, 4.0, 9.0], torch=[2.0, 2.0, 6.0])
  # Of 0.5, 2 and 1.5; the ratio of the medians would be 2.
  assert ratios.ratio(record, 'packed', 'torch') == ratios.Spread(1.5, 0.5, 2.0)
  assert ratios.ratio(record, 'packed', 'pfl') is None


def test_speed_and_share_are_of_the_same_turn():
  record = _run(packed=[1.0, 2.0, 4.0], matrix_float32=[0.5, 1.0, 1.0])
  flop = 789_657_600_000
  assert ratios.speed(record, 'packed') == ratios.Spread(flop / 2e9, flop / 4e9, flop / 1e9)
  # The machine did 2e11, 1e11 and 1e11 operations a second.
  shares = [flop / 1 / 2e11, flop / 2 / 1e11, flop / 4 / 1e11]
  assert ratios.share(record, 'packed').median == pytest.approx(sorted(shares)[1])
  assert ratios.share(record, 'packed').least == pytest.approx(min(shares))


def test_table_takes_the_newest_run_and_tells_who_was_left_out():
  old = _run(packed=[9.0] * 3, torch=[9.0] * 3, bare=[9.0] * 3)
  new = _run(date='2026-01-02 00:00 UTC', packed=[1.0] * 3, torch=[2.0, 2.0, 4.0])
  text = page.blocks({'B1': old, 'B2': new})['B']
  assert _cells(text, 'PyTorch')[1:3] == ['2.000 (2.000 to 4.000)', '0.50 (0.25 to 0.50)']
  assert _cells(text, 'PyTorch')[-1] == 'B2'
  assert _cells(text, 'bare tf.range loop')[-1] == 'B1'
  assert 'Left out: flower: it is not there.' in text


def test_what_one_dnn_brings_is_a_line_for_each_workload():
  old = _run(packed=[1.0] * 3, packed_no_one_dnn=[4.0] * 3)
  new = _run(date='2026-01-02 00:00 UTC', packed=[1.0, 3.0, 2.0], packed_no_one_dnn=[2.0, 4.0, 2.0])
  text = page.blocks({'B8': old, 'B9': new, 'A4': _run('A', packed=[1.0])})['one_dnn']
  assert _cells(text, 'B') == ['B', '0.75 (0.50 to 1.00)', 'B9']
  assert '| A |' not in text
  assert page.blocks({})['one_dnn'] == 'Not measured yet.'


def test_aims_are_met_missed_or_not_measured():
  record = _run(packed=[1.0] * 3, packed_bfloat16=[0.7] * 3, bare=[1.0] * 3)
  text = page.table(aims.HEADER, aims.rows({'B1': record}))
  assert _cells(text, 'B, bfloat16 over float32, both ours')[2:] == [
    *('<= 0.65', '0.70 (0.70 to 0.70)', '**missed**', 'B1')
  ]
  assert _cells(text, 'B, packed over the bare loop')[4] == 'met'
  assert _cells(text, 'T over PyTorch')[3:] == ['not measured', '', '']


def test_a_ratio_is_not_formed_across_runs():
  measured = {'B1': _run(packed_bfloat16=[0.7] * 3), 'B2': _run(packed=[1.0] * 3)}
  text = page.table(aims.HEADER, aims.rows(measured))
  assert _cells(text, 'B, bfloat16 over float32, both ours')[3] == 'not measured'


def test_only_what_is_between_the_markers_is_written():
  names = page.blocks({})
  text = 'by hand\n' + ''.join(f'<!-- begin {n} -->\nold\n<!-- end {n} -->\n' for n in names)
  written = page.write(text, {})
  assert written.startswith('by hand\n') and 'old' not in written
  assert page.write(written, {}) == written
  with pytest.raises(ValueError, match='The blocks of the page must be'):
    page.write(text.replace('begin aims', 'begin claims'), {})


def test_committed_page_is_made_of_the_committed_results():
  text = page.PAGE.read_text()
  assert page.write(text, results.load()) == text, 'run `python -m benchmarks.page`'


def test_results_are_kept_and_collected(tmp_path, monkeypatch):
  monkeypatch.setattr(results, 'FOLDER', tmp_path / 'runs')
  monkeypatch.setattr(results, 'COMMITTED', tmp_path / 'results.json')
  assert not results.is_done('A1')
  results.save('A1', {'kind': 'rounds', 'seconds': {'packed': [1.23456789]}})
  results.save('A-tiny-packed', {'kind': 'rounds'})
  assert results.is_done('A1')
  monkeypatch.setattr(results, '_code', lambda: 'of another version')
  assert not results.is_done('A1')
  collected = results.collect()
  assert collected == results.load()
  assert list(collected) == ['A1']
  assert collected['A1']['seconds'] == {'packed': [1.235]}


def test_line_is_fitted_and_plotted(tmp_path):
  line = scaling.fit([50, 100, 200], [1.5, 2.5, 4.5])
  assert line == pytest.approx((0.5, 0.02, 1.0))
  assert scaling.fit([50, 100, 200], [1.0, 3.0, 2.0]).r_squared < 0.5
  model = {
    'seconds': {'50': [1.0, 2.0], '100': [3.0, 3.0]},
    'megabytes': {'50': 900.0, '100': 910.0},
  }
  large = {**model, 'kind': 'scaling', 'weights': 10**6}
  small = {**model, 'kind': 'scaling', 'weights': 101_730}
  models = scaling.models_of({'scaling-960': large, 'B1': _run(), 'scaling-280': small})
  assert list(models) == ['101,730', '1,000,000']
  scaling.plot(models, tmp_path / 'scaling.png')
  assert (tmp_path / 'scaling.png').stat().st_size > 5000
  text = page.blocks({'scaling-280': {**_WHERE, **small}})['scaling']
  assert _cells(text, '101,730') == [
    *('101,730', '1.50 / 3.00', '0.00 s + 30.00 ms a client, R² 1.0000', '900 / 910')
  ]
