# SPDX-License-Identifier: Apache-2.0
"""What every optimizer of the package promises to TFF, and what it does at the edges."""

import collections
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff import optimizers

BUILDERS = {
  'nar': lambda **kw: optimizers.build_nar(
    **{'learning_rate': 0.5, 'weight_decay': 0.25, 'max_norm': 1.0, **kw}
  ),
  'clipped_sgd': lambda **kw: optimizers.build_clipped_sgd(
    **{'learning_rate': 0.5, 'weight_decay': 0.25, 'max_norm': 1.0, **kw}
  ),
  'bounded_decay': lambda **kw: optimizers.build_bounded_decay_sgd(
    **{'learning_rate': 0.5, 'weight_decay': 0.25, 'max_norm': 1.0, 'max_weight_norm': 2.0, **kw}
  ),
  'adaptive_sgd': lambda **kw: optimizers.build_adaptive_sgd(
    **{
      'rates_fn': lambda g, x, l, wd: (l, l * wd),
      'learning_rate': 0.5,
      'weight_decay': 0.25,
      **kw,
    }
  ),
  'co_clip': lambda learning_rate=0.5, **kw: optimizers.co_clip(
    tff.learning.optimizers.build_adam(learning_rate),
    **{'weight_decay': 0.25, 'max_norm': 1.0, **kw},
  ),
}
all_optimizers = pytest.mark.parametrize('build', BUILDERS.values(), ids=BUILDERS.keys())

SCALAR_SPEC = tf.TensorSpec([], tf.float32)
STRUCT_SPEC = [tf.TensorSpec([2], tf.float32), tf.TensorSpec([3, 1], tf.float32)]
NESTED_SPEC = collections.OrderedDict(
  a=(tf.TensorSpec([2], tf.float32), [tf.TensorSpec([], tf.float32)]),
  b=collections.OrderedDict(c=tf.TensorSpec([1, 2], tf.float64), d=tf.TensorSpec([2], tf.bfloat16)),
)


def ones(spec):
  return tf.nest.map_structure(lambda s: tf.ones(s.shape, s.dtype), spec)


def describe(tree):
  tensors = tf.nest.map_structure(tf.convert_to_tensor, tree)
  return tf.nest.map_structure(lambda x: (x.shape, x.dtype), tensors)


def assert_same(x, y):
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), x, y
  )


@all_optimizers
@pytest.mark.parametrize(
  'spec', [SCALAR_SPEC, STRUCT_SPEC, NESTED_SPEC], ids=['scalar', 'struct', 'nested']
)
def test_keeps_structure_shapes_and_dtypes(build, spec):
  optimizer = build()
  state, weights = optimizer.initialize(spec), ones(spec)
  new_state, new_weights = optimizer.next(state, weights, ones(spec))
  assert describe(new_weights) == describe(weights)
  assert describe(new_state) == describe(state)
  assert tf.reduce_all(
    [tf.reduce_all(x != y) for x, y in zip(tf.nest.flatten(weights), tf.nest.flatten(new_weights))]
  )


@all_optimizers
def test_empty_tree(build):
  optimizer = build()
  state, weights = optimizer.next(optimizer.initialize([]), [], [])
  assert weights == []
  assert optimizers.get_clipping_statistics(state).num_steps == 1


@all_optimizers
def test_weight_without_gradient_stays_and_is_not_in_the_norm(build):
  optimizer = build()
  spec = [tf.TensorSpec([2]), tf.TensorSpec([2])]
  weights = [tf.constant([1.0, -2.0]), tf.constant([1e6, 1e6])]
  g = tf.constant([0.5, 0.25])
  state, with_none = optimizer.next(optimizer.initialize(spec), weights, [g, None])
  alone_state, alone = optimizer.next(optimizer.initialize(spec[:1]), weights[:1], [g])
  assert_same(with_none, [alone[0], weights[1]])
  assert_same(
    optimizers.get_clipping_statistics(state), optimizers.get_clipping_statistics(alone_state)
  )


