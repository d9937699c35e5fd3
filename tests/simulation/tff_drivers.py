# SPDX-License-Identifier: Apache-2.0
"""Training with TFF's own driver, in a test and in the program that a test kills."""

import asyncio

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

DATA = {'batch_size': 10, 'local_steps': 2, 'seed': 4}
ROUNDS, CLIENTS = 5, 3


def leaves(structure):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(structure)]


def train_model(process, data_source, context, folder, rounds=ROUNDS, **others):
  managers = {
    'program_state_manager': tff.program.FileProgramStateManager(folder / 'states', keep_total=0),
    'model_output_manager': tff.program.SavedModelFileReleaseManager(folder / 'models'),
    'train_metrics_manager': tff.program.MemoryReleaseManager(),
    'evaluation_manager': None,
    'evaluation_periodicity': 1000,
    **others,
  }
  with tff.framework.get_context_stack().install(tff.program.NativeFederatedContext(context)):
    asyncio.run(
      tff.learning.programs.train_model(
        train_process=process,
        train_data_source=data_source,
        train_per_round_clients=CLIENTS,
        train_total_rounds=rounds,
        **managers,
      )
    )
  return managers


def saved_state(process, data_source, folder, version):
  manager = tff.program.FileProgramStateManager(folder / 'states')
  like = tff.learning.programs.ProgramState(process.initialize(), 0, 0, data_source.iterator())
  return asyncio.run(manager.load(version, like)).state
