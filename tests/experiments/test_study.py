# SPDX-License-Identifier: Apache-2.0
"""The study: its list of runs, its file of results, its verdicts and its page."""

import json
import pathlib
import random
import re
import subprocess
import sys

import pytest

from experiments.definition import parsing, study
from experiments.definition.settings import UsageError
from experiments.reading import claims, results, runs, study_page
from experiments.running import grid, studying
from fednar_tff import processor

CLAIMS = ('C1', 'C2', 'C3', 'C4', 'C5', 'C6')


def make_record(name, settings, accuracy, clipped=(1.0, 9.0), norms=(2.0, 4.0), diverged=False):
  """A finished run whose accuracy is constant, and whose clipping changes once, in mid-run."""
  settings = parsing.parse(parsing.as_arguments(settings))
  rounds = list(range(5, settings['total_rounds'] + 1, 5))
  late = [r > settings['total_rounds'] / 2 for r in rounds]
  return {
    'name': name,
    'settings': settings,
    'final_test_accuracy': accuracy,
    'diverged': diverged,
    'version': 'v',
    'curves': {
      'round_num': rounds,
      'test_accuracy': [accuracy] * len(rounds),
      'clipped_steps': [clipped[x] for x in late],
      'total_steps': [200.0] * len(rounds),
      'mean_clipped_norm': [norms[x] for x in late],
    },
  }


def make_records(accuracy_fn, stages=study.STAGES, **clipping):
  """All runs of the study; `accuracy_fn(settings, noise)` is the accuracy of one."""
  generator = random.Random(0)
  return {
    name: make_record(name, s, accuracy_fn(s, generator.uniform(-0.002, 0.002)), **clipping)
    for name, s in study.runs(stages).items()
  }


def as_in_the_paper(s, noise):
  """Weight decay hurts, more with many steps and uneven data, and NAR wins most of it back."""
  if s['task'] == 'shakespeare':
    hurts = 100.0  # Its weight decays are as much smaller.
  else:
    hurts = 2.0 if (s['alpha'], s['local_steps']) == study.MAIN_SETTING else 0.5
  loss = hurts * s['weight_decay'] * (0.2 if s['client_optimizer'] == 'nar' else 1.0)
  return 0.6 - loss + noise


def verdicts(records, seconds=()):
  found = claims.judge_all([results.to_run(r) for r in records.values()], seconds)
  return {claim.name: claim.verdict for claim in found}


def test_stages_have_the_runs_of_the_protocol():
  counts = {stage: len(study.runs([stage])) for stage in study.STAGES}
  assert counts == {
    'table1': 6 * 3 * 2 * 3,
    'weight_decay': 6 * 10 * 3,
    'other_settings': 60,
    'table2': 6 * 2 * 2 * 3,
  }
  assert {stage: len(study.runs([stage])) for stage in study.RESNET_STAGES} == {
    'resnet18_weight_decay': 3 * 10 * 3,
    'resnet18_table1': counts['table1'],
    'resnet18_other_settings': counts['other_settings'],
  }
  assert len(study.runs(['bounds'])) == 4 * 5 * 2 * 3
  # Some runs of Table 1 are among the weight decays: one run, not two.
  assert len(study.runs(study.STAGES)) < sum(counts.values())


def test_no_run_of_the_study_has_the_seed_or_the_data_of_the_pilot():
  for settings in study.runs(study.COUNTING_STAGES).values():
    assert settings['seed'] != study.PILOT_SEED and 'validation_share' not in settings
  for settings in study.runs(study.PILOT_STAGES).values():
    assert settings['seed'] == study.PILOT_SEED and settings['validation_share'] == 0.1
    assert settings['client_optimizer'] != 'nar' and settings['weight_decay'] == 0


@pytest.mark.parametrize('name', study.runs(study.ALL_STAGES))
def test_train_takes_the_settings_of_each_run(name):
  settings = study.runs(study.ALL_STAGES)[name]
  resolved = parsing.parse(parsing.as_arguments(settings))
  assert {k: resolved[k] for k in settings} == settings


