# SPDX-License-Identifier: Apache-2.0
"""The builders' signatures say all that they take, and errors name the builder."""

import inspect
import typing

import pytest

from fednar_tff import algorithms
from fednar_tff.algorithms import arguments, client_work

BUILDERS = {name: algorithms.get_builder(name) for name in algorithms.ALGORITHMS}
FED_AVG = inspect.signature(algorithms.build_fed_avg).parameters
# FedDyn counts all clients alike and has a server's step of its own.
NOT_TAKEN = {'fed_dyn': {'server_optimizer_fn', 'client_weighting'}}


@pytest.mark.parametrize('name', BUILDERS)
def test_signature_has_all_arguments_of_fed_avg_as_they_are_there(name):
  found = inspect.signature(BUILDERS[name]).parameters
  assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in found.values())
  for argument, parameter in FED_AVG.items():
    if argument in NOT_TAKEN.get(name, ()):
      assert argument not in found
    else:
      assert (found[argument].default, found[argument].annotation) == (
        parameter.default,
        parameter.annotation,
      )
  hints = typing.get_type_hints(BUILDERS[name])
  assert set(hints) == {*found, 'return'}


@pytest.mark.parametrize('name', BUILDERS)
def test_a_misspelt_argument_is_reported_by_the_builder(name):
  message = rf"^build_{name}\(\) got an unexpected keyword argument 'learning_rate_fm'$"
  required = {
    n: None
    for n, p in inspect.signature(BUILDERS[name]).parameters.items()
    if p.default is inspect.Parameter.empty
  }
  with pytest.raises(TypeError, match=message):
    BUILDERS[name](**required, learning_rate_fm=None)


def test_type_checkers_are_told_the_same_arguments():
  told = typing.get_type_hints(arguments.FedAvgArguments)
  assert told == {
    n: hint for n, hint in typing.get_type_hints(algorithms.build_fed_avg).items() if n in told
  }
  assert set(told) == set(FED_AVG) - {'model_fn'}
  of_clients = inspect.signature(client_work.build_client_side).parameters
  assert set(of_clients) == {
    'model_fn',
    'client_weighting',
    *typing.get_type_hints(arguments.ClientArguments),
  }
