# SPDX-License-Identifier: Apache-2.0
"""The in-process runtime: TFF computations inside this process, on the devices of TensorFlow.

A round goes through these modules in this order: `context` is called, `passes` plans the
computation with `tracer` and `steps`, `rounds` runs the plan, `client_pool` runs the clients, small
ones in `groups`, and `graph_function` calls their TensorFlow graphs.
"""
