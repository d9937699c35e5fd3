# SPDX-License-Identifier: Apache-2.0
"""Datasets of one element, some of whose arrays stay in memory from round to round.

To everyone this is an ordinary `tf.data.Dataset`. A runtime that sends datasets to other machines
can ask which arrays are resident. It sends these once, and the rest of the element in each round.
"""

from collections.abc import Iterable
from typing import Any

import attrs
import tensorflow as tf

_ATTRIBUTE = 'fednar_tff_parts'


@attrs.frozen(eq=False)
class Parts:
  """What a dataset of one element was made of.

  Attributes:
    element: The element, a structure of tensors and arrays.
    resident: The `id` of those leaves of it that stay in memory.
  """

  element: Any
  resident: frozenset[int]


def remember(
  dataset: tf.data.Dataset, element: Any, resident: Iterable[Any] = ()
) -> tf.data.Dataset:
  """Returns a dataset of one element, which from now on knows what it was made of.

  Args:
    dataset: The dataset.
    element: Its element, a structure of tensors and arrays.
    resident: Those leaves of it, the very same objects, that outlive the dataset and are in other
      datasets, too.
  """
  setattr(dataset, _ATTRIBUTE, Parts(element, frozenset(map(id, resident))))
  return dataset


def parts_of(dataset: tf.data.Dataset) -> Parts | None:
  """Returns what a dataset of `remember` was made of; None for all others.

  A dataset that is derived from such a one is one of the others.
  """
  return getattr(dataset, _ATTRIBUTE, None)
