#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes requirements/*.txt and requirements-tff.txt anew: `make lock`. Needs uv; writes no index address.
set -eu
cd "$(dirname "$0")/.."
uv=$(mktemp -d)
trap 'rm -rf "$uv"' EXIT
.venv/bin/python -m venv "$uv"
"$uv/bin/pip" install --quiet uv

compile() {  # python version, output, more arguments
  version=$1 output=$2
  shift 2
  "$uv/bin/uv" pip compile --quiet --upgrade --generate-hashes --no-annotate --no-header \
    --python-version "$version" --python-platform x86_64-manylinux_2_31 "$@" -o "$output" >/dev/null
  echo "$output"
}

for version in 3.10 3.11; do
  short=$(echo "$version" | tr -d .)
  compile "$version" "requirements/py$short.txt" requirements.in
  compile "$version" "requirements/dev-py$short.txt" --constraint "requirements/py$short.txt" requirements-dev.txt
  compile "$version" "requirements/cluster-py$short.txt" --constraint "requirements/py$short.txt" \
    --constraint "requirements/dev-py$short.txt" requirements-cluster.txt
done
echo 'tensorflow-federated==0.87.0' | compile 3.11 requirements-tff.txt --no-deps -
