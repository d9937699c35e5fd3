# SPDX-License-Identifier: Apache-2.0
"""What a run is: settings, choices, presets, the paper's numbers. Imports no TensorFlow."""
