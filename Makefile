# `make help` lists the commands. `make demo` and `make test` set everything up by themselves.
PY := .venv/bin/python
READY := .venv/.ready
BENCH := TF_CPP_MIN_LOG_LEVEL=3 $(PY) -m benchmarks
# Two at a time, a file in one piece: most of a test is single-threaded tracing.
PYTEST := TF_CPP_MIN_LOG_LEVEL=3 $(PY) -m pytest -n 2 --dist loadfile --durations=25

.PHONY: help setup demo test coverage test-slow test-stress test-full bench opponents study results doctor gpu-check docs conformance dist bazel lint lock clean

help:  ## List the commands.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## Make .venv with everything in it (PYTHON=... chooses the interpreter).

$(READY): requirements.in requirements-cluster.txt requirements-dev.txt requirements-tff.txt $(wildcard requirements/*.txt) setup.py tools/setup_venv.sh
	@tools/setup_venv.sh

demo: $(READY)  ## Train NAR and its baseline on the digits images; a table and a picture (half a minute).
	@$(PY) -m experiments.demo

test: $(READY) lint  ## Lint, and run the test suite.
	$(PYTEST)

coverage: $(READY)  ## Run the test suite with branch coverage; no branch of an update rule may be missed.
	$(PYTEST) --cov --cov-report= --cov-report=json:build/coverage.json
	@$(PY) -m tools.coverage_check build/coverage.json

test-slow: $(READY)  ## Run the checks that are too long for `make test`, or need prepared data.
	$(PYTEST) -m slow
	@tools/bazel_check.sh
	@tools/dist_smoke_test.sh

test-stress: $(READY)  ## Run clients at the same time, a thousand times over, and compare bits (a quarter of an hour).
	FEDNAR_STRESS=1000 $(PYTEST) tests/runtime/test_concurrency.py

test-full: $(READY)  ## Run every algorithm once on the paper's real models (hours; needs prepared data).
	@TF_CPP_MIN_LOG_LEVEL=3 $(PY) -W ignore -m tools.full_size

bench: $(READY)  ## Measure speed against named opponents, and write docs/performance.md (over an hour; goes on where it stopped; BEFORE=checkout joins).
	@$(BENCH).optimizer_step
	@$(BENCH).client_data
	@$(BENCH).rounds --resume $(if $(BEFORE),--before $(BEFORE))
	@$(BENCH).scaling --resume
	@$(BENCH).input || echo 'bench: left out: benchmarks.input.'
	@$(BENCH).page --collect

opponents:  ## Make the environments of the benchmarks' opponents from pinned versions (Python 3.11; about 4 GB).
	@tools/setup_opponents.sh

study: $(READY)  ## Run what is missing of the study, docs/study.md (hours; can be stopped and continued).
	@$(PY) -m experiments.study run

results: $(READY)  ## Make the tables, figures and verdicts of docs/study.md from results/ (under a minute).
	@$(PY) -m experiments.study page

doctor: $(READY)  ## Say what works on this machine: versions, devices, a round on each runtime.
	@$(PY) -m fednar_tff.doctor

gpu-check: $(READY)  ## Check the GPU of this machine: placement, agreement with the CPU, speed, determinism; a report to paste into an issue.
	@TF_CPP_MIN_LOG_LEVEL=3 $(PY) -m tools.gpu.check

docs: $(READY)  ## Build the pages and the API reference into one searchable site, build/docs.
	@$(PY) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo 'build/docs/index.html'

conformance: $(READY)  ## Run TFF's own tests on our runtime and on TFF's: TFF=path/to/tensorflow-federated (hours).
	@$(PY) -m tools.conformance --tff="$(TFF)"

dist: $(READY)  ## Build wheel and sdist, and try both in empty environments.
	@tools/dist_smoke_test.sh

bazel:  ## Query and build the Bazel targets, where Bazel is installed (Debian: bazel-bootstrap).
	@tools/bazel_check.sh

lint: $(READY)  ## Check style, formatting and types.
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

lock: $(READY)  ## Make the lock files anew from requirements.in, -cluster.txt and -dev.txt (needs uv from the package index).
	@tools/lock.sh

clean:  ## Remove what was built, .venv included; runs/ stays.
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