def test_rows_are_thinned_to_evaluations_with_means_since_the_one_before():
  rows = [
    {'round_num': 1, 'clipped_steps': 0, 'total_steps': 10, 'train_loss': 3.0},
    {
      'round_num': 2,
      'clipped_steps': 1,
      'total_steps': 10,
      'train_loss': 1.0,
      'mean_clipped_norm': 2.0,
      'test_accuracy': 0.5,
      'model_norm': 7.5,
    },
    {'round_num': 3, 'clipped_steps': 3, 'total_steps': 10, 'mean_clipped_norm': 4.0},
    {
      'round_num': 4,
      'clipped_steps': 1,
      'total_steps': 10,
      'mean_clipped_norm': 8.0,
      'test_accuracy': 0.6,
    },
  ]
  assert results.thin(rows) == [
    {
      'round_num': 2,
      'test_accuracy': 0.5,
      'model_norm': 7.5,
      'train_loss': 2.0,
      'clipped_steps': 0.5,
      'total_steps': 10.0,
      'mean_clipped_norm': 2.0,
    },
    {
      'round_num': 4,
      'test_accuracy': 0.6,
      'clipped_steps': 2.0,
      'total_steps': 10.0,
      'mean_clipped_norm': 5.0,
    },
  ]


def test_pairs_of_another_version_or_processor_are_named():
  records = make_records(as_in_the_paper, stages=['precision'])
  assert study_page.unlike_pairs(records).startswith('Baseline and NAR of each pair have one ')
  nar = next(name for name in records if '_nar_' in name and 'seed1' in name)
  records[nar]['version'] = 'w'
  assert study_page.unlike_pairs(records) == (
    'Not of one version and one kind of processor are the pairs of '
    '`cifar10_fed_avg_nar_alpha0.3_steps20_wd0.05_seed1_bfloat16` (baseline v on a processor that '
    'was not kept, NAR w on a processor that was not kept).'
  )


def test_a_record_becomes_the_run_that_it_was_made_of():
  settings = parsing.parse(['--task=cifar10', '--total_rounds=2', '--seed=4', '--alpha=1'])
  rows = [{'round_num': r, 'test_accuracy': 0.1 * r, 'total_steps': 3.0} for r in (1, 2)]
  before = runs.Run(pathlib.Path('x'), settings, rows, is_finished=True)
  record = json.loads(json.dumps(results.to_record('x', before, version='v')))
  after = results.to_run(record)
  assert (after.key, after.seeds, after.rows) == (before.key, before.seeds, before.rows)
  assert after.counts and after.accuracy('best') == 0.2


def test_results_survive_writing_and_reading(tmp_path):
  path = tmp_path / 'deep' / 'results.jsonl'
  assert results.read(path) == {}
  results.write(path, {'b': {'name': 'b'}, 'a': {'name': 'a'}})
  assert path.read_text() == '{"name":"a"}\n{"name":"b"}\n'
  assert results.read(path) == {'a': {'name': 'a'}, 'b': {'name': 'b'}}


@pytest.mark.parametrize(
  'text', ['{"name": "a"\n', '{"x": 1}\n', '3\n', '{"name":"a"}\n{"name":"a"}\n']
)
def test_damaged_results_are_said_in_one_line(tmp_path, text):
  path = tmp_path / 'results.jsonl'
  path.write_text(text)
  with pytest.raises(UsageError, match=r'results.jsonl, line \d is'):
    results.read(path)


