# SPDX-License-Identifier: Apache-2.0
"""The experiment binaries: flags in, tables and plots out. Nothing here is an algorithm."""
