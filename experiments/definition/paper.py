# SPDX-License-Identifier: Apache-2.0
"""The paper's results (accuracies in per cent, as (baseline, NAR)) and its sizes."""

# The table on CIFAR-10, by algorithm and alpha.
CIFAR10 = {
  'fed_avg': {0.3: (85.19, 87.64), 1.0: (88.50, 89.55), 10.0: (89.45, 90.23)},
  'fed_prox': {0.3: (85.02, 87.45), 1.0: (88.56, 89.58), 10.0: (89.37, 90.38)},
  'scaffold': {0.3: (86.89, 89.17), 1.0: (89.52, 91.13), 10.0: (90.64, 91.85)},
  'fed_exp': {0.3: (86.46, 88.55), 1.0: (88.28, 89.51), 10.0: (88.82, 89.69)},
  'fed_adam': {0.3: (84.12, 85.81), 1.0: (87.35, 87.78), 10.0: (88.86, 89.56)},
  'fed_avgm': {0.3: (90.33, 90.43), 1.0: (91.60, 91.76), 10.0: (92.19, 91.15)},
}

# The weight decay of that table, from the released scripts.
CIFAR10_WEIGHT_DECAYS = {
  'fed_avg': 0.05,
  'fed_prox': 0.05,
  'scaffold': 0.05,
  'fed_exp': 0.01,
  'fed_adam': 0.01,
  'fed_avgm': 0.01,
}

# The table on Shakespeare, by algorithm and weight decay.
SHAKESPEARE = {
  'fed_avg': {1e-4: (42.44, 44.37), 1e-3: (40.05, 44.69)},
  'fed_prox': {1e-4: (41.92, 43.57), 1e-3: (40.91, 40.26)},
  'scaffold': {1e-4: (47.55, 45.60), 1e-3: (42.40, 44.53)},
  'fed_exp': {1e-4: (38.15, 39.63), 1e-3: (39.67, 39.92)},
  'fed_adam': {1e-4: (45.80, 45.42), 1e-3: (47.19, 47.48)},
  'fed_avgm': {1e-4: (45.03, 45.63), 1e-3: (46.12, 47.13)},
}

# The figure of accuracy against weight decay: (alpha, local steps), and the decays.
SWEEP_SETTINGS = ((0.3, 20), (0.3, 5), (10.0, 20))
SWEEP_WEIGHT_DECAYS = (1e-4, 1e-3, 1e-2, 5e-2, 1e-1)

# The figure of robustness.
ROBUSTNESS_ALGORITHMS = ('fed_avg', 'fed_prox', 'scaffold')
ROBUSTNESS_WEIGHT_DECAYS = (1e-2, 1e-1)

# The number of local steps, where it is not varied, and the sizes of a run that the text and the
# released code agree on.
LOCAL_STEPS = 20
SIZES = {
  'cifar10': {
    'task': 'cifar10', 'model': 'resnet18', 'num_clients': 100, 'clients_per_round': 20,
    'batch_size': 50,
    'learning_rate': 0.01, 'learning_rate_decay': 0.998, 'max_norm': 10.0, 'total_rounds': 1000,
  },
  'shakespeare': {
    'task': 'shakespeare', 'model': 'transformer', 'num_clients': 100, 'clients_per_round': 20,
    'batch_size': 100,
    'learning_rate': 0.1, 'learning_rate_decay': 0.998, 'max_norm': 10.0, 'dropout': 0.1,
    'total_rounds': 300,
  },
}  # fmt: skip
