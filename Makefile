# Needs Python >= 3.11 with pip, nothing else.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: .venv demo test test-all check clean

.venv: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable '.[demo,dev]'
	touch $@

demo: .venv/installed
	$(BIN)/hotlap demo

test: .venv/installed
	$(BIN)/python -m pytest -q -m 'not slow'

test-all: .venv/installed
	$(BIN)/python -m pytest -q

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_layering.py tests/test_style.py tests/test_docs.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
