# Two commands do everything: `make demo` and `make test`. Both are idempotent.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# `make test-long` has what is too slow for every change: 200 set-ups of 300 clients, ten minutes of fuzzing,
# every schedule of the protocol within larger bounds, 10,000 of sites and server on a simulated
# network, sites and servers that die in mid-run, and every combination of the comparison's sums,
# units and splits.
.PHONY: demo test test-long lint types unit clean

demo: $(STAMP)
	$(BIN)/python experiments/privacy_compare.py --secure-agg --dp-eps 4

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	# A file's fixtures are made once. Slow files, of few tests, come first: workers end together.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-long: test
	OMP_NUM_THREADS=1 SECURE_FD_SETUPS=200 $(BIN)/python -m pytest tests/properties/test_setup_success.py
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.run --minutes 10
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.model.run
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.model.flower --schedules 10000
	OMP_NUM_THREADS=1 SECURE_FD_PROCESSES=1 $(BIN)/python -m pytest tests/security/test_flower_faults.py
	OMP_NUM_THREADS=1 SECURE_FD_COMBINATIONS=1 $(BIN)/python -m pytest tests/unit/test_compare_combinations.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test,flower]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
