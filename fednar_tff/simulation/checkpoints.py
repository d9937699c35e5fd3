# SPDX-License-Identifier: Apache-2.0
"""What is inside a checkpoint: the leaves of the server's state, and their names.

A checkpoint is the SavedModel that TFF's `FileProgramStateManager` writes, so that
`tf.saved_model.load(path)()` reads it: a dictionary with the list `leaves` and the strings `names`,
one for each. A leaf is named by its path in the state, as `finalizer/learning_rate`; the model's
weights are `model/` and the name of their variable. An algorithm whose model is not that of its
state, such as the mean of two, adds its own as `evaluated_model/`. Checkpoints of earlier versions
are the bare list.
"""

import collections
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tree

_MODEL, _EVALUATED = 'model/', 'evaluated_model/'
_WEIGHTS_OF_STATE = 'global_model_weights'


class Checkpoint(NamedTuple):
  """What was read.

  Attributes:
    leaves: The leaves of the state, in the order of `tf.nest.flatten`.
    names: Their names, or None if an earlier version wrote the checkpoint.
    evaluated: The weights of the model by name, if they are not those in the state.
  """

  leaves: list[np.ndarray]
  names: list[str] | None
  evaluated: collections.OrderedDict[str, np.ndarray]

  def model(self) -> collections.OrderedDict[str, np.ndarray] | None:
    """Returns the model's weights by name; None if the names are not known."""
    if self.names is None:
      return None
    return self.evaluated or collections.OrderedDict(
      (name.removeprefix(_MODEL), leaf)
      for name, leaf in zip(self.names, self.leaves)
      if name.startswith(_MODEL)
    )


def to_save(state: Any, model_weights: Any, variable_names: Sequence[str]) -> dict[str, Any]:
  """Returns what a checkpoint holds.

  Args:
    state: The server's state.
    model_weights: The weights of the algorithm's model in this state; None if they cannot be asked
      for, and then those of the state stand for them.
    variable_names: The names of the model's variables, the trainable ones first.
  """
  names, leaves = _named_leaves(state, variable_names)
  inside = [leaf for name, leaf in zip(names, leaves) if name.startswith(_MODEL)]
  model = inside if model_weights is None else flatten_weights(model_weights)
  if len(inside) != len(model) or any(x.tobytes() != y.tobytes() for x, y in zip(inside, model)):
    names += [_EVALUATED + name for name in variable_names]
    leaves += model
  return {'leaves': leaves, 'names': np.array(names)}


def flatten_weights(model_weights: Any) -> list[np.ndarray]:
  """Returns the leaves of model weights, the trainable ones first."""
  return [
    np.asarray(leaf)
    for leaf in tf.nest.flatten([list(model_weights.trainable), list(model_weights.non_trainable)])
  ]


def read(path: pathlib.Path) -> Checkpoint:
  """Reads a checkpoint, of this version or of an earlier one."""
  found = tf.saved_model.load(str(path))()
  if not hasattr(found, 'keys'):
    return Checkpoint([np.asarray(leaf) for leaf in found], None, collections.OrderedDict())
  leaves = [np.asarray(leaf) for leaf in found['leaves']]
  names = [name.decode() for name in np.asarray(found['names'])]
  num_state = sum(not name.startswith(_EVALUATED) for name in names)
  evaluated = collections.OrderedDict(
    (name.removeprefix(_EVALUATED), leaf)
    for name, leaf in zip(names[num_state:], leaves[num_state:])
  )
  return Checkpoint(leaves[:num_state], names[:num_state], evaluated)


def variable_names(variables: Sequence[tf.Variable]) -> list[str]:
  """Returns the names of a model's variables; a name that is there twice gets a number."""
  names: list[str] = []
  for variable in variables:
    name = plain = variable.name.removesuffix(':0')
    while name in names:
      name = f'{plain}_{names.count(plain) + sum(n.startswith(plain + "_") for n in names)}'
    names.append(name)
  return names


def _named_leaves(state, names_of_model):
  """Returns the paths of a state's leaves, with the variables by name, and the leaves."""
  remaining = iter(names_of_model)
  names, leaves = [], []
  for path, leaf in tree.flatten_with_path(state):
    if path[:1] == (_WEIGHTS_OF_STATE,):
      names.append(_MODEL + next(remaining, str(path[-1])))
    else:
      names.append('/'.join(map(str, path)))
    leaves.append(np.asarray(leaf))
  return names, leaves
