# SPDX-License-Identifier: Apache-2.0
"""Contenders in processes: a tiny round of each of ours, and a line for each that is left out."""

import pathlib
import sys

import pytest

from benchmarks import contenders, rounds, scaling, turns, workloads

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
  monkeypatch.chdir(ROOT)


def test_opponent_without_its_environment_is_skipped_with_a_line(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(contenders, 'OPPONENTS_DIR', tmp_path)
  taken = turns.take([turns.Place('torch', 'torch', 'S-tiny')], 1, 1)
  assert not taken.seconds
  python = tmp_path / 'torch' / 'bin' / 'python'
  assert capsys.readouterr().err.strip().splitlines()[-1] == (
    f'skipped: torch: {python} is not there: `make opponents` makes it'
  )


def test_opponent_that_cannot_be_imported_is_skipped_with_its_last_words(tmp_path, monkeypatch):
  # An environment that has this Python, and no flwr.
  (tmp_path / 'flower' / 'bin').mkdir(parents=True)
  (tmp_path / 'flower' / 'bin' / 'python').symlink_to(sys.executable)
  monkeypatch.setattr(contenders, 'OPPONENTS_DIR', tmp_path)
  taken = turns.take([turns.Place('flower', 'flower', 'S-tiny')], 1, 1)
  assert 'No module named' in taken.skipped['flower']


def test_who_is_not_written_for_a_workload_is_said(capsys, monkeypatch):
  monkeypatch.setattr(turns, 'take', lambda places, *_: turns.Turns({}, {}, {}, {}))
  record = rounds.measure('T', ('packed', 'pfl', 'before'))
  assert record['skipped'] == {
    'pfl': 'it is not written for workload T',
    'before': '`--before=CHECKOUT` was not given',
  }
  assert capsys.readouterr().err.count('skipped: ') == 2


@pytest.mark.slow
def test_tiny_rounds_of_ours_take_turns(capsys):
  record = rounds.measure(
    'S-tiny', ('packed', 'bare', 'in_process_iterator'), num_turns=2, rounds=1
  )
  assert not record['skipped']
  assert set(record['seconds']) == {'matrix_float32', 'packed', 'bare', 'in_process_iterator'}
  assert all(len(times) == 2 and min(times) > 0 for times in record['seconds'].values())
  assert record['versions']['packed']['tensorflow-federated'] == '0.87.0'
  rounds.show('S1', record)
  assert 'in-process, our FedAvg-NAR, packed' in capsys.readouterr().out


def test_every_contender_has_an_environment_and_every_piece_ours():
  pins = {path.stem for path in (ROOT / 'benchmarks' / 'opponents').glob('*.txt')}
  assert pins == {c.environment for c in contenders.CONTENDERS.values() if c.environment}
  measured = set()
  for piece in rounds.PIECES.values():
    assert piece.contenders[0] == 'packed'
    measured |= {(piece.workload, key) for key in piece.contenders}
  expected = {
    (workload, key)
    for key, contender in contenders.CONTENDERS.items()
    for workload in contender.runs
    if not (workload == 'S' and contender.precision != 'float32')  # Nothing there to multiply.
  }
  assert measured - {('T', 'before')} == expected


def test_pins_are_exact():
  for path in (ROOT / 'benchmarks' / 'opponents').glob('*.txt'):
    lines = [line for line in path.read_text().splitlines() if not line.startswith('#')]
    assert lines and all(line.count('==') == 1 and ' ' not in line for line in lines), path


def test_pieces_are_chosen_by_name_workload_or_contenders():
  assert list(rounds.choose(['B2', 'A1'], None, None)) == ['B2', 'A1']
  assert set(rounds.choose(None, ['S'], None)) == {'S1', 'S2', 'S3', 'S4'}
  tiny = rounds.choose(None, ['S-tiny'], None)
  assert set(tiny) == {'S1-tiny', 'S2-tiny', 'S3-tiny', 'S4-tiny'}
  assert {piece.workload for piece in tiny.values()} == {'S-tiny'}
  assert rounds.choose(None, None, None) == rounds.PIECES
  (chosen,) = rounds.choose(None, ['A'], ['packed', 'torch']).values()
  assert chosen.contenders == ('packed', 'torch')
  assert workloads.get(chosen.workload) == workloads.WORKLOADS['A']


@pytest.mark.slow
def test_scaling_tells_seconds_and_memory_of_each_number_of_clients():
  model = scaling.measure(8, (2,), num_turns=1, rounds=1)
  assert set(model['seconds']) == set(model['megabytes']) == {'2'}
  assert model['megabytes']['2'] > 100  # TensorFlow alone is more.
