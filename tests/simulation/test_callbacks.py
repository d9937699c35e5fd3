# SPDX-License-Identifier: Apache-2.0
"""Callbacks: when they are called, early stopping that survives interruptions, and what becomes of
a run whose callback fails."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from fednar_tff import simulation
from tests.simulation import small_runs

pytestmark = pytest.mark.usefixtures('in_process_runtime')


@pytest.fixture
def start(task, processes):
  # With states of clients, which have to stay in step with the server's.
  return functools.partial(small_runs.start, task, processes['scaffold'])


class Recorder(simulation.Callback):
  def __init__(self, fails_at=None, error=None):
    self.calls = []
    self._fails_at, self._error = fails_at, error or ValueError('two\nlines')

  def _note(self, *call):
    self.calls.append(call)
    if call == self._fails_at:
      raise self._error

  def on_start(self, run, history):
    self._note('start', len(history), run.round_num)

  def on_round(self, run, progress):
    assert progress is run.last
    self._note('round', progress.round_num)

  def on_evaluation(self, run, progress):
    assert progress.metrics['test_accuracy'] == pytest.approx(run.evaluate()['accuracy'])
    self._note('evaluation', progress.round_num)

  def on_end(self, run, error):
    self._note('end', type(error).__name__)


def rounds_of(run):
  return [progress.round_num for progress in run]


def test_each_method_is_called_at_its_time(start, tmp_path):
  first, second = Recorder(), Recorder()
  run = start(tmp_path, total_rounds=4, callbacks=[first, second])
  assert first.calls == [('start', 0, 0)]
  assert rounds_of(run) == [1, 2, 3, 4] and rounds_of(run) == []
  run.close()
  assert first.calls == second.calls
  assert first.calls[1:] == [
    ('round', 1),
    ('round', 2),
    ('round', 3),
    ('evaluation', 3),
    ('round', 4),
    ('evaluation', 4),
    ('end', 'NoneType'),
  ]
  resumed = Recorder()
  start(tmp_path, total_rounds=5, callbacks=[resumed]).finish(quiet=True)
  assert resumed.calls == [('start', 4, 4), ('round', 5), ('evaluation', 5), ('end', 'NoneType')]


def test_the_description_says_what_the_run_is(start, tmp_path):
  run = start(tmp_path)
  assert run.description['batch_size'] == 10 and run.output_dir == tmp_path
  assert run.description['hparams/client_work/max_norm'] == '0.5'
  run.close()
  assert start().output_dir is None


class FakeRun:
  reason = None

  def stop(self, reason):
    self.reason = reason


@pytest.mark.parametrize(
  ('arguments', 'values', 'stops_at', 'best'),
  [
    ({'patience': 2}, [0.5, 0.6, 0.6, 0.55, 0.9], 4, 0.6),
    ({'patience': 2}, [0.5, None, 0.4, None, None, 0.6, 0.5, 0.7], None, 0.7),
    ({'patience': 2, 'mode': 'min'}, [2.0, 1.0, 1.5, 1.0], 4, 1.0),
    ({'patience': 1, 'min_delta': 0.25}, [0.5, 0.75, 0.9], 2, 0.5),
    ({'patience': 1, 'min_delta': 0.25}, [0.5, 0.8, 0.9], 3, 0.8),
    ({'patience': 2}, [math.nan, math.nan], 2, None),
    ({'patience': 2}, [math.nan, 0.1, math.nan, 0.2], None, 0.2),
  ],
)
def test_early_stopping_counts_measurements_that_are_not_better(arguments, values, stops_at, best):
  stopping, run = simulation.EarlyStopping('accuracy', **arguments), FakeRun()
  for _ in range(2):  # A second run starts anew.
    run.reason = None
    stopping.on_start(run, [])
    for round_num, value in enumerate(values, start=1):
      stopping.on_round(run, simulation.Progress(round_num, {'accuracy': value}, 1.0))
      if run.reason:
        break
    assert (round_num if run.reason else None) == stops_at
    assert stopping.best == best


def early_stopping():
  # The learning rate only falls: best in the first round, not better in the three that follow.
  return simulation.EarlyStopping('learning_rate', patience=3)


def assert_same_run(found, expected):
  for x, y in zip(*(tf.nest.flatten(list(r.model_weights.trainable)) for r in (found, expected))):
    np.testing.assert_array_equal(x, y)
  assert found.client_states.client_ids() == expected.client_states.client_ids()
  texts = [(r.output_dir / 'metrics.csv').read_bytes() for r in (found, expected)]
  assert texts[0] == texts[1]


@pytest.mark.parametrize('rounds_before', [1, 2, 3])
def test_an_interrupted_run_stops_where_the_uninterrupted_one_does(start, tmp_path, rounds_before):
  whole = start(tmp_path / 'whole', callbacks=[early_stopping()])
  assert whole.finish(quiet=True).round_num == 4
  assert whole.stop_reason == (
    'learning_rate was best in round 1 and not better in 3 measurements since'
  )
  part = start(tmp_path / 'part', callbacks=[early_stopping()])
  for _ in range(rounds_before):
    next(part)
  part.close()  # Without a checkpoint of what was done since the last, as a kill.
  resumed = start(tmp_path / 'part', callbacks=[early_stopping()])
  assert resumed.round_num == rounds_before - rounds_before % 2
  assert resumed.finish(quiet=True).round_num == 4
  assert_same_run(resumed, whole)


def test_a_run_that_was_stopped_stays_so_and_goes_on_without_the_callback(start, tmp_path):
  start(tmp_path, callbacks=[early_stopping()]).finish(quiet=True)
  again = start(tmp_path, total_rounds=9, callbacks=[early_stopping()])
  assert again.stop_reason and rounds_of(again) == [] and again.round_num == 4
  assert rounds_of(start(tmp_path)) == [5, 6, 7]


@pytest.mark.parametrize('fails_at', [('round', 3), ('evaluation', 3)])
def test_a_callback_that_raises_ends_the_run_with_what_is_done_saved(start, tmp_path, fails_at):
  whole = start(tmp_path / 'whole')
  whole.finish(quiet=True)
  failing, other = Recorder(fails_at), Recorder()
  run = start(tmp_path / 'part', callbacks=[other, failing])
  message = (
    f'Recorder.on_{fails_at[0]} failed after round 3 and ended the run: ValueError: two lines'
  )
  with pytest.raises(simulation.CallbackError) as caught:
    run.finish(quiet=True)
  assert str(caught.value) == message and isinstance(caught.value.__cause__, ValueError)
  for recorder in (failing, other):
    assert recorder.calls[-1] == ('end', 'CallbackError')
    assert [c[0] for c in recorder.calls].count('end') == 1
  resumed = start(tmp_path / 'part')
  assert resumed.round_num == 3  # Though checkpoints are due every second round.
  resumed.finish(quiet=True)
  assert_same_run(resumed, whole)


@pytest.mark.parametrize('error', [KeyboardInterrupt(), SystemExit(3)])
def test_an_interruption_within_a_callback_is_one_of_the_run(start, tmp_path, error):
  recorder = Recorder(('round', 3), error)
  with pytest.raises(type(error)):
    start(tmp_path, callbacks=[recorder]).finish(quiet=True)
  assert recorder.calls[-1] == ('end', type(error).__name__)
  resumed = start(tmp_path)
  assert resumed.round_num == 3
  resumed.close()


def test_a_callback_that_fails_first_or_last_leaves_the_directory_free(start, tmp_path):
  other = Recorder()
  with pytest.raises(simulation.CallbackError, match='on_start failed after round 0'):
    start(tmp_path, callbacks=[Recorder(('start', 0, 0)), other])
  assert other.calls == [('end', 'CallbackError')]
  run = start(tmp_path, total_rounds=3, callbacks=[Recorder(('end', 'NoneType')), other])
  with pytest.raises(
    simulation.CallbackError, match='at the end of the run, whose rounds are saved'
  ):
    run.finish(quiet=True)
  assert other.calls[-1] == ('end', 'NoneType')  # Though the one before it failed.
  assert rounds_of(start(tmp_path, total_rounds=4)) == [4]


def test_other_failures_reach_on_end(start, processes, monkeypatch):
  recorder = Recorder()
  run = start(callbacks=[recorder])
  next(run)
  monkeypatch.setattr(type(processes['scaffold']), 'next', property(lambda self: 1 / 0))
  with pytest.raises(ZeroDivisionError):
    next(run)
  assert recorder.calls[-1] == ('end', 'ZeroDivisionError')


def test_bad_input_is_one_line(start):
  with pytest.raises(TypeError, match='`callbacks` must be a list of `Callback`, found 3 in it'):
    start(callbacks=[3])
  for arguments, message in (
    ({'patience': 0}, '`patience` must be a positive integer, found 0'),
    ({'patience': 1, 'mode': 'most'}, "`mode` must be 'max' or 'min', found 'most'"),
    ({'patience': 1, 'min_delta': -1.0}, '`min_delta` must be a nonnegative number, found -1.0'),
  ):
    with pytest.raises(ValueError, match=message):
      simulation.EarlyStopping(**arguments)
  run = start(callbacks=[simulation.EarlyStopping('accuracy', patience=1)])
  with pytest.raises(simulation.CallbackError, match="no metric 'accuracy', only train_loss"):
    next(run)