@all_optimizers
def test_all_gradients_none(build):
  optimizer = build()
  weights = [tf.constant([1.0, -2.0])]
  _, new_weights = optimizer.next(optimizer.initialize([tf.TensorSpec([2])]), weights, [None])
  assert_same(new_weights, weights)


@all_optimizers
def test_indexed_slices_are_dense_gradients_with_zeros(build):
  optimizer = build()
  spec = [tf.TensorSpec([3, 2])]
  weights = [tf.constant([[1.0, -2.0], [3.0, 4.0], [5.0, 6.0]])]
  slices = tf.IndexedSlices(
    tf.constant([[1.0, 2.0], [0.5, 0.5]]), tf.constant([1, 1]), tf.constant([3, 2])
  )
  dense = tf.constant([[0.0, 0.0], [1.5, 2.5], [0.0, 0.0]])
  _, from_slices = optimizer.next(optimizer.initialize(spec), weights, [slices])
  _, from_dense = optimizer.next(optimizer.initialize(spec), weights, [dense])
  assert_same(from_slices, from_dense)


@all_optimizers
def test_hparams_are_readable_and_settable(build):
  optimizer = build()
  state = optimizer.initialize(STRUCT_SPEC)
  hparams = optimizer.get_hparams(state)
  assert hparams['learning_rate'] == 0.5
  assert hparams['weight_decay'] == 0.25
  if build is not BUILDERS['adaptive_sgd']:
    assert hparams['max_norm'] == 1.0
  assert_same(optimizer.set_hparams(state, hparams), state)
  hparams['learning_rate'], hparams['weight_decay'] = tf.constant(0.0), tf.constant(0.0)
  changed = optimizer.set_hparams(state, hparams)
  assert_same(optimizer.get_hparams(changed), hparams)
  assert optimizer.get_hparams(state)['learning_rate'] == 0.5  # What was given is not changed.
  _, weights = optimizer.next(changed, ones(STRUCT_SPEC), ones(STRUCT_SPEC))
  assert_same(weights, ones(STRUCT_SPEC))


@all_optimizers
def test_set_hparams_changes_the_step_as_building_with_them_does(build):
  weights, g = [tf.constant([1.0, -2.0, 3.0])], [tf.constant([2.0, 1.0, -1.0])]
  spec = [tf.TensorSpec([3])]
  fresh = build(learning_rate=0.125, weight_decay=0.75)
  _, expected = fresh.next(fresh.initialize(spec), weights, g)
  optimizer = build()
  state = optimizer.initialize(spec)
  hparams = optimizer.get_hparams(state)
  hparams['learning_rate'], hparams['weight_decay'] = tf.constant(0.125), tf.constant(0.75)
  _, found = optimizer.next(optimizer.set_hparams(state, hparams), weights, g)
  assert_same(found, expected)


@all_optimizers
def test_symbolic_learning_rate(build):
  weights, g, spec = [tf.constant([1.0, -2.0])], [tf.constant([0.5, 0.5])], [tf.TensorSpec([2])]

  @tf.function
  def step(learning_rate):
    optimizer = build(learning_rate=learning_rate)
    return optimizer.next(optimizer.initialize(spec), weights, g)[1]

  optimizer = build(learning_rate=0.25)
  _, expected = optimizer.next(optimizer.initialize(spec), weights, g)
  np.testing.assert_allclose(step(tf.constant(0.25))[0], expected[0], rtol=1e-6)


@all_optimizers
def test_tff_schedules_wrap_it(build):
  scheduled = tff.learning.optimizers.schedule_learning_rate(
    build(), lambda step: 0.5 / tf.cast(step + 1, tf.float32)
  )
  state = scheduled.initialize(STRUCT_SPEC)
  for _ in range(3):
    state, weights = scheduled.next(state, ones(STRUCT_SPEC), ones(STRUCT_SPEC))
  optimizer = build(learning_rate=0.5 / 3)
  state = optimizer.initialize(STRUCT_SPEC)
  if build is not BUILDERS['co_clip']:  # Adam has a memory of its own.
    _, expected = optimizer.next(state, ones(STRUCT_SPEC), ones(STRUCT_SPEC))
    tf.nest.map_structure(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), weights, expected
    )


