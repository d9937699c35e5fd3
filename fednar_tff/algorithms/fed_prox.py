# SPDX-License-Identifier: Apache-2.0
"""FedProx: federated averaging that pulls each client back to the server's weights.

Federated Optimization in Heterogeneous Networks
    Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith.
    MLSys 2020. https://arxiv.org/abs/1812.06127, Algorithm 2.
"""

import math

import tensorflow as tf
import tensorflow_federated as tff

from fednar_tff.algorithms import arguments, fed_avg, local_training


@arguments.with_arguments_of(fed_avg.build_fed_avg)
def build_fed_prox(
  model_fn: local_training.ModelFn,
  *,
  proximal_strength: float,
  **fed_avg_arguments: 'arguments.Unpack[arguments.FedAvgArguments]',
) -> tff.learning.templates.LearningProcess:
  """Returns FedProx: FedAvg whose clients minimise their loss plus `prox / 2 ||y - x||^2`.

  With client weights `y`, gradient `g`, server weights `x` and `prox` (`proximal_strength`), a
  local step is given

  ```
  g + prox (y - x)
  ```

  in place of `g`, so that the term is inside the norm that NAR or the baseline clips. TFF 0.87's
  own FedProx subtracts the term.

  Args:
    model_fn: As in `build_fed_avg`.
    proximal_strength: A nonnegative float; at 0 this is `build_fed_avg` to the bit. The paper's
      released code has 0.001.
    **fed_avg_arguments: The other arguments of `build_fed_avg`.

  Raises:
    ValueError: If `proximal_strength` is out of range.
  """
  if not 0.0 <= proximal_strength < math.inf:
    raise ValueError(
      f'`proximal_strength` must be a nonnegative number, found {proximal_strength!r}.'
    )

  def add_proximal_term(gradient, weights, server_weights):
    return [
      None if g is None else g + tf.cast(proximal_strength, g.dtype) * (y - x)
      for g, y, x in zip(gradient, weights, server_weights)
    ]

  return fed_avg.build_corrected_fed_avg(
    model_fn, correction_fn=add_proximal_term, **fed_avg_arguments
  )
