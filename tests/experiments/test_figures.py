# SPDX-License-Identifier: Apache-2.0
"""Figures of runs that were written by hand: what is drawn, and that a person can read it."""

import itertools
import types

import numpy as np
import pytest
from matplotlib import transforms
from matplotlib.backends import backend_agg
from matplotlib.text import Text
from PIL import Image

from experiments.definition import catalogue, presets
from experiments.reading import drawing, evaluations, figures, grouping, runs
from tests.experiments.run_files import write_run

DECAYS = (0.0001, 0.001, 0.01, 0.05, 0.1)


def plot(folder, name, title='A title'):
  (experiment,) = grouping.split_into_experiments(runs.find_runs([folder])[0])
  return figures.FIGURES[name](experiment, title, 'final')


def lines_of(page):
  """Returns the last value of each line with a label, by the panel's title and the label."""
  return {
    (axes.get_title(), line.get_label()): pytest.approx(line.get_ydata()[-1])
    for axes in page.axes
    for line in axes.get_lines()
    if not line.get_label().startswith('_')
  }


def overlapping_texts(page):
  """Returns the pairs of visible texts of a page that lie over each other, and texts outside of
  it."""
  renderer = backend_agg.FigureCanvasAgg(page).get_renderer()
  page.draw_without_rendering()
  ticks = [a.xaxis.get_ticklabels() + a.yaxis.get_ticklabels() for a in page.axes]
  ticks = set(itertools.chain(*ticks))  # Below: those outside of the axes are not drawn.
  found = [
    (text.get_text(), text.get_window_extent(renderer))
    for text in page.findobj(Text)
    if text.get_text().strip() and text.get_visible() and text not in ticks
  ]
  for axes in page.axes:
    for axis, low, high in ((axes.xaxis, *axes.get_xlim()), (axes.yaxis, *axes.get_ylim())):
      for tick in axis.get_major_ticks():
        if low <= tick.get_loc() <= high and tick.label1.get_visible() and tick.label1.get_text():
          found.append((tick.label1.get_text(), tick.label1.get_window_extent(renderer)))
  inside = page.bbox.padded(1)
  outside = [t for t, box in found if not all(inside.contains(*corner) for corner in box.corners())]
  pairs = [
    (a[0], b[0])
    for a, b in itertools.combinations(found, 2)
    if transforms.Bbox.intersection(a[1].padded(-1), b[1].padded(-1)) is not None
  ]
  return pairs + outside


def write_grid(folder, algorithms, alphas, decays, optimizers=('clip', 'nar'), seeds=(0,), **more):
  """Writes a grid of runs of ten rounds, each with an accuracy of its own."""
  cells = itertools.product(algorithms, alphas, decays, optimizers, seeds)
  for number, (algorithm, alpha, decay, optimizer, seed) in enumerate(cells):
    write_run(
      folder,
      list(np.linspace(0.1, 0.2 + number / 1000, 10)),
      algorithm=algorithm,
      alpha=alpha,
      weight_decay=decay,
      client_optimizer=optimizer,
      seed=seed,
      **more,
    )


def test_a_band_says_what_it_is(tmp_path):
  for seed, accuracy in enumerate((0.1, 0.2, 0.3)):
    write_run(tmp_path, [accuracy], seed=seed)
  write_run(tmp_path, [0.4], client_optimizer='clip')
  (page,) = plot(tmp_path, 'curves')
  (legend,) = page.legends
  assert legend.get_title().get_text().replace('\u00a0', ' ') == (
    'line: mean over 1 to 3 seeds; band: ± one standard deviation'
  )
  assert lines_of(page) == {('FedAvg', 'NAR'): 20.0, ('FedAvg', 'baseline'): 40.0}
  band = page.axes[0].collections[0].get_paths()[0].vertices[:, 1]
  assert band.min() == pytest.approx(10) and band.max() == pytest.approx(30)


