# SPDX-License-Identifier: Apache-2.0
"""One local step: optimizers of the `tff.learning.optimizers` interface."""

from fednar_tff.optimizers.adaptive_sgd import ClippingStatistics as ClippingStatistics
from fednar_tff.optimizers.adaptive_sgd import Rates as Rates
from fednar_tff.optimizers.adaptive_sgd import build_adaptive_sgd as build_adaptive_sgd
from fednar_tff.optimizers.adaptive_sgd import get_clipping_statistics as get_clipping_statistics
from fednar_tff.optimizers.adaptive_sgd import may_join_leaves as may_join_leaves
from fednar_tff.optimizers.clipped_sgd import build_bounded_decay_sgd as build_bounded_decay_sgd
from fednar_tff.optimizers.clipped_sgd import build_clipped_sgd as build_clipped_sgd
from fednar_tff.optimizers.co_clip import co_clip as co_clip
from fednar_tff.optimizers.nar import build_nar as build_nar