@pytest.mark.parametrize(
  ('claim', 'gone'),
  [
    ('C3', '_fed_avg_clip_alpha10_steps20_wd0.001_seed2'),
    ('C3', '_scaffold_clip_alpha0.3_steps20_wd0.05_seed1'),
    ('C4', '_fed_avgm_clip_alpha0.3_steps20_wd0.01_seed0'),
  ],
)
def test_a_claim_about_weight_decay_waits_for_each_run_that_it_may_need(claim, gone):
  records = make_records(as_in_the_paper)
  some = {name: r for name, r in records.items() if gone not in name}
  assert len(some) == len(records) - 1
  assert verdicts(some)[claim] == claims.NOT_TESTED


def test_what_is_won_back_is_a_share_of_what_the_same_seeds_lost():
  # Seed 1 has no loss: its gain does not count.
  assert claims.share_recovered({0: 1.0, 1: 50.0}, {0: 4.0, 2: 100.0}) == 0.25
  assert claims.describe_share({0: 1.0}, {0: 4.0}) == '25.0 % of what was lost'
  assert claims.describe_share({0: 1.0}, {0: -4.0}) == 'nothing was lost'
  assert claims.describe_share({0: 1.0}, {1: 4.0}) == 'missing'


def test_runs_that_differ_in_what_is_no_part_of_a_cell_are_not_mixed():
  records = make_records(as_in_the_paper, stages=['bounds'])
  with pytest.raises(ValueError, match='differ in what is no part of a cell'):
    claims.Cells([results.to_run(r) for r in records.values()])


def test_runs_as_in_the_paper_support_its_claims():
  found = verdicts(make_records(as_in_the_paper), seconds=[(1.0, 1.0)])
  assert found == dict.fromkeys(CLAIMS, claims.SUPPORTED)


def test_nar_that_loses_is_not_supported():
  def worse(s, noise):
    return as_in_the_paper(s, noise) - 0.4 * (s['client_optimizer'] == 'nar')

  found = verdicts(make_records(worse))
  assert found['C1'] == found['C2'] == found['C4'] == claims.NOT_SUPPORTED


@pytest.mark.parametrize(('table', 'other'), [('C1', 'C2'), ('C2', 'C1')])
def test_each_table_is_judged_by_its_own_runs(table, other):
  task = {'C1': 'cifar10', 'C2': 'shakespeare'}[table]

  def worse(s, noise):
    loses = s['task'] == task and s['client_optimizer'] == 'nar'
    return as_in_the_paper(s, noise) - 0.4 * loses

  found = verdicts(make_records(worse))
  assert (found[table], found[other]) == (claims.NOT_SUPPORTED, claims.SUPPORTED)


@pytest.mark.parametrize(
  ('table', 'cell'),
  [
    ('C1', {'algorithm': 'fed_avgm', 'alpha': 10.0}),
    ('C2', {'task': 'shakespeare', 'algorithm': 'scaffold', 'weight_decay': 1e-4}),
  ],
)
def test_one_cell_that_loses_makes_the_table_undecided(table, cell):
  def one_loses(s, noise):
    loses = s['client_optimizer'] == 'nar' and cell.items() <= s.items()
    return as_in_the_paper(s, noise) - 0.1 * loses

  assert verdicts(make_records(one_loses))[table] == claims.UNDECIDED


def test_noise_without_effect_decides_nothing_or_against():
  found = verdicts(make_records(lambda s, noise: 0.5 + noise, clipped=(5.0, 5.0), norms=(3.0, 3.0)))
  assert found['C1'] == found['C2'] == claims.UNDECIDED
  assert found['C3'] == found['C5'] == claims.NOT_SUPPORTED


def test_clipping_that_falls_is_not_supported():
  assert verdicts(make_records(as_in_the_paper, norms=(4.0, 2.0)))['C5'] == claims.NOT_SUPPORTED


