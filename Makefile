# `make demo` and `make test` do all set-up by themselves: a virtual environment in .venv, installed with the known-good versions
# of constraints.txt. Set-up is skipped when nothing it depends on has changed.
PYTHON ?= python3
# The distributions of this repository, installed from here.
CHECKOUTS := --editable ./verifier --editable '.[dev]' --editable ./papers
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FLOWER := .venv-flower
FLOWER_STAMP := $(FLOWER)/.installed
# Two threads that spin on a busy machine slow each other down by orders of magnitude; waiting passively costs nothing.
export OMP_WAIT_POLICY := PASSIVE

SOURCES := src verifier papers tests benchmarks

.PHONY: demo test test-slow test-federated lint bench clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml verifier/pyproject.toml papers/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "twinproof needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once; a few minutes)"
	@# torch first and by its pin: asked for by a range, some indexes answer with a build several gigabytes large
	@$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt $(CHECKOUTS)
	@touch $@

demo: $(STAMP)
	@$(BIN)/twinproof demo

# Two processes of one thread each: twice as fast as one process with two threads, whose small operations do not split.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile --floor 8000

test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow -n 2 --dist loadfile --floor 24

# Flower pins older versions of three packages than constraints.txt has: an environment of its own.
$(FLOWER_STAMP): pyproject.toml verifier/pyproject.toml papers/pyproject.toml constraints.txt
	@test -x $(FLOWER)/bin/python || $(PYTHON) -m venv $(FLOWER)
	@echo "installing into $(FLOWER) (once; a few minutes)"
	@$(FLOWER)/bin/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	@grep -vE '^(typer|rich|packaging)==' constraints.txt > $(FLOWER)/constraints.txt
	@$(FLOWER)/bin/python -m pip install --quiet --constraint $(FLOWER)/constraints.txt --editable ./verifier --editable '.[federated]' --editable ./papers \
	  flwr==1.41.0 pytest pytest-timeout pytest-xdist hypothesis
	@touch $@

# QUICK=1 leaves out Flower's own simulation, which starts a cluster of processes.
test-federated: $(FLOWER_STAMP)
	OMP_NUM_THREADS=1 $(FLOWER)/bin/python -m pytest -q $(if $(QUICK),-m "not slow") tests/federated -n 2 --dist loadfile --floor 200

lint: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py $(BENCH)

clean:
	rm -rf $(VENV) $(FLOWER) build papers/build verifier/build .pytest_cache .mypy_cache .ruff_cache .hypothesis
