# `make demo`, `make test` and `make results` are idempotent.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests start dozens of programs: each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# `make test-long` has what is too slow for every change: ten minutes of fuzzing, the schedules of the
# protocol within larger bounds, 10,000 schedules of sites and server on a simulated network, sites
# and servers that are killed, all mutants of the audit, every combination of the comparison's sums,
# units and splits, and the blocks of the docs as they stand.
.PHONY: demo results paper-steps test test-long lint types unit clean

demo: $(STAMP)
	$(BIN)/python experiments/privacy_compare.py --secure-agg --dp-eps 4

# The figures of the docs but those of public tables and `paper-steps`, in a night:
# STUDY=accuracy,alpha for some of them, WORKERS=4, and SCHEDULER=tcp://HOST:8786 for a running
# Dask cluster.
results: $(STAMP)
	$(BIN)/python experiments/results.py $(if $(STUDY),--study $(STUDY)) \
		$(if $(WORKERS),--workers $(WORKERS)) $(if $(SCHEDULER),--scheduler $(SCHEDULER))

# The paper's steps for 500 rounds, where `make results` takes 15: 1.3 hours of CPU. A copy of its
# results is docs/results/paper_steps.json.
paper-steps: $(STAMP)
	$(BIN)/python experiments/paper/accuracy.py --rounds 500 --rows selective-fd \
		--image-sets mnist --splits strong --seeds 20 --out runs/paper-steps

test: $(STAMP)
	$(MAKE) -j 2 lint types unit

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
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.run --minutes 10
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.model.run
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.model.flower --schedules 10000
	OMP_NUM_THREADS=1 SECURE_FD_PROCESSES=1 $(BIN)/python -m pytest tests/deployment/test_flower_faults.py tests/end_to_end/test_flower_processes.py
	OMP_NUM_THREADS=1 SECURE_FD_AUDITS=1 $(BIN)/python -m pytest tests/privacy/test_audits.py
	OMP_NUM_THREADS=1 SECURE_FD_DOCS=full $(BIN)/python -m pytest tests/end_to_end/test_docs.py
	OMP_NUM_THREADS=1 SECURE_FD_COMBINATIONS=1 $(BIN)/python -m pytest tests/experiments/test_compare_combinations.py tests/experiments/test_suite_cli.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	# Python compiles a module when it is first imported; pip would compile all 14,000 files.
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[test,docs,flower]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