def test_each_model_is_judged_by_its_own_runs():
  def with_norms_it_loses(s, noise):
    loses = s['model'] == 'small_resnet18' and s['client_optimizer'] == 'nar'
    return as_in_the_paper(s, noise) - 0.4 * loses

  records = make_records(with_norms_it_loses, [*study.STAGES, *study.RESNET_STAGES])
  made = study_page.blocks(records, seconds=[(1.0, 1.0)])
  assert made['claims'].count('**supported**') == 6
  rows = made['claims_resnet18'].split('\n')[2:]
  verdicts_by_name = {row.split(' | ')[0].strip('| '): row.split(' | ')[2] for row in rows}
  assert verdicts_by_name == {
    'C1': '**not supported**', 'C3': '**supported**', 'C4': '**not supported**',
    'C5': '**supported**',
  }  # fmt: skip
  # The other tables are those without these runs.
  assert study_page.blocks(make_records(as_in_the_paper))['table1'] == made['table1']
  assert made['resnet18_table1'] != made['table1'] and 'missing' not in made['resnet18_table1']
  best = made['resnet18_best'].split('\n')[2:]
  assert [row.split(' | ')[0].strip('| ') for row in best] == ['FedAvg', 'SCAFFOLD', 'FedAvgM']
  for row in best:  # Its best is 40 points below the baseline's, but for the noise.
    assert abs(float(row.split(' | ')[3].split()[0]) + 40) < 0.4


def test_nothing_is_decided_before_all_seeds_are_there():
  records = make_records(as_in_the_paper)
  some = {name: r for name, r in records.items() if not name.endswith('seed2')}
  assert verdicts(some) == dict.fromkeys(CLAIMS, claims.NOT_TESTED)
  assert verdicts({}) == dict.fromkeys(CLAIMS, claims.NOT_TESTED)


@pytest.mark.parametrize(
  ('pairs', 'verdict', 'because'),
  [
    # The ratios are 1.2, 1.04 and 0.5; that of the medians would be 1.2.
    ([(1.2, 1.0), (2.08, 2.0), (0.5, 1.0)], claims.SUPPORTED, '1.04 times as long'),
    ([(1.2, 1.0), (2.12, 2.0), (0.5, 1.0)], claims.NOT_SUPPORTED, '1.06 times as long'),
  ],
)
def test_cost_is_the_median_of_the_ratios_of_the_turns(pairs, verdict, because):
  found = claims.judge_cost(pairs)
  assert found.verdict == verdict and because in found.because
  assert found.because.endswith('(median of 3 turns, which say 0.50 to 1.20)')


def test_seconds_of_rounds_are_those_of_one_run_of_the_benchmark(tmp_path):
  path = tmp_path / 'results.json'
  assert results.read_seconds_of_rounds(path) == []
  path.write_text('{"B1": {}}')
  assert results.read_seconds_of_rounds(path) == []
  path.write_text('{"B7": {"seconds": {"packed": [1.0, 2.0], "clipped": [3.0, 4.0]}}}')
  assert results.read_seconds_of_rounds(path) == [(1.0, 3.0), (2.0, 4.0)]
  for damaged in ('{', '{"B7": {"seconds": {"packed": [1.0], "clipped": []}}}', '{"B7": {}}'):
    path.write_text(damaged)
    with pytest.raises(UsageError, match=r'results.json is damaged \('):
      results.read_seconds_of_rounds(path)


@pytest.mark.parametrize(('stage', 'guess'), [('table1', 10.0), ('table2', 100 / 80)])
def test_a_diverged_run_counts_as_a_guess(stage, guess):
  settings = next(iter(study.runs([stage]).values()))
  run = results.to_run(make_record('x', settings, 0.6, diverged=True))
  cells = claims.Cells([run])
  i = run.identity
  key = (i.get('alpha'), i['local_steps'], i['weight_decay'], i['client_optimizer'])
  assert cells.accuracy(i['algorithm'], *key) == {0: guess}


def test_growth_compares_the_last_fifth_of_the_rounds_with_the_first():
  settings = next(iter(study.runs(['table1']).values()))
  run = results.to_run(make_record('x', settings, 0.6, clipped=(1.0, 9.0)))
  assert claims.growth(run, 'clipped_steps') == 8.0
  assert claims.growth(run, 'train_loss') is None


