"""The settings of every cell of the paper's tables and figures: `python -m experiments.make_presets` writes them as flag files.

Each variant is a folder of experiments/presets: `paper` follows the paper's text, `reference` its released code (the numbers D1 to D17
are those of PAPER_VS_CODE.md, which lists where the two differ), and `cpu` is reduced to minutes on two cores.
"""

import pathlib
from collections.abc import Iterator

from experiments import paper

FOLDER = pathlib.Path(__file__).parent / 'presets'
VARIANTS = ('paper', 'reference', 'cpu')
OPTIMIZERS = ('clip', 'nar')
ALPHAS = (0.3, 1.0, 10.0)
SHAKESPEARE_WEIGHT_DECAYS = (1e-4, 1e-3)
# The figure of accuracy against weight decay: (alpha, local steps), and the decays.
SWEEP_SETTINGS = ((0.3, 20), (0.3, 5), (10.0, 20))
SWEEP_WEIGHT_DECAYS = (1e-4, 1e-3, 1e-2, 5e-2, 1e-1)
# The figure of robustness.
ROBUSTNESS_ALGORITHMS = ('fed_avg', 'fed_prox', 'scaffold')
ROBUSTNESS_WEIGHT_DECAYS = (1e-2, 1e-1)
ALGORITHMS = ('fed_avg', 'fed_prox', 'scaffold', 'fed_exp', 'fed_adam', 'fed_avgm')

# What both the paper and its code state, and what each variant changes.
COMMON = {
  'cifar10': {
    'task': 'cifar10', 'model': 'resnet18', 'num_clients': 100, 'clients_per_round': 20, 'batch_size': 50,
    'learning_rate': 0.01, 'learning_rate_decay': 0.998, 'max_norm': 10.0, 'total_rounds': 1000,
    'rounds_per_evaluation': 10, 'rounds_per_checkpoint': 50,
  },
  'shakespeare': {
    'task': 'shakespeare', 'model': 'transformer', 'num_clients': 100, 'clients_per_round': 20, 'batch_size': 100,
    'learning_rate': 0.1, 'learning_rate_decay': 0.998, 'max_norm': 10.0, 'dropout': 0.1, 'total_rounds': 300,
    'rounds_per_evaluation': 10, 'rounds_per_checkpoint': 50,
  },
}  # fmt: skip
CHANGES = {
  ('paper', 'cifar10'): {'augmentation': 'per_image', 'pooling': 'global'},  # D15, D7
  ('paper', 'shakespeare'): {'local_epochs': 5},  # D12
  ('reference', 'cifar10'): {
    'augmentation': 'per_batch', 'pooling': 'top_left',  # D15, D7
    'first_round_decays': True, 'norm_epsilon': 1e-6, 'total_rounds': 1001,  # D4, D10, D3
  },
  ('reference', 'shakespeare'): {
    'local_steps': 100, 'first_round_decays': True, 'norm_epsilon': 1e-6, 'total_rounds': 1001,  # D12, D4, D10, D3
    'sampling_seed': 0,  # D14
  },
  # Small models have small norms, so the bound is scaled with them: at 10 nothing would ever be clipped.
  ('cpu', 'cifar10'): {
    'model': 'cnn', 'clients_per_round': 5, 'batch_size': 20, 'learning_rate': 0.05, 'max_norm': 1.0, 'total_rounds': 50,
    'augmentation': 'per_image', 'rounds_per_evaluation': 10, 'rounds_per_checkpoint': 25,
  },
  ('cpu', 'shakespeare'): {
    'clients_per_round': 5, 'batch_size': 50, 'local_steps': 10, 'max_norm': 1.0, 'total_rounds': 60,
    'rounds_per_evaluation': 10, 'rounds_per_checkpoint': 10,
  },
}  # fmt: skip


def algorithm_settings(variant: str, task: str, algorithm: str) -> dict:
  """Returns what an algorithm adds to the settings of a variant."""
  settings = {}
  if algorithm == 'fed_prox':
    settings['proximal_strength'] = 0.001  # D11
    if (variant, task) == ('reference', 'shakespeare'):
      settings.update(local_steps=20, batch_size=500)  # D12
  if algorithm == 'fed_avgm':
    settings['server_momentum'] = 0.9
  if variant == 'reference':
    settings['client_weighting'] = 'num_examples'  # D2
    if algorithm == 'fed_adam':
      settings.update(
        server_learning_rate=0.1, server_epsilon=0.01, server_variant='reference'
      )  # D5, D6
      if task == 'cifar10':
        settings['total_rounds'] = 301  # D3
    if algorithm == 'fed_exp':
      settings.update(extrapolation_epsilon=0.0, average_last_two=True)  # D8
    if task == 'shakespeare' and algorithm in ('fed_exp', 'fed_adam', 'fed_avgm'):
      settings['learning_rate'] = 0.01  # D13
  return settings


