# SPDX-License-Identifier: Apache-2.0
"""Callbacks that write a run to MLflow or Weights & Biases, on this machine by default.

Neither package is needed, unless its tracker is used.
"""

import importlib
import json
import math
import pathlib
import socket
import time
import urllib.parse
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from fednar_tff.simulation import callbacks

_SECONDS_TO_ANSWER = 5.0


class TrackerError(Exception):
  """A tracker cannot be used; the message says why and what to do."""


def _import(name, package):
  try:
    return importlib.import_module(name)
  except ImportError as e:
    raise TrackerError(
      f'{package} cannot be imported ({e}). Install it: pip install {package}'
    ) from e


def _check_reachable(url: str) -> None:
  """Raises a `TrackerError` if no server answers; the trackers' own libraries try for minutes."""
  parts = urllib.parse.urlsplit(url)
  if parts.scheme not in ('http', 'https'):
    return
  try:
    port = parts.port or (443 if parts.scheme == 'https' else 80)
    socket.create_connection((parts.hostname or '', port), _SECONDS_TO_ANSWER).close()
  except (OSError, ValueError) as e:
    raise TrackerError(
      f'No tracking server answers at {url} ({e}). Start it, or give a folder instead.'
    ) from e


class _Identity:
  """Which run of the tracker a run is, kept in its directory for those who resume it."""

  def __init__(self, run: Any, name: str):
    self._path = None if run.output_dir is None else run.output_dir / name

  def read(self) -> dict[str, str]:
    if self._path is None or not self._path.exists():
      return {}
    return json.loads(self._path.read_text())

  def write(self, **identity: str) -> None:
    if self._path is not None:
      temporary = self._path.with_suffix('.json_temp')
      temporary.write_text(json.dumps(identity) + '\n')
      temporary.replace(self._path)


def _numbers(progress) -> dict[str, float]:
  """Returns what a round has measured, and how long it took, if that is known."""
  numbers = {name: float(v) for name, v in progress.metrics.items() if v is not None}
  return numbers if math.isnan(progress.seconds) else {**numbers, 'seconds': progress.seconds}


class MLflowTracker(callbacks.Callback):
  """Writes a run to MLflow: its settings as parameters, and the metrics of each round.

  A run that resumes goes on in the same run of MLflow, and every round is there once.
  """

  def __init__(
    self,
    tracking_uri: str | pathlib.Path = 'mlruns',
    *,
    experiment: str = 'fednar_tff',
    run_name: str | None = None,
    params: Mapping[str, Any] | None = None,
  ):
    """Connects to MLflow.

    Args:
      tracking_uri: A folder on this machine, or the URL of a tracking server.
      experiment: The name of MLflow's experiment, made if there is none.
      run_name: What MLflow calls the run.
      params: More parameters than `run.description` has, such as the task's name.

    Raises:
      TrackerError: If MLflow is missing, its server does not answer, or its folder cannot be
        written.
    """
    self._uri = str(tracking_uri)
    _check_reachable(self._uri)
    self._mlflow = _import('mlflow', 'mlflow')
    if '://' not in self._uri:
      self._uri = pathlib.Path(self._uri).absolute().as_uri()
    try:
      self._client = self._mlflow.MlflowClient(self._uri)
      self._client.search_experiments(max_results=1)
    except Exception as e:
      reason = ' '.join(str(e).split())
      raise TrackerError(f'MLflow cannot use {tracking_uri} ({type(e).__name__}: {reason}).') from e
    self._experiment, self._run_name, self._params = experiment, run_name, dict(params or {})
    self._run_id: str | None = None
    self._logged: set[tuple[str, int]] = set()

  @property
  def run_id(self) -> str | None:
    """MLflow's id of the run, once it has started."""
    return self._run_id

  def on_start(self, run: Any, history: Sequence[Any]) -> None:
    identity = _Identity(run, 'mlflow.json')
    saved = identity.read()
    if saved.get('tracking_uri') == self._uri:
      self._run_id = saved['run_id']
      self._client.update_run(self._run_id, status='RUNNING')
      names = self._client.get_run(self._run_id).data.metrics
      self._logged = {
        (name, m.step)
        for name in names
        for m in self._client.get_metric_history(self._run_id, name)
      }
    else:
      self._run_id = created = self._create_run(run)
      identity.write(tracking_uri=self._uri, run_id=created)
    for progress in history:
      self.on_round(run, progress)

  def _create_run(self, run):
    found = self._client.get_experiment_by_name(self._experiment)
    experiment_id = (
      found.experiment_id if found else self._client.create_experiment(self._experiment)
    )
    run_id = self._client.create_run(experiment_id, run_name=self._run_name).info.run_id
    for name, value in {**run.description, **self._params}.items():
      # MLflow takes no other signs in a name, and no long values.
      name = ''.join(c if c.isalnum() or c in '_-. /' else '_' for c in name)
      self._client.log_param(run_id, name, str(value)[:500])
    return run_id

  def on_round(self, run: Any, progress: Any) -> None:
    step, now = progress.round_num, int(1000 * time.time())
    # Rounds that a killed process did after its last checkpoint are done again, to the same
    # numbers.
    new = {k: v for k, v in _numbers(progress).items() if (k, step) not in self._logged}
    entities = self._mlflow.entities
    self._client.log_batch(
      self._run_id, metrics=[entities.Metric(k, v, now, step) for k, v in new.items()]
    )
    self._logged.update((name, step) for name in new)

  def on_end(self, run: Any, error: BaseException | None) -> None:
    if self._run_id is None:
      return
    interrupted = isinstance(error, (KeyboardInterrupt, SystemExit))
    status = 'FINISHED' if error is None else 'KILLED' if interrupted else 'FAILED'
    self._client.set_terminated(self._run_id, status)


