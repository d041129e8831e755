# Needs make and Python 3.11 or newer, nothing else: what a target needs is put into .venv first.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test lint style contracts types bench clean

help: ## Show these targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: .venv/.installed ## Tune a small network on handwritten digits, on this computer
	$(BIN)/python examples/quickstart.py

test: lint ## Run all static checks, then the tests
	$(BIN)/pytest

lint: style contracts types ## Run all static checks, the cheap ones first

style: .venv/.dev-installed ## Check format, lint, spelling and pyproject.toml
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml

contracts: .venv/.dev-installed ## Check the import contracts
	$(BIN)/lint-imports --no-logo --no-cache

types: .venv/.dev-installed ## Check types
	$(BIN)/mypy

bench: .venv/.installed ## Measure the core
	$(BIN)/python benchmarks/core.py

clean: ## Remove all that make has made, .venv too
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find dasktune tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The first install takes what a user gets, the second adds the tools. The stamps make both again
# when a version or a dependency changes.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'dasktune needs Python 3.11 or newer; name one with: make PYTHON=python3.11' >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	touch $@

.venv/.dev-installed: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev
	touch $@
