# Needs Python >= 3.11 with pip, nothing else.
PYTHON ?= python3
# Tests that run at once; each computes with one thread.
WORKERS ?= 2
# own: torch of constraints.txt. image: the one that PYTHON has already, which is kept as it is.
TORCH ?= own
EXTRAS ?= demo,dev
# What `make test-all` has besides; its own environment, so that `make test` stays the small one.
EXTRAS_ALL ?= $(EXTRAS),export,bench,integrations,search
BIN := .venv/bin

# $(1) is the environment's folder, $(2) the extras, $(3) the files of pins.
define install
	$(PYTHON) -m venv $(VENV_OPTIONS) $(1)
	$(call torch,$(1),$(call pip,$(1),$(3)))
	$(call pip,$(1),$(3)) --editable '.[$(2)]'
	touch $(1)/installed
endef

ifeq ($(TORCH),own)
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(addprefix --constraint ,$(2))
# First and alone: the build that the index gives for this machine is what the others must fit.
torch = $(2) torch
else ifeq ($(TORCH),image)
VENV_OPTIONS := --system-site-packages
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(1)/constraints.txt
# Whatever the image has is kept at its version: its parts were built for each other.
torch = $(1)/bin/python -c 'import torch; print("keeping torch", torch.__version__)' \
	&& $(1)/bin/python -m pip --disable-pip-version-check list --format=freeze \
	| grep -v '^pip==' > $(1)/constraints.txt
else
$(error TORCH=$(TORCH) is not known. Allowed: own, image)
endif

.PHONY: .venv demo test test-all check clean

.venv: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(call install,.venv,$(EXTRAS),constraints.txt)

.venv-all/installed: pyproject.toml constraints.txt constraints-bench.txt
	$(call install,.venv-all,$(EXTRAS_ALL),constraints.txt constraints-bench.txt)

demo: .venv/installed
	$(BIN)/hotlap demo

test: .venv/installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not slow'

test-all: .venv-all/installed
	.venv-all/bin/python -m pytest -q -n $(WORKERS) --dist worksteal --durations 20

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_layering.py tests/test_style.py tests/test_docs.py

clean:
	rm -rf .venv .venv-all build dist .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
