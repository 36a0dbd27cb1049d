# Every habit is one command. The virtual environment, the native build and the demo model need no step of their own.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
MODEL ?=
ARGS ?=
NATIVE_SOURCES := $(shell find cpp kernels -type f 2>/dev/null) CMakeLists.txt
CPP_FILES = $(shell find cpp kernels tests/cpp -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
PY_DIRS := gateway schedcore worker client bench tests

.DEFAULT_GOAL := help
.PHONY: help serve test test-core test-gpu test-kills check bench bench-gpu format build clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

serve: $(VENV)/.built ## build if needed, then serve MODEL (default: the demo model); ARGS="--port 9000 ..." for more
	$(BIN)/hocket serve $(MODEL) $(ARGS)

build: $(VENV)/.built ## virtual environment and native modules

test: $(VENV)/.dev test-core ## everything that runs without a GPU
	$(BIN)/python -m pytest -q -m "not gpu" $(ARGS)

test-core: $(VENV)/.built ## the core's C++ tests under ASan and UBSan
	@$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Debug \
	  -DHOCKET_BUILD_CORE=OFF -DHOCKET_BUILD_KERNELS=OFF -DHOCKET_BUILD_TESTS=ON -DHOCKET_SANITIZE=ON >/dev/null
	@$(BIN)/cmake --build build/sanitize
	@$(BIN)/ctest --test-dir build/sanitize --output-on-failure

test-kills: $(VENV)/.dev ## a batch of 2,000 rows, its server killed at ten moments
	HOCKET_TEST_KILL_ROWS=2000 HOCKET_TEST_KILLS=10 $(BIN)/python -m pytest -q tests/end_to_end/test_batch_kills.py

test-gpu: $(VENV)/.dev ## what needs a CUDA device; the kernels once more under compute-sanitizer, where there is one
	$(BIN)/python -m pytest -q -m gpu $(ARGS)
	@if command -v compute-sanitizer >/dev/null; then for tool in memcheck racecheck synccheck; do \
	  compute-sanitizer --tool $$tool --error-exitcode 1 $(BIN)/python -m pytest -q -m gpu --timeout 3600 tests/kernels || exit 1; \
	done; else echo "no compute-sanitizer here: kernels were not run under it"; fi

check: $(VENV)/.dev ## formatting, lint, types, layering and house rules; warnings are errors
	$(BIN)/ruff format --check $(PY_DIRS)
	$(BIN)/ruff check $(PY_DIRS)
	@$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/mypy
	$(BIN)/mypy client/hocket
	$(BIN)/python -m pytest -q tests/test_layering.py tests/test_house_rules.py

format: $(VENV)/.dev ## rewrite to the house format
	$(BIN)/ruff format $(PY_DIRS)
	$(BIN)/ruff check --fix --exit-zero $(PY_DIRS)
	@$(BIN)/clang-format -i $(CPP_FILES)

bench: $(VENV)/.dev ## tokens per second, TTFT, ITL, the core's time per step, errors of predicted step times
	$(BIN)/python bench/core.py --policy hocket
	$(BIN)/python bench/core_contention.py
	$(BIN)/python bench/algorithms.py
	$(BIN)/python bench/kernels.py
	$(BIN)/python bench/read_bandwidth.py
	$(BIN)/python bench/gateway_cost.py
	$(BIN)/python bench/estimator.py --short
	$(BIN)/python bench/serve.py $(ARGS)

bench-gpu: $(VENV)/.dev ## on a CUDA device: kernels against their limits and the library's, whole steps of two models
	$(BIN)/python bench/kernels.py --device cuda
	$(BIN)/python bench/gpu_steps.py --device cuda

clean: ## remove everything that was built
	rm -rf build $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name '*.so' -not -path './.git/*' -delete

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hocket needs Python 3.11 or 3.12; set PYTHON=/path/to/python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.runtime: $(VENV)/.venv pyproject.toml client/pyproject.toml constraints.txt
	@echo "Installing dependencies (PyTorch is the large one) ..."
	$(PIP) install -qq -c constraints.txt --group build
	@touch $@

$(VENV)/.built: $(VENV)/.runtime $(NATIVE_SOURCES)
	@echo "Building the scheduling core and the kernels ..."
	$(PIP) install -qq -c constraints.txt --no-build-isolation -e client -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.built pyproject.toml
	$(PIP) install -qq -c constraints.txt --group dev
	@touch $@
