# SPDX-License-Identifier: Apache-2.0
"""The arguments that all builders share: stated by one builder, seen in the signature of each.

A builder takes the arguments of another one as `**arguments` and hands them on. Without more,
`help()` and the API reference would not show them, and a misspelt one would be reported by a
function that the caller does not know.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import tensorflow_federated as tff

from fednar_tff.algorithms import client_data, schedules, server_step

if TYPE_CHECKING:
  from typing_extensions import Unpack as Unpack

_Builder = TypeVar('_Builder', bound=Callable[..., Any])


class _RequiredArguments(TypedDict):
  client_optimizer_fn: tff.learning.optimizers.Optimizer


class ClientArguments(_RequiredArguments, total=False):
  """The arguments of `build_fed_avg` that say how clients train, for type checkers."""

  learning_rate_fn: schedules.ScheduleFn | None
  weight_decay_fn: schedules.ScheduleFn | None
  metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None
  loop_implementation: client_data.LoopImplementation
  jit_compile: bool


class MeanArguments(ClientArguments, total=False):
  """These, and those that say how updates are averaged."""

  client_weighting: client_data.ClientWeighting
  model_aggregator: server_step.ModelAggregator | None


class FedAvgArguments(MeanArguments, total=False):
  """All arguments of `build_fed_avg` but the model."""

  server_optimizer_fn: tff.learning.optimizers.Optimizer | None


def with_arguments_of(
  other: Callable[..., Any], *, without: Sequence[str] = ()
) -> Callable[[_Builder], _Builder]:
  """Returns a decorator that puts another builder's arguments in place of a `**arguments`.

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
    other: The builder whose arguments are taken, those left out that the decorated one has itself.
    without: The names of those that are not taken.
  """

  def decorate(builder: _Builder) -> _Builder:
    own = inspect.signature(builder)
    named = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    known = {*(p.name for p in named), *without}
    taken = [p for p in inspect.signature(other).parameters.values() if p.name not in known]
    signature = own.replace(parameters=[*named, *taken])

    @functools.wraps(builder)
    def build(*args: Any, **kwargs: Any) -> Any:
      # First of all: what is misspelt is missing, too, which would say less.
      for name in kwargs:
        if name not in signature.parameters:
          raise TypeError(f'{builder.__name__}() got an unexpected keyword argument {name!r}')
      try:
        signature.bind(*args, **kwargs)
      except TypeError as e:
        raise TypeError(f'{builder.__name__}() {e}') from None
      return builder(*args, **kwargs)

    build.__signature__ = signature  # type: ignore[attr-defined]
    build.__annotations__ = {
      **{p.name: p.annotation for p in (*named, *taken)},
      'return': own.return_annotation,
    }
    return build  # type: ignore[return-value]

  return decorate
