# Every target sets up what it needs on a fresh machine; nothing asks a question. `make` alone lists them.
#
#   PYTHON=python3.12   the interpreter for a new .venv (3.11 to 3.13; the first that fits otherwise)
#   DEMO=packing        the case that `make demo` plays
#   TESTS=tests/flows   what `make test` runs (all of it otherwise); PYTEST_ADDOPTS works as always
#
# pip's own variables apply, PIP_EXTRA_INDEX_URL for a CPU-only PyTorch among them.

DEMO ?= packing
PYTHON ?=
TESTS ?= tests
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := inquiry instruments reducers experiments flows templates examples

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format format-check lint types layers gpu-check clean distclean \
        setup-run setup-dev system-packages links

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

demo: setup-run ## play a planted regression through to its postmortem (DEMO=packing)
	@$(BIN)/narrows demo $(DEMO)

test: setup-dev system-packages ## run the tests (TESTS=tests/flows for some of them)
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow" $(TESTS)

test-slow: setup-dev system-packages ## run the tests that take many minutes
	@$(BIN)/python -m pytest -m slow $(TESTS)

check: format-check lint types layers ## format, lint, types and who-imports-whom, without changing a file

format: setup-dev ## bring the code into the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --select I .

format-check: setup-dev ## say which files are not in the project's format
	@$(BIN)/ruff format --check .

lint: setup-dev ## run ruff's rules
	@$(BIN)/ruff check .

# mypy cannot follow the folder-to-namespace map of an editable install; a folder of links shows it the same tree.
types: setup-dev links ## check types, strictly
	@MYPYPATH=.typing $(BIN)/python -m mypy $(PACKAGES:%=-p narrows.%)
	@$(BIN)/python -m mypy scripts/install.py

links:
	@mkdir -p .typing/narrows
	@for package in $(PACKAGES); do ln -sfn ../../$$package .typing/narrows/$$package; done

layers: setup-dev ## check who imports whom
	@$(BIN)/lint-imports --no-cache

gpu-check: setup-dev ## run the tests that need a CUDA device, and say how many were found
	@$(BIN)/python -c 'import torch; n = torch.cuda.device_count(); print(f"CUDA devices found: {n}", *(torch.cuda.get_device_name(i) for i in range(n)), sep="\n  ")'
	@$(BIN)/python -m pytest -m gpu tests/gpu

clean: ## remove caches and build outputs; results of runs stay
	@rm -rf build dist .typing .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find $(PACKAGES) tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv as well
	@rm -rf $(VENV) narrows.egg-info

setup-run:
	@python="$$(sh scripts/find-python.sh $(PYTHON))" && "$$python" scripts/install.py run $(if $(PYTHON),--exact)

setup-dev:
	@python="$$(sh scripts/find-python.sh $(PYTHON))" && "$$python" scripts/install.py dev $(if $(PYTHON),--exact)

# A failed apt-get costs the browser tests, which skip with a reason; it must not cost the others.
system-packages:
	@sh scripts/install-system-packages.sh || echo "system packages: going on without them"
