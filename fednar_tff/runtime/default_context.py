# SPDX-License-Identifier: Apache-2.0
"""Makes a context the default one: each `create_..._context` has a `set_..._context` beside it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import tensorflow_federated as tff

_P = ParamSpec('_P')


def setter_of(create: Callable[_P, Any], doc: str) -> Callable[_P, None]:
  """Returns a function that makes the context of another one the default.

  Args:
    create: A function `create_..._context`.
    doc: The docstring of the new function.

  Returns:
    A function `set_..._context` with the same arguments.
  """

  @functools.wraps(create)
  def set_context(*args: _P.args, **kwargs: _P.kwargs) -> None:
    tff.framework.set_default_context(create(*args, **kwargs))

  set_context.__name__ = set_context.__qualname__ = create.__name__.replace('create_', 'set_', 1)
  set_context.__doc__ = doc
  set_context.__annotations__ = {**create.__annotations__, 'return': None}
  signature = inspect.signature(create).replace(return_annotation=None)
  set_context.__signature__ = signature  # type: ignore[attr-defined]
  return set_context