def test_robustness_pools_no_alphas(tmp_path):
  for alpha, decay in itertools.product((0.3, 1.0, 10.0), (0.01, 0.1)):
    write_run(tmp_path, [alpha / 100 + decay], alpha=alpha, weight_decay=decay)
  (page,) = plot(tmp_path, 'robustness')
  found = {
    (title.replace('\u00a0', ' '), label): value for (title, label), value in lines_of(page).items()
  }
  assert found == {
    (f'FedAvg, alpha {alpha:g}', f'NAR, WD {decay:g}'): alpha + 100 * decay
    for alpha, decay in itertools.product((0.3, 1.0, 10.0), (0.01, 0.1))
  }


def test_weight_decay_panels_are_apart_by_every_setting_that_varies(tmp_path):
  for steps, rate, decay in itertools.product((5, 20), (0.1, 0.2), (0.01, 0.1)):
    write_run(tmp_path, [0.5], local_steps=steps, learning_rate=rate, weight_decay=decay)
  (page,) = plot(tmp_path, 'weight_decay')
  assert {axes.get_title().replace('\u00a0', ' ') for axes in page.axes} == {
    f'lr {rate}, {steps} steps' for steps in (5, 20) for rate in (0.1, 0.2)
  }


def test_weight_decay_panels_of_one_algorithm_have_the_colours_of_baseline_and_nar(tmp_path):
  write_grid(tmp_path, ['fed_avg'], [0.3, 10.0], (0.01, 0.1), ('clip', 'nar'))
  (page,) = plot(tmp_path, 'weight_decay')
  assert [axes.get_title().replace('\u00a0', ' ') for axes in page.axes] == [
    'FedAvg, alpha 0.3', 'FedAvg, alpha 10'
  ]  # fmt: skip
  colours = [drawing.optimizer_style(optimizer)['color'] for optimizer in ('clip', 'nar')]
  for axes in page.axes:
    assert list(dict.fromkeys(line.get_color() for line in axes.get_lines())) == colours


def test_weight_decay_panels_of_many_algorithms_are_apart_by_algorithm(tmp_path):
  algorithms = {'fed_avg': 'FedAvg', 'fed_prox': 'FedProx', 'scaffold': 'SCAFFOLD'}
  decays, optimizers = (0.01, 0.1), ('clip', 'nar')
  write_grid(tmp_path, algorithms, [0.3], decays, optimizers)
  (page,) = plot(tmp_path, 'weight_decay')
  assert len(page.axes) == 1 and len(page.legends[0].get_texts()) == 6
  write_grid(tmp_path, ['fed_avgm'], [0.3], decays, optimizers)
  write_grid(tmp_path, ['fed_avg'], [10.0], decays, optimizers)
  (page,) = plot(tmp_path, 'weight_decay')
  assert [axes.get_title().replace('\u00a0', ' ') for axes in page.axes] == [
    'FedAvg, alpha 0.3', 'FedAvg, alpha 10', 'FedProx, alpha 0.3', 'SCAFFOLD, alpha 0.3',
    'FedAvgM, alpha 0.3',
  ]  # fmt: skip
  assert [text.get_text() for text in page.legends[0].get_texts()] == ['baseline', 'NAR']


def test_difference_of_a_single_cell_has_a_panel(tmp_path):
  for optimizer, accuracy in (('clip', 0.5), ('nar', 0.6)):
    write_run(tmp_path, [accuracy], client_optimizer=optimizer)
  (experiment,) = grouping.split_into_experiments(runs.find_runs([tmp_path])[0])
  (page,) = figures.plot_differences(experiment, 'A title', 'final', lambda s: (1.0, 3.0), 0.1)
  points = [
    line.get_xdata()[0] for line in page.axes[0].get_lines() if line.get_marker() in ('o', 'D')
  ]
  assert points == pytest.approx([10.0, 2.0])


