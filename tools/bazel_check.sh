#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Queries and builds all Bazel targets, runs some of the tests, and trains with the binary that was built: `make bazel`.
# BAZEL_TESTS=//... runs all tests. Needs no network; without Bazel it says so and ends well.
set -eu
cd "$(dirname "$0")/.."
if ! command -v bazel >/dev/null; then
  echo 'bazel: skipped, there is no Bazel here (on Debian: apt-get install bazel-bootstrap).'
  exit 0
fi
root=$PWD
scratch=$(mktemp -d)
run_bazel() (cd "$root" && bazel --output_user_root="$scratch/bazel" "$@")
# Bazel leaves a server behind, and folders that cannot be written to.
trap 'run_bazel shutdown; chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
run_bazel query //...
run_bazel build //...
# In Bazel's own tree of files, with the Python of .venv.
# shellcheck disable=SC2086 # several targets
run_bazel test --action_env=PATH="$root/.venv/bin:$PATH" --test_env=PATH="$root/.venv/bin:$PATH" --local_test_jobs=2 --test_output=errors \
  ${BAZEL_TESTS:-//:tests/optimizers/test_theory //:tests/simulation/test_seeds}
bin=$(run_bazel info bazel-bin 2>/dev/null)
# From elsewhere, so that it imports what Bazel put together and not this checkout.
cd "$scratch"
PATH=$root/.venv/bin:$PATH "$bin/train" --task=synthetic --total_rounds=2 --output_dir=run
