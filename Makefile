# The commands of this repository; `make` alone lists them. All work in .venv, which the first one makes.
#
# Only Python 3.11 or newer, a C++17 compiler and make are needed beforehand.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
EXTRA = $(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(1)'], sep='\n')"

PYTEST_ARGS ?=
PARALLEL := -n logical --dist loadscope --no-loadscope-reorder
# what each run has of `FEDBUFF_BACKEND=numba make test`, which takes long, as Numba compiles
NUMBA_TESTS := tests/rule/test_algorithms.py tests/problems/test_problems.py
FLWR ?= 1.41.*
FLOWER := .venv-flower
FRAMEWORKS := .venv-frameworks
OLDEST := .venv-oldest
FREE ?= python3.14t
FREE_VENV := .venv-free
JOBS := -j$(shell $(PYTHON) -c "import os; print(os.cpu_count())")
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' fedbuff/_version.py)
CORE := $(CURDIR)/fedbuff/$(if $(filter Darwin,$(shell uname)),libfedbuff.dylib,libfedbuff-$(VERSION).so)
SANITIZED := $(CURDIR)/build/sanitize
COMPILED := setup.py pyproject.toml fedbuff/_version.py $(wildcard fedbuff/*.pxd src/*.pyx) \
            $(shell find csrc -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.inl')

# pip hides what a build says; the log is this shell's error output
INSTALL = FEDBUFF_BUILD=require FEDBUFF_BUILD_LOG=/proc/$$$$/fd/2 $(PIP) install --no-build-isolation -e ".[$(1)]"

.DEFAULT_GOAL := help
.PHONY: help demo test test-flower test-frameworks test-oldest test-free-threaded arm-test lint format docs cmake dist wheels core-test sanitize torture fuzz memory bench \
        bench-full bench-flower study clean
.DELETE_ON_ERROR:

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(if $(wildcard $(VENV)/.built),$(VENV)/.built,$(VENV)/.demo)  ## FedBuff, FedAsync and FedAvg on recorded delays: a table and a report
	$(BIN)/fedbuff demo -o build/demo

test: $(VENV)/.built  ## all tests, of C++ and of Python
	$(MAKE) $(JOBS) --no-print-directory -C tests/core LIB=$(CORE) run
	$(MAKE) $(JOBS) --no-print-directory -C tests/fuzz LIB=$(CORE) run
	FEDBUFF_BACKEND=numba $(BIN)/python -m pytest -q -p no:cacheprovider $(NUMBA_TESTS)
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

test-flower: $(VENV)/.built $(FLOWER)/.made  ## tests of fedbuff.flower, in .venv-flower; FLWR="1.21.*" chooses another flwr
	PYTHONPATH=$(CURDIR) $(FLOWER)/bin/python -m pytest -W ignore::DeprecationWarning -p no:cacheprovider $(PYTEST_ARGS) tests/flower

test-frameworks: $(VENV)/.built $(FRAMEWORKS)/.made  ## tests with PyTorch, JAX and NVFlare, in .venv-frameworks
	PYTHONPATH=$(CURDIR) $(FRAMEWORKS)/bin/python -m pytest -p no:cacheprovider $(PYTEST_ARGS) tests/frameworks tests/embedding/test_aggregators.py

test-oldest: $(VENV)/.built $(OLDEST)/.made  ## the main tests beside the oldest NumPy, in .venv-oldest
	PYTHONPATH=$(CURDIR) $(OLDEST)/bin/python -m pytest -p no:cacheprovider $(PYTEST_ARGS) tests/rule tests/problems tests/schedule tests/replay tests/golden

test-free-threaded: $(VENV)/.made  ## tests of threads under a free-threaded Python, in .venv-free; FREE=python3.14t names it
	@command -v $(FREE) >/dev/null || { echo "test-free-threaded: left out, as $(FREE) is not on this machine"; exit 0; }; \
	$(MAKE) --no-print-directory $(FREE_VENV)/.built && \
	$(FREE_VENV)/bin/python -m pytest -p no:cacheprovider $(PYTEST_ARGS) tests/boundary/test_threads.py tests/rule/test_server.py tests/problems/test_callback_safety.py tests/golden

lint: $(VENV)/.built $(VENV)/.lint  ## formats, types and stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml fedbuff._core fedbuff._event_queue fedbuff._local_sgd fedbuff._server --allowlist tests/stubtest_allowlist.txt
	git ls-files -co --exclude-standard csrc tests/core tests/fuzz tests/torture | grep -E '\.(c|cpp|h|hpp|inl)$$' | xargs $(BIN)/clang-format --dry-run -Werror
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cython-lint --max-line-length 120 src fedbuff/*.pxd

format: $(VENV)/.lint  ## rewrite what `make lint` would complain about, where a tool can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	git ls-files -co --exclude-standard csrc tests/core tests/fuzz tests/torture | grep -E '\.(c|cpp|h|hpp|inl)$$' | xargs $(BIN)/clang-format -i

# The event loop for a browser, where Emscripten is; the page says so where it is not. Linked by -O1: more of it rewrites
# the JavaScript, which needs a package of Node's, and does nothing for the speed.
SIMULATOR := build/simulator/schedule.js
SIMULATOR_SOURCES := docs/simulator/simulator.cpp csrc/core/schedule/resolver.cpp
SIMULATOR_OBJECTS := $(patsubst %.cpp,build/simulator/%.o,$(notdir $(SIMULATOR_SOURCES)))
vpath %.cpp $(sort $(dir $(SIMULATOR_SOURCES)))
build/simulator/%.o: %.cpp $(shell find csrc/core -name '*.hpp' -o -name '*.inl')
	@mkdir -p $(@D)
	emcc -std=c++17 -O3 -ffp-contract=off -fno-math-errno -Icsrc/include -Icsrc/core -c $< -o $@
$(SIMULATOR): $(SIMULATOR_OBJECTS)
	emcc -O1 $^ -sSINGLE_FILE=1 -sMODULARIZE=1 -sEXPORT_NAME=createSchedule -sALLOW_MEMORY_GROWTH=1 -sENVIRONMENT=web,node -o $@

docs: $(VENV)/.built $(VENV)/.docs $(if $(shell command -v emcc),$(SIMULATOR))  ## the documentation as a site, in build/site; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "build/site/index.html"

core-test:  ## the tests of the C++ core alone: compiler and make are enough
	$(MAKE) $(JOBS) --no-print-directory -C tests/core run

# A program under qemu-user that has threads cannot go on after a fork: those two tests are left out.
ARM := aarch64-linux-gnu
arm-test:  ## the core's tests on AArch64, level NEON and golden hashes: Debian's cross compiler and qemu-user
	@for needed in $(ARM)-g++ qemu-aarch64; do \
	  command -v $$needed >/dev/null || { echo "arm-test: left out, as $$needed is not installed"; exit 0; }; done; \
	$(MAKE) $(JOBS) --no-print-directory -C tests/core TARGET=$(ARM) RUN="qemu-aarch64 -L /usr/$(ARM)" ONLY=-after_a_fork run

CMAKE_CXX = $(or $(shell command -v clang++),c++)
cmake:  ## the core built, tested and installed by CMake, without Python, with Clang where it is; a C++ program that uses it
	cmake -S csrc -B build/cmake -DFEDBUFF_WERROR=ON -DCMAKE_CXX_COMPILER=$(CMAKE_CXX) -DCMAKE_INSTALL_LIBDIR=lib
	cmake --build build/cmake $(JOBS)
	ctest --test-dir build/cmake --output-on-failure
	cmake --install build/cmake --prefix build/cmake/installed
	cmake -S examples/embedding/cpp -B build/cmake/example -DCMAKE_PREFIX_PATH=$(CURDIR)/build/cmake/installed
	cmake --build build/cmake/example
	build/cmake/example/simulator build/cmake/log.csv

dist: $(VENV)/.dist  ## wheel and source distribution in dist/, built apart and checked
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(if $(filter Linux,$(shell uname)),$(BIN)/python -m auditwheel show dist/*.whl)

wheels: $(VENV)/.dist  ## wheels for several Pythons, in wheelhouse/; on Linux this needs Docker or Podman
	$(BIN)/python -m cibuildwheel --output-dir wheelhouse

sanitize: $(VENV)/.built  ## the C++ tests and some of the Python ones under ASan, UBSan and TSan
	$(MAKE) $(JOBS) --no-print-directory -C tests/core SANITIZE=thread run
	FEDBUFF_BUILD=require FEDBUFF_SANITIZE=address,undefined $(BIN)/python setup.py --quiet build --build-base build/sanitize-base --build-lib build/sanitize
	$(MAKE) $(JOBS) --no-print-directory -C tests/core SANITIZE=address,undefined LIB=$(SANITIZED)/fedbuff/$(notdir $(CORE)) run
	tests/run_sanitized.sh $(BIN)/python $(SANITIZED) $(PARALLEL)

torture: $(VENV)/.built  ## a fault at each system call of each save, 1,000 kills: docs/reliability.md gets the figures
	$(BIN)/python tests/torture/faults.py --publish
	$(BIN)/python tests/torture/kills.py --kills 1000 --publish

memory: $(VENV)/.built  ## memory over a million calls, or 20 s, of each function; docs/reliability.md gets the figures
	$(BIN)/python tests/torture/memory.py --publish

SECONDS ?= 600
fuzz: $(VENV)/.built  ## SECONDS=600 of fuzzing by libFuzzer (Clang) and in Python; docs/reliability.md gets the figures
	$(BIN)/python tests/fuzz/campaign.py --seconds $(SECONDS) --publish

bench: $(VENV)/.built  ## benchmarks in short, a few minutes on a quiet machine
	$(BIN)/python -m pytest $(wildcard benches/bench_*.py) --benchmark-only --benchmark-sort=name --benchmark-columns=min,median,rounds

bench-full: $(VENV)/.built  ## all benchmarks, and docs/performance.md written anew
	FEDBUFF_BENCH_FULL=1 $(BIN)/python -m pytest $(wildcard benches/bench_*.py) --benchmark-only --benchmark-sort=name
	$(BIN)/python benches/report.py

study: $(VENV)/.built  ## published algorithms on the same traces: that section of docs/algorithms.md, in a few minutes
	$(BIN)/python examples/algorithms.py

bench-flower: $(VENV)/.built $(FLOWER)/.made  ## fedbuff.flower beside Flower's FedAvg
	PYTHONPATH=$(CURDIR) OPENBLAS_NUM_THREADS=1 $(FLOWER)/bin/python benches/flower.py

clean:  ## remove what was built, and .venv
	rm -rf $(VENV) $(FLOWER) $(FREE_VENV) build dist wheelhouse *.egg-info fedbuff/*.so fedbuff/*.dylib fedbuff/_build_info.py src/*.c src/*.cpp
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.made: pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed: make PYTHON=...')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install "setuptools>=77" wheel "Cython>=3.1" "pybind11>=3.0" "numpy>=2.0"
	@touch $@

$(VENV)/.built: $(VENV)/.made $(COMPILED)
	$(call INSTALL,test)
	@touch $@

$(VENV)/.demo: $(VENV)/.made $(COMPILED)
	$(call INSTALL,demo)
	@touch $@

# flwr pins other packages than ours: it has an environment of its own, made anew where FLWR changes
ifneq ($(shell cat $(FLOWER)/.made 2>/dev/null),$(FLWR))
.PHONY: $(FLOWER)/.made
endif
$(FLOWER)/.made:
	rm -rf $(FLOWER) && $(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip --disable-pip-version-check --quiet install "flwr[simulation]==$(FLWR)" numpy tqdm click "pytest>=8"
	@echo "$(FLWR)" > $@

$(FRAMEWORKS)/.made: Makefile
	rm -rf $(FRAMEWORKS) && $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip --disable-pip-version-check --quiet install "torch==2.13.0" "jax==0.10.2" "nvflare==2.9.*" tensorboard mlflow-skinny wandb numpy tqdm click "pytest>=8" "pyarrow>=16"
	@touch $@

$(OLDEST)/.made: Makefile
	rm -rf $(OLDEST) && $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip --disable-pip-version-check --quiet install "numpy==2.0.0" tqdm click "pytest>=8" "hypothesis>=6.100" "numba>=0.60" "pyarrow>=16"
	@touch $@

$(FREE_VENV)/.built: $(VENV)/.made $(COMPILED)
	test -x $(FREE_VENV)/bin/python || $(FREE) -m venv --without-pip $(FREE_VENV)
	$(PIP) --python $(FREE_VENV)/bin/python install "pip>=24.1"
	$(FREE_VENV)/bin/python -m pip --quiet install "setuptools>=77" wheel "Cython>=3.1" "pybind11>=3.0" "numpy>=2.3" tqdm click "pytest>=8" "hypothesis>=6.100"
	FEDBUFF_BUILD=require $(FREE_VENV)/bin/python -m pip --quiet install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.lint $(VENV)/.docs $(VENV)/.dist: $(VENV)/.%: $(VENV)/.made
	$(call EXTRA,$*) > $@.txt
	$(PIP) install -r $@.txt
	@touch $@
