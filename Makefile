# Needs Python >= 3.11 with pip, nothing else.
PYTHON ?= python3
# Tests that run at once; each computes with one thread.
WORKERS ?= 2
# own: torch of constraints.txt. image: the one that PYTHON has already, which is kept as it is.
TORCH ?= own
EXTRAS ?= demo,dev
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

ifeq ($(TORCH),own)
PIP := $(INSTALL) --constraint constraints.txt
else ifeq ($(TORCH),image)
VENV_OPTIONS := --system-site-packages
PIP := $(INSTALL) --constraint .venv/constraints.txt
else
$(error TORCH=$(TORCH) is not known. Allowed: own, image)
endif

.PHONY: .venv demo test test-all check clean

.venv: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV_OPTIONS) .venv
ifeq ($(TORCH),image)
	$(BIN)/python -c 'import torch; print("keeping torch", torch.__version__)'
	# Whatever the image has is kept at its version: its parts were built for each other.
	$(BIN)/python -m pip --disable-pip-version-check list --format=freeze | grep -v '^pip==' > .venv/constraints.txt
else
	$(PIP) torch
endif
	$(PIP) --editable '.[$(EXTRAS)]'
	touch $@

demo: .venv/installed
	$(BIN)/hotlap demo

test: .venv/installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not slow'

test-all: .venv/installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_layering.py tests/test_style.py tests/test_docs.py

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