def cells() -> Iterator[tuple[str, dict]]:
  """Yields each cell once, as the name of its task and what sets it apart."""
  seen = set()

  def cell(task, **settings):
    key = (task, *sorted(settings.items()))
    if key not in seen:
      seen.add(key)
      yield task, settings

  for algorithm in ALGORITHMS:
    for optimizer in OPTIMIZERS:
      for alpha in ALPHAS:
        yield from cell('cifar10', algorithm=algorithm, client_optimizer=optimizer, alpha=alpha,
                        local_steps=20, weight_decay=paper.CIFAR10_WEIGHT_DECAYS[algorithm])  # fmt: skip
      for weight_decay in SHAKESPEARE_WEIGHT_DECAYS:
        yield from cell(
          'shakespeare', algorithm=algorithm, client_optimizer=optimizer, weight_decay=weight_decay
        )
    for alpha, local_steps in SWEEP_SETTINGS:
      for weight_decay in SWEEP_WEIGHT_DECAYS:
        yield from cell('cifar10', algorithm=algorithm, client_optimizer='clip', alpha=alpha,
                        local_steps=local_steps, weight_decay=weight_decay)  # fmt: skip
  for algorithm in ROBUSTNESS_ALGORITHMS:
    for optimizer in OPTIMIZERS:
      for weight_decay in ROBUSTNESS_WEIGHT_DECAYS:
        yield from cell('cifar10', algorithm=algorithm, client_optimizer=optimizer, alpha=0.3,
                        local_steps=20, weight_decay=weight_decay)  # fmt: skip


def preset(variant: str, task: str, cell: dict) -> dict:
  """Returns all settings of a cell in a variant."""
  settings = {**COMMON[task], **CHANGES[variant, task], **cell}
  settings.update(algorithm_settings(variant, task, cell['algorithm']))
  settings['title'] = title(variant, settings)
  return settings


def file_name(variant: str, settings: dict) -> str:
  """Returns a name that spells the cell, and for the reduced variant its size."""
  parts = [settings['task']]
  if variant == 'cpu':
    parts += [settings['model'], f'{settings["total_rounds"]}rounds']
  parts += [settings['algorithm'], settings['client_optimizer']]
  if 'alpha' in settings:
    parts += [f'alpha{settings["alpha"]:g}', f'steps{settings["local_steps"]}']
  parts.append(f'wd{settings["weight_decay"]:g}')
  return '_'.join(parts) + '.flags'


def title(variant: str, settings: dict) -> str:
  """Returns the title of a cell's plots; that of a reduced one says so."""
  text = f'{settings["task"]} {settings["algorithm"]} {settings["client_optimizer"]} wd {settings["weight_decay"]:g}'
  if 'alpha' in settings:
    text += f' alpha {settings["alpha"]:g}'
  if variant == 'cpu':
    text += f' (reduced: {settings["model"]}, {settings["clients_per_round"]} clients a round, {settings["total_rounds"]} rounds)'
  return text


def files() -> dict[pathlib.Path, str]:
  """Returns the text of each flag file by its path in the folder of presets."""
  found = {}
  for variant in VARIANTS:
    for task, cell in cells():
      settings = preset(variant, task, cell)
      path = pathlib.Path(variant) / file_name(variant, settings)
      lines = [
        f'--{name}={str(value).lower() if isinstance(value, bool) else value}'
        for name, value in settings.items()
      ]
      found[path] = '\n'.join(lines) + '\n'
  return found


def main():
  wanted = files()
  for path in FOLDER.rglob('*.flags'):
    if path.relative_to(FOLDER) not in wanted:
      path.unlink()
  for path, text in wanted.items():
    (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
    (FOLDER / path).write_text(text)
  print(f'{len(wanted)} presets in {FOLDER.name}/')


if __name__ == '__main__':
  main()
