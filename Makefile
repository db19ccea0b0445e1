PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint docs bench

# The packaged model is small: more threads would mostly wait for each other.
demo: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/masklens demo --out out/demo

# One thread a worker: two workers with a thread a core each would fight over the cores.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --write-table

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src

# Any warning ends the build.
docs: $(VENV)/.docs
	$(BIN)/python -m mkdocs build --strict --quiet

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# torch first, so that nothing pulls in another build of it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install -c constraints.txt -e ".[docs]"
	touch $@