def test_page_is_filled_between_its_marks_and_nowhere_else():
  page = 'a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n'
  assert (
    study_page.fill(page, {'x': 'new\\1'}) == 'a\n<!-- begin x -->\nnew\\1\n<!-- end x -->\nb\n'
  )
  with pytest.raises(UsageError, match='no place for y'):
    study_page.fill(page, {'y': ''})


def test_bfloat16_is_compared_by_seed_with_the_same_runs_in_float32():
  def accuracy(s, noise):
    loss = 0.01 if s.get('precision') == 'bfloat16' else 0.0
    return 0.5 + 0.1 * s['seed'] - loss + (0.02 if s['client_optimizer'] == 'nar' else 0.0)

  records = make_records(accuracy, stages=['table1', 'precision'])
  table = study_page.blocks(records)['precision'].split('\n')[2:]
  assert table == [
    '| baseline | 60.00 ± 10.00 (3) | 59.00 ± 10.00 (3) | -1.00 [-1.00, -1.00] |',
    '| NAR | 62.00 ± 10.00 (3) | 61.00 ± 10.00 (3) | -1.00 [-1.00, -1.00] |',
  ]
  # And nowhere else: the other tables are those without these runs.
  without = study_page.blocks(make_records(accuracy, stages=['table1']))
  assert study_page.blocks(records)['table1'] == without['table1']


def test_bounds_are_compared_by_what_nar_wins_back_at_each():
  def accuracy(s, noise):
    lost = 0.2 if s['weight_decay'] == 0.1 else 0.0
    won = {1.0: 0.15, 2.0: 0.1, 3.0: 0.05}.get(s['max_norm'], 0.0)
    return 0.6 - lost + (won if lost and s['client_optimizer'] == 'nar' else 0.0)

  records = make_records(accuracy, stages=['bounds'])
  rows = study_page.blocks(records)['bounds'].split('\n')[2:]
  same, clipped = '60.00 ± 0.00 (3) | 60.00 ± 0.00 (3) | +0.00 [+0.00, +0.00]', '2.5'
  assert rows[2:5:2] == [
    f'| 1 | 0.01 | {same} | {clipped} |  |',
    '| 1 | 0.1 | 40.00 ± 0.00 (3) | 55.00 ± 0.00 (3) | +15.00 [+15.00, +15.00] | 2.5 | '
    '75.0 % of what was lost |',
  ]
  assert [row.split(' | ')[-1] for row in rows[9::5]] == [
    '50.0 % of what was lost |', '25.0 % of what was lost |', '0.0 % of what was lost |'
  ]  # fmt: skip
  # The last bound is that of the other stages: its runs are theirs, and no other's.
  assert set(study.runs(['bounds'])) - set(study.runs(['weight_decay'])) == {
    name for name in study.runs(['bounds']) if '_bound' in name
  }
  assert study_page.blocks({})['bounds'] == 'Missing, without a run: all 20 rows.'


def test_bounds_are_compared_where_each_has_its_best_weight_decay():
  def accuracy(s, noise):
    best = {'clip': 0.001, 'nar': 0.01}[s['client_optimizer']]
    # Seeds lie 10 points apart. At A = 1, NAR's best is 2 points higher, and falls by half as much.
    is_small_nar = s['client_optimizer'] == 'nar' and s['max_norm'] == 1
    fall = 0.1 if is_small_nar else 0.2
    return 0.5 + 0.1 * s['seed'] + 0.02 * is_small_nar - fall * (s['weight_decay'] != best)

  records = make_records(accuracy, stages=['bounds'])
  rows = study_page.blocks(records)['best_by_bound'].split('\n')[2:]
  falls = '20.00 ± 0.00 (3)'
  assert rows == [
    f'| 1 | 0.001 | 0.01 | +2.00 [+2.00, +2.00] | {falls} | 10.00 ± 0.00 (3) |',
    *(
      f'| {bound} | 0.001 | 0.01 | +0.00 [+0.00, +0.00] | {falls} | {falls} |'
      for bound in (2, 3, 6)
    ),
  ]
  # The best of a grid is not known before all of it is there.
  some = {name: r for name, r in records.items() if '_nar_' not in name or '_wd0.05_' not in name}
  assert study_page.blocks(some)['best_by_bound'] == (
    'Missing, for want of runs with some weight decay: all 4 rows.'
  )


