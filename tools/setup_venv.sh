#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the virtual environment in .venv from the lock files: `tools/setup_venv.sh`, usually through `make setup`.
# PYTHON=... chooses the interpreter. Running it again, or after an interruption, continues where it stopped.
set -eu
cd "$(dirname "$0")/.."

usable() {  # A Python we have a lock file for, that can make virtual environments.
  "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in [(3, 10), (3, 11)])' >/dev/null 2>&1
}

find_python() {
  looked_for=""
  for candidate in ${PYTHON:-python3.11 python3.10 python3 python \
      "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11.*/bin/python "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.10.*/bin/python}; do
    looked_for="$looked_for $candidate"
    if usable "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  echo "setup: needs Python 3.10 or 3.11 with its venv module (TFF 0.87 runs on nothing newer); looked for:$looked_for. Set PYTHON=/path/to/python." >&2
  return 1
}

if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then
  echo "setup: TFF 0.87 is built for Linux on x86_64 only; this is $(uname -s) on $(uname -m)." >&2
  exit 1
fi
if ! usable .venv/bin/python; then
  python=$(find_python)
  echo "Making .venv with $python ..."
  "$python" -m venv --clear .venv
fi
version=$(.venv/bin/python -c 'import sys; print("%d%d" % sys.version_info[:2])')
echo "Installing the packages of requirements/py$version.txt (about 1 GB once; pip keeps them in its cache) ..."
# The locks are complete, so nothing is resolved; TFF's own requirements could not be (see requirements.in).
for lock in "requirements/py$version.txt" "requirements/dev-py$version.txt" "requirements/cluster-py$version.txt" requirements-tff.txt; do
  .venv/bin/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r "$lock" |
    grep -v '^Requirement already satisfied' || true
done
.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
.venv/bin/python -c 'import fednar_tff' 2>/dev/null || .venv/bin/python -c 'import fednar_tff'
touch .venv/.ready