@all_optimizers
def test_mismatched_gradients_raise(build):
  optimizer = build()
  state = optimizer.initialize(STRUCT_SPEC)
  with pytest.raises(ValueError, match='same shapes and dtypes'):
    optimizer.next(state, ones(STRUCT_SPEC), [tf.ones([3]), tf.ones([3, 1])])


@pytest.mark.parametrize(
  'name, argument, value, allowed',
  [
    ('nar', 'learning_rate', -0.1, 'a nonnegative finite number'),
    ('nar', 'learning_rate', math.inf, 'a nonnegative finite number'),
    ('nar', 'weight_decay', -1e-4, 'a nonnegative finite number'),
    ('nar', 'weight_decay', math.nan, 'a nonnegative finite number'),
    ('nar', 'max_norm', 0.0, 'a positive number or infinity'),
    ('nar', 'epsilon', -1.0, 'a nonnegative finite number'),
    ('clipped_sgd', 'learning_rate', 'fast', 'a nonnegative finite number'),
    ('clipped_sgd', 'max_norm', -1.0, 'a positive number or infinity'),
    ('bounded_decay', 'max_weight_norm', 0.0, 'a positive number or infinity'),
    ('adaptive_sgd', 'learning_rate', -2.0, 'a nonnegative finite number'),
    ('adaptive_sgd', 'weight_decay', None, 'a nonnegative finite number'),
    ('co_clip', 'weight_decay', -0.5, 'a nonnegative finite number'),
    ('co_clip', 'max_norm', math.nan, 'a positive number or infinity'),
  ],
)
def test_arguments_out_of_range_are_named(name, argument, value, allowed):
  with pytest.raises(ValueError, match=f'`{argument}` must be {allowed}, found {value!r}'):
    BUILDERS[name](**{argument: value})


def test_co_clip_refuses_what_it_cannot_wrap():
  with pytest.raises(TypeError, match='must be a `tff.learning.optimizers.Optimizer`, found 0.1'):
    optimizers.co_clip(0.1, 0.0, 1.0)
  adamw = optimizers.co_clip(tff.learning.optimizers.build_adamw(0.1), 0.0, 1.0)
  message = (
    'a weight decay of 0: build it with `weight_decay=0.0` and give .* to `co_clip`, .* found 0.004'
  )
  with pytest.raises(ValueError, match=message):
    adamw.initialize(SCALAR_SPEC)
  twice = optimizers.co_clip(optimizers.build_nar(0.1, 0.0), 0.0, 1.0)
  with pytest.raises(ValueError, match='must not clip by itself: leave the bound to .* `co_clip`'):
    twice.initialize(SCALAR_SPEC)


def test_co_clip_decays_weights_in_place_of_an_optimizer_whose_weight_decay_is_zero():
  # AdamW without weight decay is Adam, so only the place of the decay could differ.
  adamw = tff.learning.optimizers.build_adamw(0.125, weight_decay=0.0)
  found = optimizers.co_clip(adamw, weight_decay=0.5, max_norm=1.0)
  expected = optimizers.co_clip(tff.learning.optimizers.build_adam(0.125), 0.5, 1.0)
  spec = [tf.TensorSpec([2])]
  states = [found.initialize(spec), expected.initialize(spec)]
  assert list(found.get_hparams(states[0])) == [
    'learning_rate', 'beta_1', 'beta_2', 'epsilon', 'weight_decay', 'max_norm',
  ]  # fmt: skip
  weights = [[tf.constant([1.0, -3.0])]] * 2
  for step, gradient in enumerate(([0.5, 0.25], [-4.0, 1.0], [0.1, 0.0])):
    pairs = zip((found, expected), states, weights)
    states, weights = zip(*(o.next(s, w, [tf.constant(gradient)]) for o, s, w in pairs))
    np.testing.assert_allclose(*(w[0] for w in weights), rtol=1e-6)
    if step == 0:  # As a schedule does: the weight decay is `co_clip`'s own.
      states = [
        o.set_hparams(s, {**o.get_hparams(s), 'weight_decay': tf.constant(0.75)})
        for o, s in zip((found, expected), states)
      ]
  assert float(found.get_hparams(states[0])['weight_decay']) == 0.75
  assert float(states[0]['inner']['weight_decay']) == 0.0