def test_a_run_that_diverged_counts_as_a_guess_among_differences(tmp_path):
  write_run(tmp_path, [0.5], client_optimizer='clip')
  write_run(tmp_path, [0.9], client_optimizer='nar', diverged=True)
  (experiment,) = grouping.split_into_experiments(runs.find_runs([tmp_path])[0])
  (page,) = figures.plot_differences(experiment, 'A title', 'final', lambda s: (1.0, 3.0), 0.1)
  (point,) = (line for line in page.axes[0].get_lines() if line.get_marker() == 'o')
  assert point.get_xdata()[0] == pytest.approx(-40)
  words = page.legends[0].get_title().get_text().replace('\u00a0', ' ').replace('\n', ' ')
  assert 'a run that diverged counts as a guess' in words


def test_differences_are_paired_by_seed_and_stand_beside_the_papers(tmp_path):
  # Baseline and NAR by seed: gains of 1, 2 and 3 points, though the seeds lie 10 points apart.
  for seed, (baseline, nar) in enumerate(((0.10, 0.11), (0.20, 0.22), (0.30, 0.33))):
    write_run(tmp_path, [baseline], client_optimizer='clip', seed=seed, weight_decay=0.05)
    write_run(tmp_path, [nar], seed=seed, weight_decay=0.05)
  for alpha, optimizer in itertools.product((0.3, 10.0), ('clip', 'nar')):
    accuracy = 0.5 if optimizer == 'clip' else 0.45
    write_run(
      tmp_path, [accuracy], algorithm='scaffold', client_optimizer=optimizer, alpha=alpha,
      weight_decay=0.01,
    )  # fmt: skip
  write_run(tmp_path, [0.5], algorithm='fed_avgm', weight_decay=0.01)  # It has no pair.
  (experiment,) = grouping.split_into_experiments(runs.find_runs([tmp_path])[0])
  published = {
    ('fed_avg', 0.3): (80.0, 82.5),
    ('scaffold', 0.3): (1, 1),
    ('scaffold', 10.0): (3, 2),
  }
  (page,) = figures.plot_differences(
    experiment, 'A title', 'final', lambda s: published[s['algorithm'], s['alpha']], guess=0.1
  )
  labels = {label.get_position()[1]: label.get_text() for label in page.axes[0].get_yticklabels()}
  points = {
    (axes.get_title(), labels[line.get_ydata()[0]], line.get_marker()): line.get_xdata()[0]
    for axes in page.axes
    for line in axes.get_lines()
    if line.get_marker() in ('o', 'D')
  }
  found = {tuple(text.replace('\u00a0', ' ') for text in key): x for key, x in points.items()}
  assert found == pytest.approx(
    {
      ('alpha 0.3', 'FedAvg, WD 0.05', 'o'): 2.0,
      ('alpha 0.3', 'FedAvg, WD 0.05', 'D'): 2.5,
      ('alpha 0.3', 'SCAFFOLD, WD 0.01', 'o'): -5.0,
      ('alpha 0.3', 'SCAFFOLD, WD 0.01', 'D'): 0.0,
      ('alpha 10', 'SCAFFOLD, WD 0.01', 'o'): -5.0,
      ('alpha 10', 'SCAFFOLD, WD 0.01', 'D'): -1.0,
    }
  )
  # Student's t of 2 degrees of freedom is 4.303: 2 -+ 4.303 * 1 / sqrt(3).
  (bar,) = (c for c in page.axes[0].collections if len(c.get_segments()[0]))
  assert bar.get_segments()[0][:, 0] == pytest.approx([2 - 2.4843, 2 + 2.4843], abs=1e-3)
  assert page.axes[0].get_xlim() == page.axes[1].get_xlim()
  assert not overlapping_texts(page)
  assert 'mean over 1 to 3 seeds' in page.legends[0].get_title().get_text().replace('\u00a0', ' ')


def test_what_only_differs_between_algorithms_is_in_the_label(tmp_path):
  write_run(tmp_path, [0.1] * 2, weight_decay=0.05)
  write_run(tmp_path, [0.2] * 3, weight_decay=0.01, algorithm='fed_adam')
  (page,) = plot(tmp_path, 'clipping')
  assert {label for _, label in lines_of(page)} == {
    'FedAvg NAR, WD 0.05, 2 rounds',
    'FedAdam NAR, WD 0.01, 3 rounds',
  }