class WandbTracker(callbacks.Callback):
  """Writes a run to Weights & Biases: its settings, and the metrics of each round.

  Offline by default: into a folder `wandb`, which `wandb sync` uploads. A run that resumes has the
  same id, so that its parts are one run after the upload; of rounds that were done twice, W&B keeps
  the first.
  """

  def __init__(
    self,
    project: str = 'fednar_tff',
    *,
    mode: str = 'offline',
    directory: str | pathlib.Path = '.',
    run_name: str | None = None,
    config: Mapping[str, Any] | None = None,
  ):
    """Chooses where to write.

    Args:
      project: The name of the project.
      mode: `'offline'`, or `'online'`, which needs an account.
      directory: Where the folder `wandb` is, or is made.
      run_name: What W&B calls the run.
      config: More settings than `run.description` has, such as the task's name.

    Raises:
      TrackerError: If W&B is missing, or, online, does not answer.
      ValueError: If `mode` is unknown.
    """
    if mode not in ('offline', 'online'):
      raise ValueError(f"`mode` must be 'offline' or 'online', found {mode!r}.")
    if mode == 'online':
      _check_reachable('https://api.wandb.ai')
    self._wandb = _import('wandb', 'wandb')
    self._project, self._mode, self._run_name = project, mode, run_name
    self._directory, self._config = pathlib.Path(directory), dict(config or {})
    self._tracked: Any = None

  def on_start(self, run: Any, history: Sequence[Any]) -> None:
    identity = _Identity(run, 'wandb.json')
    known = identity.read().get('run_id')
    run_id = known or uuid.uuid4().hex
    self._directory.mkdir(parents=True, exist_ok=True)
    self._tracked = self._wandb.init(
      project=self._project,
      mode=self._mode,
      dir=str(self._directory),
      id=run_id,
      resume='allow',
      name=self._run_name,
      config={**run.description, **self._config},
      settings=self._wandb.Settings(silent=True),
    )
    identity.write(run_id=run_id)
    for progress in () if known else history:
      self.on_round(run, progress)

  def on_round(self, run: Any, progress: Any) -> None:
    self._tracked.log(_numbers(progress), step=progress.round_num)

  def on_end(self, run: Any, error: BaseException | None) -> None:
    if self._tracked is not None:
      self._tracked.finish(exit_code=0 if error is None else 1)
