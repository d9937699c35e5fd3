# SPDX-License-Identifier: Apache-2.0
"""A round spread over the machines of a Ray cluster."""
