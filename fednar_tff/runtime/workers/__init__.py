# SPDX-License-Identifier: Apache-2.0
"""The runtimes on TFF's own workers, C++ programs that are sent computations through gRPC.

`native` runs one worker on this machine, `remote` uses workers on other machines. Both speak to
them through `connection`, and stop them alike through `execution`. `launcher` starts a worker, and
`supervisor` ends it, as `at_exit` does with those that TFF itself starts.
"""