def one_step(optimizer, weights, g):
  spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
  state, weights = optimizer.next(optimizer.initialize(spec), weights, g)
  return optimizers.get_clipping_statistics(state), weights


RANDOM = np.random.default_rng(0)
WEIGHTS = [
  tf.constant(RANDOM.normal(size=[7, 3]), tf.float32),
  tf.constant(RANDOM.normal(size=[5]), tf.float32),
]
GRADIENTS = [
  tf.constant(RANDOM.normal(size=[7, 3]), tf.float32),
  tf.constant(RANDOM.normal(size=[5]), tf.float32),
]


@pytest.mark.parametrize('name', ['nar', 'clipped_sgd', 'bounded_decay'])
def test_without_bound_and_decay_it_is_sgd_to_the_bit(name):
  _, found = one_step(
    BUILDERS[name](max_norm=math.inf, weight_decay=0.0, learning_rate=0.3), WEIGHTS, GRADIENTS
  )
  sgd = tff.learning.optimizers.build_sgdm(0.3)
  _, expected = sgd.next(sgd.initialize(None), WEIGHTS, GRADIENTS)
  assert_same(found, expected)


def test_nar_is_the_baseline_to_the_bit_when_nothing_is_clipped():
  _, nar = one_step(BUILDERS['nar'](max_norm=1e3, learning_rate=0.3), WEIGHTS, GRADIENTS)
  _, baseline = one_step(
    BUILDERS['clipped_sgd'](max_norm=1e3, learning_rate=0.3), WEIGHTS, GRADIENTS
  )
  assert_same(nar, baseline)


def test_co_clip_in_front_of_sgd_is_nar():
  for bound in (0.5, 1e3):
    _, nar = one_step(optimizers.build_nar(0.3, 0.25, bound), WEIGHTS, GRADIENTS)
    wrapped = optimizers.co_clip(tff.learning.optimizers.build_sgdm(0.3), 0.25, bound)
    _, found = one_step(wrapped, WEIGHTS, GRADIENTS)
    tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, nar)


@pytest.mark.parametrize('name', ['nar', 'clipped_sgd'])
def test_norm_of_just_the_bound_is_not_clipped_unless_the_released_code_is_followed(name):
  weights, g = [tf.zeros([2])], [tf.constant([6.0, 8.0])]
  paper, paper_weights = one_step(BUILDERS[name](max_norm=10.0), weights, g)
  released, released_weights = one_step(BUILDERS[name](max_norm=10.0, epsilon=1e-6), weights, g)
  assert (paper.num_clipped_steps, released.num_clipped_steps) == (0, 1)
  assert_same(paper_weights, [np.array([-3.0, -4.0])])
  np.testing.assert_allclose(released_weights[0], [-3.0, -4.0], rtol=1e-6)


@pytest.mark.parametrize('name', ['nar', 'clipped_sgd', 'bounded_decay', 'co_clip'])
def test_zero_norm_is_finite(name):
  statistics, weights = one_step(
    BUILDERS[name](weight_decay=0.0), [tf.constant([1.0, -2.0])], [tf.zeros([2])]
  )
  assert_same(weights, [np.array([1.0, -2.0])])
  assert (statistics.num_clipped_steps, statistics.sum_clipped_norms) == (0, 0.0)


