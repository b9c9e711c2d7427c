# Every target does all the set-up that it needs; a second run starts at once.

VENV := .venv
PY := $(VENV)/bin/python
# Stands for: the environment holds what pyproject.toml and requirements.lock ask for.
READY := $(VENV)/.ready
LOG ?= sqlite
SEEDS ?= 2000
FIRST ?= 0
MINUTES ?= 20
KILLS ?= 100
SPREAD := --numprocesses 2 --no-loadscope-reorder
export PYTHON

.PHONY: help setup demo quick test test-all check ring bench simulate stories readings reference torture wheel lock clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

$(READY): pyproject.toml requirements.lock scripts/setup
	@scripts/setup
	@touch $@

setup: $(READY) ## Install everything into .venv, fetch the jars

demo: $(READY) ## A ring of three survives the loss of its parts, with real data (LOG=kafka, ADOPT=1)
	@$(PY) scripts/demo.py --log $(LOG) $(if $(ADOPT),--adopt)

quick: $(READY) ## Decisions and the simulated ring, for the edit loop: at most 3 minutes
	@$(PY) -m pytest $(SPREAD) -m "not thorough" tests/unit tests/simulation

test: $(READY) ## What tells most, also on a ring of real Sparks: about 15 minutes on 2 cores
	@$(PY) -m pytest $(SPREAD) -m "not thorough" --durations 25

# More seeds than the tests take by themselves.
test-all: export SEEDS := 64
test-all: $(READY) ## Every test, rules broken on purpose and long ones too: two hours on 2 cores
	@$(PY) -m pytest $(SPREAD) --durations 50

check: $(READY) ## Formatting, lint, types
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy

ring: $(READY) ## Start a local ring (haproc ring status, haproc ring down)
	@$(VENV)/bin/haproc ring up

bench: $(READY) ## All benchmarks, with results and pictures of them in bench/results
	@for each in $(notdir $(basename $(wildcard bench/bench_*.py))); do \
		$(PY) -m bench.$$each || exit 1; \
	done

simulate: $(READY) ## A ring on a virtual clock: make simulate SEEDS=n FIRST=seed
	@$(PY) -m tests.simulation $(SEEDS) $(FIRST)

stories: $(READY) ## Write the golden traces of the simulation anew (tests/golden/stories)
	@$(PY) -m tests.simulation.stories

readings: $(READY) ## Record anew what Spark makes of the statements of the tests (tests/golden/readings)
	@$(PY) -m tests.readings

reference: $(READY) ## Write docs/reference anew from the code
	@$(PY) -m scripts.reference

torture: $(READY) ## Kill a ring's parts: make torture MINUTES=n KILLS=n LOG=sqlite|kafka SEED=n OPTIONS=...
	@$(PY) -m tests.fault.torture --minutes $(MINUTES) --kills $(KILLS) --log $(LOG) \
		$(if $(SEED),--seed $(SEED)) $(OPTIONS)

wheel: $(READY) ## A wheel in dist/ that has the Spark plugin's jar inside
	@cp "$$($(PY) -m haproc spark-jar | head -1)" haproc/spark/haproc-spark.jar
	@rm -rf build; $(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .; \
		code=$$?; rm -rf haproc/spark/haproc-spark.jar build; exit $$code

lock: $(READY) ## Resolve pyproject.toml anew into requirements.lock
	@env -u PIP_FIND_LINKS $(PY) -m piptools compile --upgrade --quiet --generate-hashes \
		--allow-unsafe --strip-extras --no-header --no-emit-index-url --no-emit-find-links \
		--all-extras --output-file requirements.lock pyproject.toml

clean: ## Remove the environment and all caches of this checkout
	@if [ -x $(VENV)/bin/haproc ] && [ -d .ring ]; then $(VENV)/bin/haproc ring down; fi
	@rm -rf $(VENV) .tools .ring .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
