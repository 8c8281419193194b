# Two commands, each enough on a fresh machine:
#
#   make demo     the scenario that jlaunch is for, on this machine, under each policy (about a minute)
#   make check    everything that is checked: format, lint, types, C++ and Python tests, real processes
#
# Both make what they need: .venv (Python packages), .build (C++), and the native parts beside the code.
# A second run builds only what has changed.

PYTHON ?= python3
VENV   ?= .venv
BUILD  ?= .build
JOBS   ?= $(shell getconf _NPROCESSORS_ONLN)
PYTEST_ARGS ?=
SOAK_S ?= 600
BENCHES ?= $(filter-out __init__ common,$(basename $(notdir $(wildcard tests/bench/*.py))))

PY     := $(VENV)/bin/python
BIN    := $(abspath $(VENV))/bin
CMAKE  := PATH="$(BIN):$$PATH" $(BIN)/cmake
CTEST  := PATH="$(BIN):$$PATH" $(BIN)/ctest
# The checkout comes first, wherever a command is run from.
RUN    := PYTHONPATH="$(CURDIR)" $(PY)

.DEFAULT_GOAL := help
.PHONY: help demo picture check format format-check lint types cpp simulation test soak bench package native clean prerequisites doctest

help:
	@sed -n '1,7s/^# \{0,1\}//p' Makefile
	@echo 'Others: format, lint, types, cpp, simulation, test (PYTEST_ARGS=…), soak, bench, package, clean'

demo: native
	$(RUN) -m jlaunch demo

# The README's picture, from a real run.
picture: native
	PYTHONPATH="$(CURDIR)" $(PY) .ci/picture.py docs/demo.svg 'jlaunch demo' $(PY) -m jlaunch demo

check: format-check lint types cpp simulation test

format: $(VENV)/.dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format -i

format-check: $(VENV)/.dev
	$(BIN)/ruff format --check
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

lint: $(VENV)/.dev
	$(BIN)/ruff check

types: $(VENV)/.dev
	$(BIN)/mypy

test: native $(VENV)/.dev
	$(RUN) -m pytest -m 'not soak' $(PYTEST_ARGS)

# Random faults from seeds, in virtual time; a seed that fails prints itself and the command that replays it.
simulation: $(VENV)/.dev
	$(RUN) -m tests.sim.run --schedules 10000 --big 50 --workers $(JOBS)

soak: native $(VENV)/.dev
	SOAK_S=$(SOAK_S) $(RUN) -m pytest -m soak -s $(PYTEST_ARGS)

bench: native $(VENV)/.bench | doctest
	@$(CONFIGURE_plain)
	$(CMAKE) --build $(BUILD)/plain -j $(JOBS) --target bench_deadline
	$(BUILD)/plain/bench_deadline
	for bench in $(BENCHES); do echo "== $$bench"; $(RUN) -m tests.bench.$$bench || exit 1; done

# ---- C++: once as it ships, once under each sanitizer, the latter two without Python --------------

native: $(VENV)/.run
	@$(CMAKE) -E make_directory $(BUILD)/release
	@test -f $(BUILD)/release/build.ninja || $(CMAKE) -S jlaunch/backend -B $(BUILD)/release -G Ninja \
	  -DPython_EXECUTABLE=$(BIN)/python -DJLAUNCH_TESTS=OFF
	$(CMAKE) --build $(BUILD)/release -j $(JOBS)
	@$(CMAKE) --install $(BUILD)/release --prefix $(CURDIR) >/dev/null

cpp: cpp-plain cpp-address cpp-thread

doctest:
	@c++ -E -include doctest/doctest.h -x c++ /dev/null >/dev/null 2>&1 || { \
	  echo 'The C++ tests need doctest. On Debian or Ubuntu: apt-get install doctest-dev' >&2; exit 1; }

cpp-plain cpp-address cpp-thread: cpp-%: $(VENV)/.run | doctest
	@$(CONFIGURE_$*)
	$(CMAKE) --build $(BUILD)/$* -j $(JOBS) --target jlaunch_core_tests jlaunch_control_tests
	$(CTEST) --test-dir $(BUILD)/$* --output-on-failure --no-tests=error

# $(call configure,NAME,FLAGS,SANITIZERS): under a sanitizer assertions are on, and -O1 keeps building short.
configure = test -f $(BUILD)/$(1)/build.ninja || $(CMAKE) -S jlaunch/backend -B $(BUILD)/$(1) -G Ninja \
  -DPython_EXECUTABLE=$(BIN)/python -DJLAUNCH_TESTS=ON -DJLAUNCH_EXT=OFF -DCMAKE_CXX_FLAGS_RELEASE="$(2)" \
  -DCMAKE_COMPILE_WARNING_AS_ERROR=ON -DJLAUNCH_SANITIZE="$(3)"
CONFIGURE_plain   = $(call configure,plain,-O2 -DNDEBUG,)
CONFIGURE_address = $(call configure,address,-O1 -g1,address;undefined)
CONFIGURE_thread  = $(call configure,thread,-O1 -g1,thread)

# ---- what is installed: into a scratch environment, from what git has, as a user would -------------

package: $(VENV)/.run
	$(PY) .ci/try_package.py

# ---- Python packages -----------------------------------------------------------------------------

prerequisites:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && \
	 test -f "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" && \
	 command -v c++ >/dev/null || { \
	  echo 'jlaunch needs Python 3.10 or newer with its headers and venv, and a C++20 compiler. On Debian or Ubuntu:'; \
	  echo '    apt-get install g++ make python3-dev python3-venv doctest-dev libibverbs-dev'; \
	  exit 1; } >&2

$(PY): | prerequisites
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml .ci/requirements.py | $(PY)
	$(PY) .ci/requirements.py cpu build >$@.txt
	$(PY) -m pip install --quiet --disable-pip-version-check -r $@.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PY) .ci/requirements.py cpu build dev >$@.txt
	$(PY) -m pip install --quiet --disable-pip-version-check -r $@.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.run
	$(PY) .ci/requirements.py cpu build bench >$@.txt
	$(PY) -m pip install --quiet --disable-pip-version-check -r $@.txt
	@touch $@

clean:
	rm -rf $(BUILD) $(VENV) build dist jlaunch/backend/bin
	find jlaunch/backend -name '*.so' -delete