@pytest.mark.parametrize('name', ['nar', 'clipped_sgd'])
@pytest.mark.parametrize('size', [1e20, 1e30, 1e35])
def test_huge_gradients_do_not_overflow(name, size):
  g = [tf.constant([0.6 * size]), tf.constant([0.0, -0.8 * size])]
  weights = [tf.constant([1.0]), tf.constant([2.0, 3.0])]
  statistics, found = one_step(
    BUILDERS[name](weight_decay=0.0, max_norm=2.0, learning_rate=0.5), weights, g
  )
  np.testing.assert_allclose(found[0], [0.4], rtol=1e-6)
  np.testing.assert_allclose(found[1], [2.0, 3.8], rtol=1e-6)
  np.testing.assert_allclose(statistics.sum_clipped_norms, size, rtol=1e-6)


def test_huge_weights_do_not_overflow():
  statistics, found = one_step(
    optimizers.build_nar(0.5, 1.0, 1.0), [tf.constant([3e30, -4e30])], [tf.zeros([2])]
  )
  np.testing.assert_allclose(statistics.sum_clipped_norms, 5e30, rtol=1e-6)
  np.testing.assert_allclose(found[0], [3e30, -4e30], rtol=1e-6)


@pytest.mark.parametrize('name', ['nar', 'clipped_sgd', 'bounded_decay', 'co_clip'])
@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
def test_gradient_that_is_not_finite_shows_in_every_weight(name, bad):
  weights = [tf.constant([1.0, 2.0]), tf.constant([3.0])]
  statistics, found = one_step(
    BUILDERS[name](), weights, [tf.constant([0.1, bad]), tf.constant([0.1])]
  )
  assert all(np.isnan(x).all() for x in found)
  assert (statistics.num_steps, statistics.num_clipped_steps, statistics.sum_clipped_norms) == (
    1,
    0,
    0.0,
  )


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
  # The squares (1e6) and the decayed gradient (7e4 > 65504) overflow float16; 300 and 400 make 500
  # in any precision.
  weights = [tf.constant([60000.0, 0.0], dtype)]
  g = [tf.constant([10000.0 - 256.0, 0.0], dtype)]
  statistics, found = one_step(optimizers.build_nar(1.0, 1.0, 1000.0), weights, g)
  exact = float(tf.cast(weights[0][0], tf.float32)) + float(tf.cast(g[0][0], tf.float32))
  np.testing.assert_allclose(statistics.sum_clipped_norms, exact, rtol=1e-6)
  expected = tf.cast(tf.cast(weights[0], tf.float32) - [1000.0, 0.0], dtype)
  assert_same(tf.cast(found[0], tf.float32), tf.cast(expected, tf.float32))


def test_mixed_dtypes_share_one_norm():
  weights = [tf.zeros([1], tf.float16), tf.zeros([1], tf.float32), tf.zeros([1], tf.float64)]
  g = [
    tf.constant([2.0], tf.float16),
    tf.constant([3.0], tf.float32),
    tf.constant([6.0], tf.float64),
  ]
  statistics, found = one_step(optimizers.build_nar(1.0, 0.0, 3.5), weights, g)
  assert statistics.sum_clipped_norms == 7.0
  assert [float(x[0]) for x in found] == [-1.0, -1.5, -3.0]
  assert [x.dtype for x in found] == [tf.float16, tf.float32, tf.float64]


def test_empty_leaf_next_to_a_huge_one():
  weights, g = [tf.zeros([0]), tf.zeros([1])], [tf.zeros([0]), tf.constant([1e30])]
  _, found = one_step(optimizers.build_nar(1.0, 0.5, 2.0), weights, g)
  np.testing.assert_allclose(found[1], [-2.0], rtol=1e-6)


def test_other_optimizers_have_no_clipping_statistics():
  sgd = tff.learning.optimizers.build_sgdm(0.1)
  assert optimizers.get_clipping_statistics(sgd.initialize(SCALAR_SPEC)) is None