def test_the_best_weight_decay_is_that_of_the_seeds_that_all_have():
  def accuracy(s, noise):
    return 0.5 + 0.1 * s['seed'] + 0.01 * (s['weight_decay'] == 0.001)

  records = make_records(accuracy, stages=['bounds'])
  some = {n: r for n, r in records.items() if '_wd0.01_' in n or '_seed0_' in n}
  found = claims.Cells([results.to_run(r) for n, r in some.items() if '_bound1' in n])
  # The mean of its three seeds is above that of the one that 0.001 has.
  assert claims.best_decay(found, 'fed_avg', study.MAIN_SETTING) == 0.001


def test_rows_without_a_run_are_counted_in_place_of_being_shown():
  records = make_records(as_in_the_paper, stages=['table1'])
  # Both runs of a cell are missing, and one of another.
  gone = ('fed_exp_nar_alpha1_', 'fed_exp_clip_alpha1_', 'fed_exp_clip_alpha10_')
  some = {name: r for name, r in records.items() if not any(text in name for text in gone)}
  table = study_page.blocks(some)['table1'].split('\n')
  assert len(table) == 2 + 17 + 2 and table[-1] == 'Missing, without a run: 1 of 18 rows.'
  assert [row.count('missing') for row in table if '| FedExP |' in row] == [0, 2]


def test_nar_is_compared_with_a_baseline_of_the_weight_decay_that_its_own_comes_to():
  def accuracy(s, noise):
    at = {'nar': 0.5, 'clip': 0.4 if s['weight_decay'] in (0.01, 0.05, 0.1) else 0.49}
    return at[s['client_optimizer']] + 0.1 * s['seed']

  records = make_records(accuracy, stages=['bounds', 'matched_decays'])
  rows = study_page.blocks(records)['matched_decays'].split('\n')[2:]
  nar, gain = '60.00 ± 10.00 (3)', '+10.00 [+10.00, +10.00]'
  control, left = '59.00 ± 10.00 (3)', '+1.00 [+1.00, +1.00]'
  assert rows == [
    f'| {bound:g} | {decay:g} | {nar} | {gain} | {matched / decay:.3f} | {matched:g} | {control} | '
    f'{left} |'
    for (bound, decay), found in study.MATCHED_DECAYS.items()
    for matched in found
  ]
  assert 'missing' in study_page.blocks({})['matched_decays']