def test_sgd_is_drawn_beside_the_others_but_never_as_clipping(tmp_path):
  for optimizer in ('clip', 'nar'):
    write_run(tmp_path, [0.5], client_optimizer=optimizer)
  write_run(tmp_path, [0.4], client_optimizer='sgd', max_norm=None)
  (page,) = plot(tmp_path, 'curves')
  assert {label for _, label in lines_of(page)} == {'baseline', 'NAR', 'SGD, nothing clipped'}
  (page,) = plot(tmp_path, 'clipping')
  assert {label for _, label in lines_of(page)} == {'FedAvg baseline', 'FedAvg NAR'}


def test_a_run_that_diverged_is_no_part_of_a_mean(tmp_path):
  write_run(tmp_path, [0.5, 0.6, 0.7])
  write_run(tmp_path, [0.1, 0.1], seed=1, total_rounds=3, diverged=True)
  (page,) = plot(tmp_path, 'curves')
  assert lines_of(page) == {('FedAvg', 'NAR'): 70.0}
  assert '×: a run that diverged' in page.legends[0].get_title().get_text().replace('\u00a0', ' ')
  assert len(page.axes[0].get_lines()) == 3  # The mean, the run, and the cross at its end.
  for name in figures.FIGURES:
    for page in plot(tmp_path, name):
      assert not overlapping_texts(page)


def test_rounds_without_a_metric_are_left_out(tmp_path):
  path = write_run(tmp_path, [0.5, 0.6])
  (path / 'metrics.csv').write_text(
    'round_num,test_accuracy,test_loss,train_loss,clipped_steps,total_steps,mean_clipped_norm\n'
    '1,0.5,1.0,,0,200,0.0\n2,0.6,1.0,2.0,,200,\n3,,,nan,5,,7.0\n'
  )
  run = runs.read_run(path)
  assert run.series('train_loss')[0] == [2, 3]
  assert run.series('mean_clipped_norm') == ([3], [7.0])  # The mean over no steps is no zero.
  figures.plot_run(run, tmp_path / 'curves.png')
  assert Image.open(tmp_path / 'curves.png').size[0] > 1000
  assert plot(tmp_path, 'clipping') and plot(tmp_path, 'curves')


def test_what_was_measured_once_is_seen(tmp_path, monkeypatch):
  path = write_run(tmp_path, [0.5])
  pages = []
  monkeypatch.setattr(drawing, 'save', lambda saved, _: pages.extend(saved))
  figures.plot_run(runs.read_run(path), tmp_path / 'curves.png')
  for page in [*pages, *plot(tmp_path, 'curves'), *plot(tmp_path, 'clipping')]:
    for axes in page.axes:
      assert all(line.get_marker() == '.' for line in axes.get_lines()), axes.get_ylabel()


def test_a_round_without_a_step_has_no_share_that_was_clipped(tmp_path):
  path = write_run(tmp_path, [0.5, 0.6, 0.7])
  text = (path / 'metrics.csv').read_text()
  (path / 'metrics.csv').write_text(text.replace(',6,200,', ',0,0,'))
  assert runs.read_run(path).series('clipped_steps') == ([1, 3], [3.0, 9.0])


def test_a_run_that_diverged_does_not_flatten_the_others(tmp_path):
  write_run(tmp_path, [0.5, 0.6, 0.7])
  path = write_run(tmp_path, [0.1, 0.1], total_rounds=3, client_optimizer='clip', diverged=True)
  text = (path / 'metrics.csv').read_text()
  (path / 'metrics.csv').write_text(text.replace(',12\n', ',1e20\n'))
  (page,) = plot(tmp_path, 'clipping')
  norms = page.axes[1]
  assert 13 < norms.get_ylim()[1] < 20
  (cross,) = (line for line in norms.get_lines() if line.get_marker() == 'x')
  assert 13 < cross.get_ydata()[0] < norms.get_ylim()[1]


