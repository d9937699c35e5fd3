# SPDX-License-Identifier: Apache-2.0
"""Speed, always as a ratio against a named opponent in the same run: `make bench`."""