def test_page_of_results(tmp_path, capsys):
  root, docs = pathlib.Path(__file__).parents[2], tmp_path / 'docs'
  docs.mkdir()
  for name in (f'docs/{study_page.PAGE}', study_page.README):
    (tmp_path / name).write_text((root / name).read_text())
  records = make_records(as_in_the_paper, [*study.STAGES, *study.RESNET_STAGES, 'bounds'])
  study_page.write(records, [(1.0, 1.0)], docs)
  readme = (tmp_path / study_page.README).read_text()
  assert '| C1 | NAR is at least as good' in readme and readme.count('**supported**') == 6
  text = (docs / study_page.PAGE).read_text()
  assert '| C1 | NAR is at least as good' in text and '**supported**' in text
  first = text.split('<!-- begin table1 -->')[1].split('\n')[3]
  # By hand: 60 - 2 * 0.05 * 100 = 50 without NAR, 58 with it, each with noise of 0.2 at the most.
  cells = [cell.strip() for cell in first.split('|')[1:-1]]
  assert cells[:3] == ['FedAvg', '0.05', '0.3'] and cells[-2:] == ['85.19, 87.64', '+2.45']
  baseline, nar = (float(cell.split()[0]) for cell in cells[3:5])
  assert abs(baseline - 50) < 0.2 and abs(nar - 58) < 0.2
  assert cells[6] == '2.5'  # 1 of 200 steps is clipped in the first half, 9 in the second.
  row = text.split('<!-- begin table2 -->')[1].split('\n')[4]
  # By hand: 60 - 100 * 0.001 * 100 = 50 without NAR, 58 with it.
  cells = [cell.strip() for cell in row.split('|')[1:-1]]
  assert cells[:2] == ['FedAvg', '0.001'] and cells[-2:] == ['40.05, 44.69', '+4.64']
  baseline, nar = (float(cell.split()[0]) for cell in cells[2:4])
  assert abs(baseline - 50) < 0.2 and abs(nar - 58) < 0.2
  drawn = {path.name for path in (docs / 'images').iterdir() if path.stat().st_size > 10_000}
  assert drawn == set(re.findall(r'\]\(images/(.*)\)', text))


def test_what_is_in_the_file_is_not_run_again():
  names, folder = list(study.runs(study.STAGES)), pathlib.Path('runs')
  (cell,) = studying.missing(set(names[1:]), study.STAGES, folder, threads=1).values()
  assert cell.directory == folder / names[0] and '--clients_per_device=1' in cell.arguments
  assert studying.missing(set(names), study.STAGES, folder, threads=1) == {}


def test_an_unknown_stage_is_one_line():
  with pytest.raises(UsageError, match='--stages=table9 is unknown: it takes pilot_rates, '):
    studying.check_stages(['table9'])


def small_cells(folder, names):
  """Cells that take seconds."""
  cells = {}
  for name in names:
    arguments = ['--task=synthetic', '--num_clients=4', '--clients_per_round=2', '--local_steps=1']
    arguments += ['--batch_size=5', '--total_rounds=2', '--rounds_per_evaluation=1']
    arguments.append(f'--output_dir={folder / name}')
    cells[name] = grid.Cell(folder / name, tuple(arguments), parsing.parse(arguments))
  return cells


def test_finished_runs_come_into_the_file_and_failed_ones_do_not(tmp_path, capsys, monkeypatch):
  monkeypatch.setenv('TF_ENABLE_ONEDNN_OPTS', '1')  # As `train` does, so that both say the same.
  target = tmp_path / 'results.jsonl'
  cells = small_cells(tmp_path, ['good', 'bad'])
  (tmp_path / 'bad').write_text('This is no directory.')
  command = [sys.executable, '-m', 'experiments.train', '--quiet']
  bad = grid.Cell(tmp_path, cells['bad'].arguments, cells['bad'].settings)
  assert not studying.run_all({'good': cells['good'], 'bad': bad}, command, target, 2, None)
  (record,) = results.read(target).values()
  result = json.loads((tmp_path / 'good' / 'result.json').read_text())
  assert record['name'] == 'good' and record['weights_sha256'] == result['weights_sha256']
  assert record['curves']['round_num'] == [1.0, 2.0] and record['seconds'] > 0
  assert record['processor'] == processor.describe() and record['processor']['name']
  assert 'study: failed (exit code 2): bad' in capsys.readouterr().err


def pilot_records(pilot_name, accuracy, clipped):
  """All runs of a pilot; `accuracy` and `clipped` say what one gives."""
  records = {}
  for name, settings in study.runs(study.PILOTS[pilot_name].stages()).items():
    records[name] = {
      **make_record(name, settings, accuracy(settings)),
      'curves': {'round_num': [20], 'clipped_steps': [clipped(settings)], 'total_steps': [1.0]},
    }
  return records


