#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel and the sdist into dist/, installs each into a new virtual environment, and trains with it from outside of the checkout.
# Neither installs `experiments`; the sdist has it, and it runs from there.
# The requirements come from .venv: they are a gigabyte, and what is tested here is this package.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python=$root/.venv/bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TF_CPP_MIN_LOG_LEVEL=3 PYTHONNOUSERSITE=1
unset PYTHONPATH

# From a copy of what git knows, so that leftovers of the checkout cannot get in.
mkdir "$scratch/source" && git ls-files -z --cached --others --exclude-standard |
  xargs -0 tar --create --ignore-failed-read 2>/dev/null | tar --extract -C "$scratch/source"
rm -rf dist
echo 'Building the wheel and the sdist ...'
"$python" -m build --no-isolation --outdir dist "$scratch/source" >"$scratch/build.log" 2>&1 ||
  { cat "$scratch/build.log" >&2; exit 1; }

# Everything of .venv but the link to this checkout, which an editable installation leaves there.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir "$scratch/packages"
for entry in "$packages"/*; do
  case $(basename "$entry") in
    fednar_tff* | __editable__* | *.pth | *.egg-link) ;;
    *) ln -s "$entry" "$scratch/packages/" ;;
  esac
done

for archive in dist/*.whl dist/*.tar.gz; do
  echo "Installing $archive ..."
  environment=$scratch/$(basename "$archive")
  "$python" -m venv "$environment"
  echo "$scratch/packages" >"$environment/lib/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages/requirements.pth"
  "$environment/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --no-index "$root/$archive"
  mkdir "$environment/elsewhere" && cd "$environment/elsewhere"
  "$environment/bin/python" - "$root" "$environment" <<'PYTHON'
import importlib.util
import pathlib
import sys

import fednar_tff
from fednar_tff import algorithms, optimizers, simulation, tasks

checkout, environment = sys.argv[1:]
assert pathlib.Path(fednar_tff.__file__).is_relative_to(environment), fednar_tff.__file__
assert checkout not in sys.path
assert importlib.util.find_spec('experiments') is None, 'experiments is installed'
assert (pathlib.Path(fednar_tff.__file__).parent / 'py.typed').exists(), 'py.typed is missing'

fednar_tff.runtime.set_in_process_context()
task = tasks.create_task('synthetic')
process = algorithms.build_fed_avg(
  task.model_fn, client_optimizer_fn=optimizers.build_nar(0.1, 0.001, 1.0), loop_implementation=algorithms.PACKED
)
run = simulation.run(task, process, total_rounds=20, clients_per_round=5, batch_size=10, local_steps=5)
accuracy = [progress.metrics for progress in run][-1]['test_accuracy']
assert accuracy > 0.6, accuracy
print(f'  import {fednar_tff.__version__}: accuracy {accuracy:.2f} on synthetic data')
PYTHON
  cd "$root"
done
mkdir "$scratch/sdist" && tar --extract --gzip --file="$(ls dist/*.tar.gz)" -C "$scratch/sdist" --strip-components=1
cd "$scratch/sdist"
"$environment/bin/python" -m experiments.train --task=synthetic --total_rounds=2 --output_dir="$scratch/run" >"$scratch/train.log" 2>&1 ||
  { cat "$scratch/train.log" >&2; exit 1; }
test -s "$scratch/run/result.json"
echo '  python -m experiments.train in the unpacked sdist: done'
cd "$root"
echo "Both work: $(cd dist && ls | tr '\n' ' ')"
