# SPDX-License-Identifier: Apache-2.0
"""Which client holds which training examples.

The paper's split (FedNAR, section "Experiments"; the split of Hsu, Qi and Brown, "Measuring the
Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019): each client
i draws class proportions `p_i ~ Dirichlet(alpha)` and then an equal number of examples according
to `p_i`, without replacement. Everything here is NumPy and a function of its seed alone.
"""

import hashlib
import pathlib
from collections.abc import Sequence

import attrs
import numpy as np


@attrs.frozen(eq=False)
class Partition:
  """A division of examples among clients.

  Attributes:
    client_ids: The clients' names, in order.
    rows: For each client, the increasing row numbers of its examples.
    labels: The class of every row, held or not.
  """

  client_ids: tuple[str, ...] = attrs.field(converter=lambda ids: tuple(ids))
  rows: tuple[np.ndarray, ...] = attrs.field(
    converter=lambda rows: tuple(np.sort(np.asarray(r, np.int32)) for r in rows)
  )
  labels: np.ndarray

  def __attrs_post_init__(self):
    if len(self.client_ids) != len(self.rows) or len(set(self.client_ids)) != len(self.rows):
      raise ValueError(
        f'`client_ids` must be {len(self.rows)} different names, one for each entry of `rows`, '
        f'found {len(set(self.client_ids))} different among {len(self.client_ids)}.'
      )
    held = np.sort(np.concatenate(self.rows))
    if np.any(held[1:] == held[:-1]):
      raise ValueError('`rows` must be disjoint, found an example that two clients hold.')
    if held.size and (held[0] < 0 or held[-1] >= len(self.labels)):
      raise ValueError(f'`rows` must be in [0, {len(self.labels)}), found {held[0]} to {held[-1]}.')

  @property
  def hash(self) -> str:
    """The SHA-256 of who holds what: equal for equal partitions only."""
    digest = hashlib.sha256()
    for client_id, rows in zip(self.client_ids, self.rows):
      name = client_id.encode()
      digest.update(f'{len(name)}:{len(rows)}:'.encode() + name + rows.astype('<i4').tobytes())
    return digest.hexdigest()

  def class_counts(self) -> np.ndarray:
    """Returns the number of examples of each class held by each client, [clients, classes]."""
    num_classes = int(self.labels.max()) + 1
    return np.stack([np.bincount(self.labels[rows], minlength=num_classes) for rows in self.rows])

  def plot(self, path: str | pathlib.Path) -> None:
    """Draws clients x classes, shaded by the share of the client's examples, into `path`."""
    # Figures of their own, not pyplot: no global state, no display needed.
    from matplotlib import ticker
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = self.class_counts()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure(figsize=(8, 4), layout='constrained')
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(shares.T, aspect='auto', interpolation='nearest', cmap='Blues', vmin=0)
    axes.set(
      xlabel='client',
      ylabel='class',
      title=f'{len(self.rows)} clients, {counts.sum()} examples, {self.hash[:12]}',
    )
    for axis in (axes.xaxis, axes.yaxis):  # There is no client 2.5.
      axis.set_major_locator(ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    figure.colorbar(image, label="share of the client's examples")
    figure.savefig(path)


def build_dirichlet(
  labels: Sequence[int] | np.ndarray, num_clients: int, alpha: float, *, seed: int = 0
) -> Partition:
  """Builds the paper's split: class proportions ~ Dirichlet(alpha), equal numbers of examples.

  Every example is used once; where the examples do not divide evenly, the first clients hold one
  more. All clients draw at the same time: a class in greater demand than its stock is shared out
  at random among those who drew it, and the others draw again from the classes that are left. So a
  class that runs out costs every client the same chance, and at most one pass per class is needed.

  Args:
    labels: The class of each example, integers from 0.
    num_clients: The number of clients.
    alpha: The concentration: small means few classes per client.
    seed: The seed of this split.

  Returns:
    A `Partition`.

  Raises:
    ValueError: If there are more clients than examples, or an argument is out of range.
  """
  labels, stock = _checked_labels(labels, num_clients)
  _check_alpha(alpha)
  generator = _generator('dirichlet', seed)
  proportions = generator.dirichlet(np.full(len(stock), float(alpha)), size=num_clients)
  wanted = _equal_sizes(len(labels), num_clients)
  granted = np.zeros((num_clients, len(stock)), np.int64)
  while wanted.any():
    demand = generator.multinomial(wanted, _renormalised(proportions, stock))
    for c in np.flatnonzero(demand.sum(axis=0) > stock):
      demand[:, c] = generator.multivariate_hypergeometric(
        demand[:, c], stock[c], method='marginals'
      )
    granted += demand
    stock = stock - demand.sum(axis=0)
    wanted = wanted - demand.sum(axis=1)
  return _hand_out(labels, granted, generator)


def build_dirichlet_unequal(
  labels: Sequence[int] | np.ndarray, num_clients: int, alpha: float, *, seed: int = 0
) -> Partition:
  """Builds the unequal variant: each class is divided in proportions ~ Dirichlet(alpha).

  Clients end with different numbers of examples. A client that would hold none receives one from
  the client that holds the most.

  Args:
    labels: As in `build_dirichlet`.
    num_clients: As in `build_dirichlet`.
    alpha: The concentration: small means few clients per class.
    seed: As in `build_dirichlet`.

  Raises:
    ValueError: As from `build_dirichlet`.
  """
  labels, stock = _checked_labels(labels, num_clients)
  _check_alpha(alpha)
  generator = _generator('dirichlet_unequal', seed)
  proportions = generator.dirichlet(np.full(num_clients, float(alpha)), size=len(stock))
  cuts = np.rint(np.cumsum(proportions, axis=1) * stock[:, np.newaxis]).astype(np.int64)
  cuts[:, -1] = stock  # The proportions' sum may miss 1 by a rounding error.
  granted = np.diff(cuts, axis=1, prepend=0).T
  sizes = granted.sum(axis=1)
  for client in np.flatnonzero(sizes == 0):
    donor = np.argmax(sizes)
    c = np.argmax(granted[donor])
    granted[[donor, client], c] += [-1, 1]
    sizes[[donor, client]] += [-1, 1]
  return _hand_out(labels, granted, generator)


def build_iid(labels: Sequence[int] | np.ndarray, num_clients: int, *, seed: int = 0) -> Partition:
  """Builds a uniformly random split into equal numbers of examples.

  Args:
    labels: As in `build_dirichlet`.
    num_clients: As in `build_dirichlet`.
    seed: As in `build_dirichlet`.

  Raises:
    ValueError: As from `build_dirichlet`.
  """
  labels, _ = _checked_labels(labels, num_clients)
  order = _generator('iid', seed).permutation(len(labels))
  return Partition(_names(num_clients), np.array_split(order, num_clients), labels)


def build_natural(labels: Sequence[int] | np.ndarray, client_ids: Sequence[str]) -> Partition:
  """Builds the split that the data came with.

  Args:
    labels: The class of each example, integers from 0.
    client_ids: The client of each example.

  Returns:
    A `Partition`, its clients sorted by name.

  Raises:
    ValueError: If there is not one client for each example.
  """
  labels = np.asarray(labels)
  owners = np.asarray(client_ids, dtype=str)
  if owners.shape != labels.shape:
    raise ValueError(
      f'`client_ids` must name one client for each of {labels.size} examples, found {owners.size}.'
    )
  names, owner = np.unique(owners, return_inverse=True)
  order = np.argsort(owner, kind='stable')
  ends = np.cumsum(np.bincount(owner))[:-1]
  return Partition(tuple(str(n) for n in names), np.split(order, ends), labels)


def _generator(purpose: str, seed: int) -> np.random.Generator:
  digest = hashlib.sha256(f'partition/{purpose}/{int(seed)}'.encode()).digest()
  return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], 'little')))


