# Surgetank's targets. `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
WORKERS ?= 2# processes of the test suite; 0: in this one
FUZZ_SECONDS ?= 600
STAMP  := $(VENV)/.installed
PEERS  ?= vllm-router sglang-router smg litellm
comma  := ,
space  := $(subst ,, )

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' $(firstword $(MAKEFILE_LIST)))

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
	@$(BIN)/python -m pytest -n $(WORKERS)

check: $(STAMP) lint types ## all that must hold before a commit: format, lint, layers, types, tests, docs
	@$(BIN)/python -m pytest -n $(WORKERS)
	@$(MAKE) --no-print-directory docs
	@git diff --exit-code --stat -- docs/reference || { echo "docs/reference was out of date: commit what 'make docs' wrote" >&2; exit 1; }

lint: $(STAMP) ## format, lint, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports

types: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

bench: $(STAMP) ## the gateway's CPU, latency and memory beside nginx and aiohttp (8 minutes; needs nginx: apt-get install nginx)
	@$(BIN)/python bench/gateway.py

peers: $(PEERS:%=build/peers/%/.installed) ## other gateways, each in build/peers/NAME (PEERS="smg litellm": only those)

build/peers/%/.installed: requirements/peers/%.txt
	@$(PYTHON) -m venv --clear build/peers/$*
	@echo "Installing $$(cat $<) into build/peers/$* ..."
	@build/peers/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

bench-peers: $(STAMP) peers ## the same beside vllm-router, sglang-router, smg and LiteLLM
	@$(BIN)/python bench/gateway.py --proxies nginx,surgetank,$(subst $(space),$(comma),$(strip $(PEERS)))

bench-sender: $(STAMP) ## how true and how cheap the load sender is, beside bare clients (needs cc; a minute)
	@$(BIN)/python bench/sender.py

conformance: $(STAMP) ## our own gateway through what users reported of gateways (under 6 minutes)
	@$(BIN)/surgetank conformance

conformance-peers: $(STAMP) peers ## the same with vllm-router, sglang-router, smg and LiteLLM (an hour)
	@for peer in $(PEERS); do \
	  echo; echo "== $$peer"; $(BIN)/surgetank conformance $$peer --bin build/peers/$$peer/bin || test $$? = 1 || exit 2; \
	done

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

forecast-models: $(STAMP) ## the tests of statsforecast and prophet beside our own forecasters (fetches 300 MB once)
	@test -x build/forecast/bin/python || $(PYTHON) -m venv build/forecast
	@build/forecast/bin/python -m pip install --quiet --disable-pip-version-check -e '.[forecast]' pytest hypothesis
	@build/forecast/bin/python -m pytest -m heavy tests/adapters/test_forecast_models.py

ladder: $(STAMP) ## the degradation ladder in an overload, five seeds (over HTTP: bench/ladder.py --live)
	@$(BIN)/python bench/ladder.py --html build/ladder.html

victim: $(STAMP) ## a quiet tenant beside one that pulses, over HTTP (4 minutes; in simulation: bench/victim.py)
	@$(BIN)/python bench/victim.py --live

bench-batching: $(STAMP) ## the batching window of engines that run whole batches (ten seconds)
	@$(BIN)/python bench/batching.py

bench-scaling: $(STAMP) ## every autoscaler in one arena, the five-minute subset (the whole: bench/scaling.py)
	@$(BIN)/python bench/scaling.py build/arena-subset.parquet --subset --html build/arena-subset.html

bench-plan: $(STAMP) ## plans from the first half of public traces and drawn logs, tried on the second (10 minutes; traces beside the repository)
	@$(BIN)/python bench/plan.py

clients: ## an environment with anthropic and langchain-openai, for the test that needs them
	@test -x build/clients/bin/python || $(PYTHON) -m venv build/clients
	@build/clients/bin/python -m pip install --quiet --disable-pip-version-check anthropic langchain-openai

fuzz-wire: ## random bytes into what reads the wire, 10 minutes for each of three targets (atheris)
	@test -x build/fuzz/bin/python || $(PYTHON) -m venv build/fuzz
	@build/fuzz/bin/python -m pip install --quiet --disable-pip-version-check atheris msgspec numpy
	@for target in http sse body; do echo "fuzzing $$target for $(FUZZ_SECONDS) s"; \
	  PYTHONPATH=src:bench build/fuzz/bin/python bench/fuzz_wire.py $$target -max_total_time=$(FUZZ_SECONDS) \
	  -max_len=8192 -timeout=10 -verbosity=0 -artifact_prefix=build/$$target- build/fuzz-wire/$$target || exit 1; done

soak: $(STAMP) ## the gateway at 300 requests a second for half an hour: nothing grows, nothing is lost
	@$(BIN)/python bench/soak.py

chaos: $(STAMP) ## replicas killed and hung, disks full, 10,000 streams hung up (20 minutes)
	@$(BIN)/python -m pytest -s -m heavy tests/gateway/chaos

docs: $(STAMP) ## write docs/reference anew from the code
	@$(BIN)/python -m surgetank.cli.reference docs/reference

lock: ## resolve the dependencies anew into requirements/dev.lock (needs uv)
	@uv pip compile pyproject.toml --extra demo --extra dask --group dev --universal --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url --python-version 3.11 -o requirements/dev.lock

clean: ## remove what was built (.venv included)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
