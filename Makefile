# Every target makes the virtual environment it needs; nothing is installed by hand.
SHELL := /bin/bash
.DEFAULT_GOAL := help
unexport PYTHONPATH VIRTUAL_ENV
# What is imported is compiled once, on its first import, and kept; the rest of what is
# installed is not compiled at all.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL = .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile

# The first Python on the path that is new enough (a version manager's shim may exist and not run).
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

# Keyed on content, because a fresh clone gives every file the same time.
LOCK := $(shell cat requirements/dev.txt constraints.txt pyproject.toml | sha256sum | cut -c1-16)
VENV := .venv/.installed-$(LOCK)

.PHONY: help demo test test-engines test-cluster test-transports test-together test-megatron test-gpu check chaos explore harnesses format map docs lock bench clean tiny

help: ## Say what the targets do
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(VENV):
	@test -n "$(PYTHON)" || { echo "gyre needs Python 3.11 or newer on the path" >&2; exit 2; }
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	$(PIP_INSTALL) -c constraints.txt torch==2.13.0
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@rm -f .venv/.installed-*
	@touch $@

demo: $(VENV) ## A model learns on this machine: the whole loop, in under three minutes
	rm -rf runs/quickstart
	PATH="$(CURDIR)/.venv/bin:$$PATH" gyre train examples/quickstart.toml

test: $(VENV) harnesses ## Everything: lint, types, all tests, real agent programs
	scripts/test

test-engines: $(VENV) ## Run by hand: the adapters against real vLLM and SGLang on the CPU
	.venv/bin/python scripts/engines
	.venv/bin/python -m pytest -q -m engines tests/hardware/engines

test-cluster: $(VENV) ## Run by hand: whole runs over a real Ray cluster of three nodes on this machine
	.venv/bin/python scripts/cluster
	$$(.venv/bin/python scripts/cluster --where) -m pytest -q -p no:xdist -m cluster tests/hardware/clusters

test-transports: $(VENV) ## Run by hand: weights and cached blocks over a real Mooncake on this machine
	.venv/bin/python scripts/transports
	$$(.venv/bin/python scripts/transports --where) -m pytest -q -p no:xdist -m transports tests/hardware/transports

test-together: $(VENV) ## Run by hand: one run on Ray with Mooncake and vLLM, on this machine
	.venv/bin/python scripts/engines
	.venv/bin/python scripts/cluster
	.venv/bin/python scripts/transports
	PYTHONPATH="$$($$(.venv/bin/python scripts/transports --where) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
		$$(.venv/bin/python scripts/cluster --where) -m pytest -q -p no:xdist -m together tests/hardware/together

test-megatron: $(VENV) ## Run by hand: cells whose layers are those of a real Megatron-core, on this machine's CPU
	.venv/bin/python scripts/megatron
	$$(.venv/bin/python scripts/megatron --where) -m pytest -q -p no:xdist -m "megatron and not gpu" tests/hardware/megatron

test-gpu: ## Run by hand on a machine with a GPU: its tests, and results to commit (a quarter of an hour)
	scripts/gpu

check: $(VENV) ## The quick part of `make test`: about a minute, no network
	scripts/check

chaos: $(VENV) ## Run by hand: 10,000 seeds of the simulation of faults, then real processes struck for long
	scripts/chaos
	.venv/bin/python -m pytest -q -m chaos tests/chaos
	.venv/bin/python -m pytest -q tests/security --hypothesis-profile=nightly

explore: $(VENV) ## Run by hand: the property tests on random examples, for an hour
	scripts/explore

harnesses: $(VENV) ## Install the agent programs the tests drive, from their lock, once
	.venv/bin/python scripts/harnesses

tiny: $(VENV) ## Make the model `tiny` anew, in the package, and measure it
	.venv/bin/python scripts/tiny

format: $(VENV) ## Format the sources and mend what the linter can mend
	scripts/format

map: $(VENV) ## Write docs/map.md and the pages of reference from the sources
	.venv/bin/python scripts/map
	.venv/bin/python scripts/reference

docs: $(VENV) ## Build the documentation as a site that opens from the disk: build/site/index.html
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

lock: ## Resolve pyproject.toml into requirements/dev.txt and constraints.txt
	scripts/lock $(PYTHON)

bench: $(VENV) ## Run the benchmarks; results go to benchmarks/results
	benchmarks/run

clean: ## Remove what the other targets made, the virtual environment included
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
