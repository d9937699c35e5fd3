# SPDX-License-Identifier: Apache-2.0
"""Arguments that many functions share: stated by one of them, seen in the signature of each.

A function takes the arguments of another one as `**arguments` and hands them on. Without more,
`help()` and the API reference would not show them, and a misspelt one would be reported by a
function that the caller does not know.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_Function = TypeVar('_Function', bound=Callable[..., Any])


def with_arguments_of(
  other: Callable[..., Any], *, without: Sequence[str] = ()
) -> Callable[[_Function], _Function]:
  """Returns a decorator that puts another function's arguments in place of a `**arguments`.

  >>> def build_base(model_fn, *, rate, steps=1):
  ...   return model_fn, rate, steps
  >>> @with_arguments_of(build_base)
  ... def build_more(model_fn, *, strength, **arguments):
  ...   return strength, build_base(model_fn, **arguments)
  >>> inspect.signature(build_more)
  <Signature (model_fn, *, strength, rate, steps=1)>
  >>> build_more(None, strength=2, rat=0.1)
  Traceback (most recent call last):
  TypeError: build_more() got an unexpected keyword argument 'rat'

  Args:
    other: The function, or dataclass, whose keyword-only arguments are taken. Those that the
      decorated function has itself are left out.
    without: The names of others that are left out.
  """

  def decorate(function: _Function) -> _Function:
    own = inspect.signature(function)
    named = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    left_out = {*(p.name for p in named), *without}
    taken = [
      p
      for p in inspect.signature(other).parameters.values()
      if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in left_out
    ]
    signature = own.replace(parameters=[*named, *taken])
    required = [p.name for p in taken if p.default is inspect.Parameter.empty]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
      # First of all: what is misspelt is missing, too, which would say less.
      for name in kwargs:
        if name not in signature.parameters:
          raise TypeError(f'{function.__name__}() got an unexpected keyword argument {name!r}')
      for name in required:
        if name not in kwargs:
          raise TypeError(f'{function.__name__}() missing a required argument: {name!r}')
      return function(*args, **kwargs)

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
      **{p.name: p.annotation for p in (*named, *taken)},
      'return': own.return_annotation,
    }
    return call  # type: ignore[return-value]

  return decorate