def test_a_run_that_diverged_before_its_first_evaluation_has_a_cross(tmp_path):
  write_run(tmp_path, [None, None], total_rounds=3, diverged=True)
  (page,) = plot(tmp_path, 'curves')
  (cross,) = (line for line in page.axes[0].get_lines() if line.get_marker() == 'x')
  assert cross.get_xdata() == [2]
  assert [text.get_text() for text in page.legends[0].get_texts()] == ['NAR']


def test_runs_that_are_not_finished_make_no_figure(tmp_path):
  write_run(tmp_path, [0.5], total_rounds=2)
  assert [plot(tmp_path, name) for name in figures.FIGURES] == [[], [], [], []]


def test_every_figure_of_the_paper_can_be_drawn():
  assert set(figures.FIGURES) == set(presets.FIGURES)


def test_an_algorithm_has_one_colour_and_no_two_share_one():
  styles = {
    a: {drawing.algorithm_style(a, o)['color'] for o in catalogue.CLIENT_OPTIMIZERS}
    for a in catalogue.ALGORITHMS
  }
  assert all(len(colors) == 1 for colors in styles.values())
  assert len(set().union(*styles.values())) == len(styles)
  lines = {
    (s['color'], s['linestyle'])
    for o in catalogue.CLIENT_OPTIMIZERS
    for s in (drawing.optimizer_style(o, shade, 7) for shade in range(7))
  }
  assert len(lines) == 7 * len(catalogue.CLIENT_OPTIMIZERS)


def test_a_large_grid_is_split_over_pages(tmp_path):
  write_grid(tmp_path, list(catalogue.ALGORITHMS)[:5], (0.3, 1.0, 10.0), DECAYS[:1], ('nar',))
  pages = plot(tmp_path, 'curves')
  assert sum(len(page.axes) for page in pages) == 15 and len(pages) == 2
  written = drawing.save(pages, tmp_path / 'out' / 'curves')
  assert [p.name for p in written] == ['curves.png', 'curves_page2.png', 'curves.pdf']
  for path in written[:-1]:
    assert max(Image.open(path).size) <= 1800


@pytest.mark.parametrize('name', figures.FIGURES)
def test_no_text_lies_over_another(tmp_path, name):
  # The worst case: long titles, all algorithms, an axis of five decays, a legend of many lines.
  write_grid(
    tmp_path, ['fed_avg', 'fed_adam', 'scaffold'], (0.3, 10.0), DECAYS, seeds=(0, 1),
    augmentation='per_batch', first_round_decays=True,
  )  # fmt: skip
  pages = plot(tmp_path, name, title='Reduced setting: ' + ', '.join(['a long title'] * 15))
  for page in pages[:1]:
    assert not overlapping_texts(page)
    assert not any(axes.get_legend() for axes in page.axes)
    box = page.legends[0].get_window_extent()
    for axes in page.axes:
      assert not box.overlaps(axes.get_tightbbox()) and axes.get_title() != 'all'


def test_legend_of_an_evaluation_covers_no_client():
  spread = types.SimpleNamespace(mean=0.9)
  found = evaluations.Evaluation(
    'A title',
    50,
    {},
    [f'client {i}' for i in range(20)],
    [9] * 20,
    np.linspace(0.8, 1, 20),
    spread,
    spread,
    np.eye(10),
    types.SimpleNamespace(before=np.ones(20), after=np.ones(20)),
    10,
  )
  page = evaluations.plot(found)
  assert not overlapping_texts(page)
  assert not any(axes.get_legend() for axes in page.axes)
  assert [text.get_text() for text in page.legends[0].get_texts()] == ['mean', 'worst tenth']
  box = page.legends[0].get_window_extent()
  assert not any(box.overlaps(axes.get_tightbbox()) for axes in page.axes)
  assert page.axes[0].get_title() == 'accuracy by client'


@pytest.mark.parametrize('accuracies', [[0.1, 0.2, 0.3], [None, None, 0.3]], ids=['three', 'one'])
def test_rounds_are_whole_numbers(tmp_path, accuracies):
  write_run(tmp_path, accuracies)
  (page,) = plot(tmp_path, 'curves')
  ticks = page.axes[0].get_xticks()
  np.testing.assert_array_equal(ticks, np.round(ticks))
