# SPDX-License-Identifier: Apache-2.0
"""What is learned, and on whose data."""

from fednar_tff.tasks.models import build_model_fns as build_model_fns
from fednar_tff.tasks.partition import Partition as Partition
from fednar_tff.tasks.partition import build_dirichlet as build_dirichlet
from fednar_tff.tasks.partition import build_dirichlet_unequal as build_dirichlet_unequal
from fednar_tff.tasks.partition import build_iid as build_iid
from fednar_tff.tasks.partition import build_natural as build_natural
from fednar_tff.tasks.precision import describe_speed as describe_speed
from fednar_tff.tasks.precision import is_slow as is_slow
from fednar_tff.tasks.registry import create_task as create_task
from fednar_tff.tasks.registry import register_task as register_task
from fednar_tff.tasks.registry import task_arguments as task_arguments
from fednar_tff.tasks.registry import task_names as task_names
from fednar_tff.tasks.sources import DataError as DataError
from fednar_tff.tasks.task import RawInput as RawInput
from fednar_tff.tasks.task import Task as Task
from fednar_tff.tasks.task_builder import build_task as build_task
