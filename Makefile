# Every habit is one command. The virtual environment, the native build and the demo model need no step of their own.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
MODEL ?=
ARGS ?=
MINUTES ?= 60
FUZZ_MINUTES ?= 60

# CUDA kernels: auto (where there is a device), 1 or 0. Tests also need kernels that nothing else does. Both stay as they
# were built until a command asks for something else, so that commands in turns rebuild nothing.
CUDA ?= $(or $(word 1,$(shell cat $(VENV)/.options 2>/dev/null)),auto)
NEED_NO_TESTS := help serve build clean
TWINS := $(or $(word 2,$(shell cat $(VENV)/.options 2>/dev/null)),$(if $(filter-out $(NEED_NO_TESTS),$(MAKECMDGOALS)),--twins))

# Tests run in parallel, one process per core.
WORKERS ?= auto
NATIVE_SOURCES := $(shell find cpp kernels -type f 2>/dev/null) CMakeLists.txt
CPP_FILES = $(shell find cpp kernels tests/cpp tests/fuzz -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
PY_DIRS := gateway schedcore vllm_engine worker client bench tests tools

.DEFAULT_GOAL := help
.PHONY: help serve test test-core test-python test-schema test-json-schemas test-compat test-compat-vllm test-vllm test-vllm-cut test-vllm-gpu test-ray test-ray-cut ray-env test-nixl test-nixl-cut nixl-env test-deploy vllm-env test-gpu test-invariance test-kills test-resume test-fleet fuzz fuzz-merge soak soak-fleet check bench bench-gpu docs format build clean FORCE

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

serve: $(VENV)/.built ## build if needed, then serve MODEL (default: the demo model); ARGS="--port 9000 ..." for more
	$(BIN)/hocket serve $(MODEL) $(ARGS)

build: $(VENV)/.built ## virtual environment and native modules; CUDA=1 or CUDA=0: with or without CUDA kernels

test: test-core test-python ## everything that runs without a GPU, on all cores

test-core: $(VENV)/.runtime ## the core's C++ tests under ASan and UBSan
	@echo "Building the core's tests under sanitizers ..."
	@$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Debug \
	  -DHOCKET_BUILD_CORE=OFF -DHOCKET_BUILD_KERNELS=OFF -DHOCKET_BUILD_TESTS=ON -DHOCKET_SANITIZE=ON >/dev/null
	@$(BIN)/cmake --build build/sanitize
	@$(BIN)/ctest --test-dir build/sanitize --output-on-failure -j $$(nproc)

test-python: $(VENV)/.dev ## pytest; ARGS="-k word" for some, WORKERS=0 for one process
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not gpu" $(ARGS)

VLLM_VENV ?= build/vllm-env

$(VLLM_VENV)/.built: tools/vllm_env.py pyproject.toml $(NATIVE_SOURCES)
	$(PYTHON) tools/vllm_env.py $(VLLM_VENV)

vllm-env: $(VLLM_VENV)/.built

# One unbound thread: the two of a small machine wait for each other wherever something else computes.
test-vllm test-vllm-cut: export OMP_NUM_THREADS = 1
test-vllm test-vllm-cut: export VLLM_CPU_OMP_THREADS_BIND = nobind
test-vllm: $(VENV)/.dev $(VLLM_VENV)/.built ## the vLLM engine, in an environment of its own that this makes: 4 GB, some minutes
	HOCKET_TEST_VLLM_REQUESTS=$${HOCKET_TEST_VLLM_REQUESTS-1000} $(VLLM_VENV)/bin/python -m pytest -q -o filterwarnings= --timeout 900 tests/vllm_engine $(ARGS)
	HOCKET_TEST_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(BIN)/python -m pytest -q tests/vllm_engine $(ARGS)

# What .ci/vllm runs.
VLLM_CUT = test_adapters test_async_steering test_compat test_fuzzed_steering test_request_fields test_settings test_steering
test-vllm-cut: $(VLLM_VENV)/.built
	HOCKET_TEST_VLLM_REQUESTS=60 $(VLLM_VENV)/bin/python -m pytest -q -o filterwarnings= -p no:cacheprovider --timeout 180 \
	  $(VLLM_CUT:%=tests/vllm_engine/%.py) $(ARGS)

# VLLM_VENV names an environment with a vLLM for the device, and this package. Not run anywhere yet.
test-vllm-gpu: $(VENV)/.dev ## the vLLM engine on CUDA devices; VLLM_VENV=DIR has vLLM for them and this package
	HOCKET_TEST_VLLM_REQUESTS=$${HOCKET_TEST_VLLM_REQUESTS-1000} $(VLLM_VENV)/bin/python -m pytest -q -o filterwarnings= --timeout 900 tests/vllm_engine $(ARGS)
	HOCKET_TEST_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(BIN)/python -m pytest -q tests/vllm_engine/test_through_gateway.py tests/vllm_engine/images $(ARGS)

RAY_VENV ?= build/ray-env

$(RAY_VENV)/.built: tools/extra_env.py pyproject.toml
	$(PYTHON) tools/extra_env.py ray $(RAY_VENV) $(VENV)

ray-env: $(VENV)/.dev $(RAY_VENV)/.built

test-ray: ray-env ## a fleet whose nodes Ray keeps running, in an environment of its own that this makes: 400 MB, minutes
	$(RAY_VENV)/bin/python -m pytest -q -p no:cacheprovider tests/fleet/test_on_ray.py $(ARGS)

# What .ci/ray runs.
test-ray-cut: ray-env
	$(RAY_VENV)/bin/python -m pytest -q -p no:cacheprovider tests/fleet/test_on_ray.py -k "up_starts or killed_actor or lost_machine or down_ends" $(ARGS)

NIXL_VENV ?= build/nixl-env

$(NIXL_VENV)/.built: tools/extra_env.py pyproject.toml
	$(PYTHON) tools/extra_env.py nixl $(NIXL_VENV) $(VENV)

nixl-env: $(VENV)/.dev $(NIXL_VENV)/.built

test-nixl: nixl-env ## cached blocks from engine to engine over NIXL, in an environment of its own that this makes: 270 MB
	$(NIXL_VENV)/bin/python -m pytest -q -p no:cacheprovider $(NIXL_TESTS) tests/fleet/test_nixl.py $(ARGS)

# What .ci/nixl runs.
NIXL_TESTS = tests/schedcore/peers/test_windows.py tests/worker/tiers/test_peers.py
test-nixl-cut: nixl-env
	$(NIXL_VENV)/bin/python -m pytest -q -p no:cacheprovider $(NIXL_TESTS) -k nixl $(ARGS)

DEPLOY_VENV ?= build/deploy-env

$(DEPLOY_VENV)/.built: tools/deploy_env.py
	$(PYTHON) tools/deploy_env.py $(DEPLOY_VENV)

test-deploy: $(VENV)/.dev $(DEPLOY_VENV)/.built ## deploy/: Helm chart, container files, units; Helm and hadolint in an environment that this makes
	HOCKET_TEST_DEPLOY_TOOLS=$(abspath $(DEPLOY_VENV))/bin $(BIN)/python -m pytest -q tests/deploy $(ARGS)

test-schema: $(VENV)/.dev ## Schemathesis over /openapi.json, every route, 5,000 cases: minutes
	HOCKET_TEST_SCHEMA_CASES=$${HOCKET_TEST_SCHEMA_CASES-5000} $(BIN)/python -m pytest -q tests/schema $(ARGS)

test-json-schemas: $(VENV)/.dev ## 1,000 schemas of JSONSchemaBench, cloned once or ARGS="--data DIR", on two models: minutes
	$(BIN)/python -m bench.proofs.json_schemas $(ARGS)

test-compat: $(VENV)/.dev ## third-party clients, in an environment of their own that this makes; writes docs/compat.md
	$(BIN)/python tests/compat/run.py $(ARGS)

test-compat-vllm: $(VENV)/.dev $(VLLM_VENV)/.built ## vLLM's own tests of its OpenAI server; writes docs/compat_vllm.md
	$(BIN)/python tests/compat/vllm_tests.py --vllm-python $(VLLM_VENV)/bin/python $(ARGS)

test-kills: $(VENV)/.dev ## takes minutes: a batch of 2,000 rows, its server killed at ten moments
	HOCKET_TEST_KILL_ROWS=2000 HOCKET_TEST_KILLS=10 $(BIN)/python -m pytest -q tests/end_to_end/test_batch_kills.py

test-fleet: $(VENV)/.dev ## nodes that are killed, stopped, cut off and drained, 100,000 random frames: about two minutes
	HOCKET_TEST_FLEET=1 HOCKET_TEST_FLEET_FRAMES=100000 $(BIN)/python -m pytest -q tests/fleet $(ARGS)

test-resume: $(VENV)/.dev ## takes minutes: streams whose engine is killed at twenty moments
	HOCKET_TEST_RESUMES=20 $(BIN)/python -m pytest -q tests/end_to_end/test_streams_survive.py

fuzz: $(VENV)/.fuzz ## coverage-guided fuzzing of all that comes from outside, FUZZ_MINUTES (60) in all; goes on where it stopped
	@VENV=$(VENV) tests/fuzz/build_core.sh
	$(BIN)/python tests/fuzz/campaign.py --minutes $(FUZZ_MINUTES) $(ARGS)

fuzz-merge: $(VENV)/.fuzz ## takes the smallest new inputs of make fuzz into tests/fuzz/corpus
	$(BIN)/python tests/fuzz/campaign.py --merge $(ARGS)

soak: $(VENV)/.dev ## chats, aborts, batches, advisories, uploads and kills for MINUTES (60): nothing may be lost, nothing may grow
	$(BIN)/python -m bench.run.soak --minutes $(MINUTES) $(ARGS)

soak-fleet: $(VENV)/.dev ## three nodes, one always in trouble, for MINUTES=20: no wrong token, no lost row, nothing may grow
	$(BIN)/python -m bench.run.fleet.soak --minutes $(MINUTES) $(ARGS)

test-invariance: $(VENV)/.dev ## 192 seeded and 192 greedy requests in a crowd, each against itself alone, bit for bit
	HOCKET_TEST_INVARIANCE_REQUESTS=192 $(BIN)/python -m pytest -q tests/worker/runner/test_batch_invariance.py -k demo_model

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

docs: $(VENV)/.dev ## rewrite what is generated in docs/: the metrics' catalogue
	$(BIN)/python tools/metrics_page.py

bench: $(VENV)/.dev ## tokens per second, TTFT, ITL, the core's time per step, errors of predicted step times
	$(BIN)/python -m bench.run.parts.core --policy hocket
	$(BIN)/python -m bench.run.parts.core_contention
	$(BIN)/python -m bench.run.parts.algorithms
	$(BIN)/python -m bench.run.parts.kernels
	$(BIN)/python -m bench.run.parts.machine_limits
	$(BIN)/python -m bench.run.gateway.gateway_cost
	$(BIN)/python -m bench.run.parts.estimator --short
	$(BIN)/python -m bench.run.serve $(ARGS)

bench-gpu: $(VENV)/.dev ## on a CUDA device: kernels against their limits and the library's, whole steps of two models
	$(BIN)/python -m bench.run.parts.kernels --device cuda
	$(BIN)/python -m bench.run.parts.gpu_steps --device cuda

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
	@echo "Installing the build tools ..."
	$(PIP) install -qq -c constraints.txt --group build
	@touch $@

$(VENV)/.options: FORCE | $(VENV)/.venv
	@echo '$(CUDA) $(TWINS)' | cmp -s - $@ || echo '$(CUDA) $(TWINS)' > $@

$(VENV)/.built: $(VENV)/.runtime $(VENV)/.options $(NATIVE_SOURCES)
	@echo "Installing dependencies, building the scheduling core and the kernels ..."
	@$(BIN)/python tools/build.py --cuda $(CUDA) $(TWINS)
	@touch $@

$(VENV)/.dev: $(VENV)/.built pyproject.toml
	@echo "Installing what tests and checks need ..."
	$(PIP) install -qq -c constraints.txt --group dev
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dev pyproject.toml
	@$(PIP) install -qq -c constraints.txt --group fuzz || \
	  echo "!!! Atheris cannot be installed for this Python ($$($(BIN)/python -V)): what is in Python is not fuzzed"
	@touch $@
