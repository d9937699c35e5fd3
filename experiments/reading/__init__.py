# SPDX-License-Identifier: Apache-2.0
"""Reading many runs: statistics, tables, figures. Imports neither TensorFlow nor what runs them."""
