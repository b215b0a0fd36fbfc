# Surgetank's targets. `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test check lint types bench fuzz silicon docs lock clean bench-analyze bench-sender

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13)))' || \
	  { echo "surgetank needs Python 3.11 to 3.13; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Choose one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is missing. On Debian: apt-get install python3-venv" >&2; exit 2; }
	@echo "Installing into $(VENV) (once; about a minute) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

install: $(STAMP) ## make .venv with all that the demo and the tests need

demo: $(STAMP) ## a burst that wipes out a real engine, and one that a fleet follows (2.5 minutes)
	@$(BIN)/surgetank demo

test: $(STAMP) ## the whole default test suite (under 6 minutes)
	@$(BIN)/python -m pytest

check: $(STAMP) lint types ## all that must hold before a commit: format, lint, layers, types, tests, docs
	@$(BIN)/python -m pytest
	@$(MAKE) --no-print-directory docs
	@git diff --exit-code --stat -- docs/reference || { echo "docs/reference was out of date: commit what 'make docs' wrote" >&2; exit 1; }

lint: $(STAMP) ## format, lint, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

bench: $(STAMP) ## the gateway's CPU beside nginx and aiohttp, as ratios (needs nginx: apt-get install nginx)
	@$(BIN)/python bench/gateway.py

bench-sender: $(STAMP) ## how true and how cheap the load sender is, beside bare clients (needs cc; a minute)
	@$(BIN)/python bench/sender.py

silicon: $(STAMP) ## the engine model beside 45 measured runs of vLLM on H100 (fetches 80 MB once)
	@test -e build/silicon/aiconfigurator_core || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/silicon aiconfigurator-core==0.12.0
	@$(BIN)/python bench/silicon.py

bench-analyze: $(STAMP) ## analyze on large logs beside DuckDB and msgspec (25 minutes, 8 GB in TMPDIR)
	@$(BIN)/python bench/analyze.py

fuzz: ## random bytes into every log reader for two minutes (atheris, in build/fuzz)
	@test -x build/fuzz/bin/python || $(PYTHON) -m venv build/fuzz
	@build/fuzz/bin/python -m pip install --quiet --disable-pip-version-check atheris numpy msgspec
	@PYTHONPATH=src build/fuzz/bin/python bench/fuzz_readers.py -max_total_time=120 -max_len=8192 -timeout=10 \
	  -artifact_prefix=build/ build/fuzz-corpus

docs: $(STAMP) ## write docs/reference anew from the code
	@$(BIN)/python -m surgetank.cli.reference docs/reference

lock: ## resolve the dependencies anew into requirements/dev.lock (needs uv)
	@uv pip compile pyproject.toml --all-extras --group dev --universal --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --python-version 3.11 -o requirements/dev.lock

clean: ## remove what was built (.venv included)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
