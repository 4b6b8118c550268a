# Start with `make serve` or `make test`. Both create `.venv` and install into it.
#
# PIP_INSTALL adds options for pip, for example an index with CPU builds of torch:
#   make serve PIP_INSTALL='--extra-index-url https://download.pytorch.org/whl/cpu'

PYTHON ?= python3
PIP_INSTALL ?=
VENV := .venv
BIN := $(VENV)/bin
WORK := .keymatch
DATA := $(WORK)/data/moby
BUNDLE := $(WORK)/bundles/moby
STATE := $(WORK)/state/moby
HOST ?= 127.0.0.1
PORT ?= 8000
ENCODER ?= deploy/demo/encoder
# The search finds this share of the truly nearest keys. A higher share makes it slower.
RECALL ?= 0.99

# WORKERS is the number of parallel test processes; PYTEST adds arguments for pytest, for example:
#   make test PYTEST=tests/unit/service
WORKERS ?= 2
PYTEST ?=
# If PYTEST selects a part of the tests, pytest's exit status 5 ("no tests collected") is no failure.
NONE_IN_PART = $(if $(PYTEST),|| test $$? -eq 5)

.DEFAULT_GOAL := help
.PHONY: help serve test test-all lint load bench clean
.DELETE_ON_ERROR:

# Each worker uses one thread, since more would compete for the same cores. It runs whole files, so
# that a file's fixtures are set up once. Compiled modules are kept even if the environment forbids it:
# compiling takes more than half of a server's start.
RUN_TESTS = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.serve | $(BUNDLE) ## Serve the Moby thesaurus on http://127.0.0.1:8000
	$(BIN)/keymatch serve --bundle $(BUNDLE) --state $(STATE) --host $(HOST) --port $(PORT)

test: $(VENV)/.test ## Run the tests, in minutes; PYTEST=tests/unit/service runs a part
	$(RUN_TESTS) -m 'not slow' $(PYTEST) $(NONE_IN_PART)

test-all: test ## Run the long tests as well: random kills, replicas, real encoders, several ranks
	$(RUN_TESTS) -m slow $(PYTEST) $(NONE_IN_PART)

lint: $(VENV)/.test ## Run ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

load: $(VENV)/.load | $(BUNDLE) ## Load a server of its own with locust and hold it to its limits
	$(BIN)/python -m loadtests.load --bundle $(BUNDLE) $(LOAD)

bench: $(VENV)/.load | $(BUNDLE) ## Measure latency, throughput, recall and writes; write JSON
	$(BIN)/python -m loadtests.latency --bundle $(BUNDLE) --out $(WORK)/bench \
		--unseen $(DATA)/tst.json.gz $(BENCH)
	$(BIN)/python -m loadtests.writes --bundle $(BUNDLE) --out $(WORK)/bench \
		--unseen $(DATA)/tst.json.gz

clean: ## Remove what was built, data and learned labels included
	rm -rf $(WORK) $(VENV)

# The test rows stay out: `make bench` asks them as new queries.
$(BUNDLE): | $(VENV)/.serve $(DATA)
	$(BIN)/keymatch export bundle --encoder $(ENCODER) --data $(DATA) --out $@ --recall $(RECALL) \
		--hold-out-test

$(DATA): | $(VENV)/.serve
	$(BIN)/keymatch data moby --out $@

# One stamp file per set of extras. If a file that the installation reads or compiles has changed, the
# extras are installed again. `--no-compile`: Python compiles modules when it imports them; compiling
# all of them here would take longer than the rest of the installation.
INSTALLED := pyproject.toml hatch_build.py $(shell find service -name '*.c')
$(VENV)/.serve: EXTRAS := cpu,demo
$(VENV)/.load: EXTRAS := cpu,demo,load
$(VENV)/.test: EXTRAS := cpu,postgres,jwt,cluster,objects,export,training,demo,load,benchmark,dev
$(VENV)/.serve $(VENV)/.load $(VENV)/.test: $(INSTALLED) | $(BIN)/python
	$(BIN)/python -m pip install --no-compile $(PIP_INSTALL) --editable '.[$(EXTRAS)]'
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
