#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes an environment for each opponent of the benchmarks: `tools/setup_opponents.sh`, usually through `make opponents`.
# Each file of benchmarks/opponents becomes .venv-opponents/NAME; names as arguments choose some of them.
# PYTHON=... chooses the interpreter. What is there already, of the same versions, stays as it is.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3.11}
if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; then
  echo "opponents: needs Python 3.11 with its venv module, found no such $python. Set PYTHON=/path/to/python." >&2
  exit 1
fi
names=${*:-$(basename -s .txt benchmarks/opponents/*.txt)}
failed=""
for name in $names; do
  pins=benchmarks/opponents/$name.txt
  place=.venv-opponents/$name
  if [ ! -f "$pins" ]; then
    echo "opponents: $pins is not there." >&2
    exit 1
  fi
  if cmp -s "$pins" "$place/.ready"; then
    echo "$place is ready."
    continue
  fi
  echo "Making $place ..."
  # One that cannot be had is left out: the benchmark says so in its place.
  if "$python" -m venv --clear "$place" &&
    "$place/bin/python" -m pip install --disable-pip-version-check --quiet -r "$pins"; then
    cp "$pins" "$place/.ready"
  else
    rm -rf "$place"
    failed="$failed $name"
  fi
done
if [ -n "$failed" ]; then
  echo "opponents: could not be made:$failed. The benchmarks run without them." >&2
  exit 1
fi
