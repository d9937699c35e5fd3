# SPDX-License-Identifier: Apache-2.0
"""Running one, or many: settings to task and process; directory, resume, result; Slurm."""