def _checked_labels(
  labels: Sequence[int] | np.ndarray, num_clients: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns `labels` as an array and the number of examples of each class."""
  labels = np.asarray(labels)
  if num_clients < 1:
    raise ValueError(f'`num_clients` must be at least 1, found {num_clients}.')
  if num_clients > len(labels):
    raise ValueError(
      f'`num_clients` must be at most the number of examples, {len(labels)}, found {num_clients}.'
    )
  return labels, np.bincount(labels)


def _check_alpha(alpha):
  if not (np.isfinite(alpha) and alpha > 0):
    raise ValueError(f'`alpha` must be positive and finite, found {alpha}.')


def _equal_sizes(num_examples, num_clients):
  sizes = np.full(num_clients, num_examples // num_clients)
  sizes[: num_examples % num_clients] += 1
  return sizes


def _renormalised(proportions, stock):
  """Proportions over the classes in stock; the stock's own where a client has none of them left."""
  left = np.where(stock > 0, proportions, 0.0)
  # Below this the division overflows or `multinomial` sees a sum other than 1.
  empty = left.sum(axis=1) < 1e-200
  left[empty] = stock
  return left / left.sum(axis=1, keepdims=True)


def _hand_out(labels, granted, generator):
  """Gives each client its number of examples of each class, chosen at random."""
  pieces: list[list[np.ndarray]] = [[] for _ in range(granted.shape[0])]
  for c in range(granted.shape[1]):
    rows = generator.permutation(np.flatnonzero(labels == c))
    starts = np.concatenate([[0], np.cumsum(granted[:, c])])
    for client in np.flatnonzero(granted[:, c]):
      pieces[client].append(rows[starts[client] : starts[client + 1]])
  return Partition(_names(len(pieces)), [np.concatenate(p) for p in pieces], labels)


def _names(num_clients):
  width = len(str(num_clients - 1))
  return tuple(f'client_{i:0{width}d}' for i in range(num_clients))