@pytest.mark.parametrize('pilot_name', study.PILOTS)
def test_a_pilot_chooses_by_its_rules(pilot_name):
  pilot = study.PILOTS[pilot_name]
  low, middle, high = pilot.rates
  bound = pilot.bounds[3]

  def accuracy(s):
    # Balanced data is easier, and no reason to choose its rate.
    easier = 0.3 if s.get('alpha') == 10.0 else 0.0
    by_rate = {low: 0.4, middle: 0.6, high: 0.5}[s['learning_rate']] + easier
    return by_rate - abs(s.get('server_learning_rate', 0.3) - 0.3)

  records = pilot_records(
    pilot_name, accuracy, lambda s: 0.099 * bound / s['max_norm'] if 'max_norm' in s else 0.0
  )
  chosen = {'learning_rate': middle, 'max_norm': bound, 'fed_adam': 0.1, 'fed_avgm': 0.3}
  assert study_page.choices(records, pilot_name) == chosen
  some = dict(list(records.items())[1:])
  assert study_page.choices(some, pilot_name) is None
  assert 'Nothing is chosen yet' in study_page.pilot(some, pilot_name)
  records[f'{pilot.variant}/{pilot.prefix}_fed_avg_lr{middle:g}']['diverged'] = True
  assert study_page.choices(records, pilot_name)['learning_rate'] == high


def test_a_pilot_whose_rates_all_diverged_is_finished_and_chooses_nothing():
  records = pilot_records('shakespeare', lambda s: 0.5, lambda s: 0.0)
  for record in records.values():
    record['diverged'] = True
  assert study_page.choices(records, 'shakespeare') is None
  assert 'all rates of one kind diverged' in study_page.pilot(records, 'shakespeare')
  with pytest.raises(UsageError, match='on shakespeare chose nothing: all rates of one kind'):
    studying.check_pilots(records, ['table2'])


def test_runs_that_count_wait_for_the_pilot_of_their_task_and_model(monkeypatch):
  records = pilot_records('shakespeare', lambda s: 0.5, lambda s: 0.0)
  with pytest.raises(UsageError, match='the pilot on cifar10 is not finished: run --stages=pilot'):
    studying.check_pilots(records, study.STAGES)
  chosen = study_page.choices(records, 'shakespeare')
  monkeypatch.setattr(study, 'chosen_settings', lambda task: chosen)
  studying.check_pilots(records, ['table2', *study.PILOT_STAGES])
  monkeypatch.setattr(study, 'chosen_settings', lambda task: {**chosen, 'max_norm': 99.0})
  with pytest.raises(UsageError, match='the pilot on shakespeare chooses .*, and experiments/'):
    studying.check_pilots(records, ['table2'])
  with pytest.raises(UsageError, match='on resnet18 is not finished: run --stages=pilot_resnet18_'):
    studying.check_pilots(records, ['resnet18_table1'])


def test_the_page_says_which_processors_there_were():
  old, new = {'name': 'x'}, {'processor': {'name': 'A', 'extensions': ['avx', 'avx2']}}
  text = study_page.processors({'1': new, '2': old, '3': new})
  assert text.endswith('A (avx2): 2 runs; not kept: 1 run.')
  assert study_page.processors({}).endswith('none yet.')


def test_the_version_is_dirty_by_code_and_not_by_results(tmp_path):
  def git(*arguments):
    author = ['-c', 'user.name=a', '-c', 'user.email=a@b']
    subprocess.run(['git', '-C', str(tmp_path), *author, *arguments], check=True)

  assert studying.version(tmp_path) is None
  git('init', '--quiet')
  for name in ('code.py', 'results.jsonl'):
    (tmp_path / name).write_text('one')
  git('add', '.')
  git('commit', '--quiet', '--message=one')
  clean = studying.version(tmp_path)
  (tmp_path / 'results.jsonl').write_text('two')
  assert studying.version(tmp_path) == clean and len(clean) >= 7
  (tmp_path / 'code.py').write_text('two')
  assert studying.version(tmp_path) == f'{clean}-dirty'
