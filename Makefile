# `make` lists the targets. PYTHON=python3.13 make … picks another Python.

PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 3
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder
RUN_READY := .venv/.run-ready
DEV_READY := .venv/.dev-ready
# Whatever is started compiles no source a second time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-all tests every-test browser check package fault bench bench-peers docs screenshots lock clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUN_READY) ## Start the demo: a lively queue and its dashboard, until Ctrl-C
	@$(BIN)/treadle demo

test: check tests ## Run every check, and the short suite with coverage
test-all: check every-test ## Run every check, and every test on every store (before a release)

# Each part can be run by itself, and `make -k test` runs the others when one fails.
# SLICE=COMMIT adds a part of what only `make test-all` runs (tests/selection.py).
tests: $(DEV_READY) browser
	$(PYTEST) --short $(if $(SLICE),--slice $(SLICE)) --cov --cov-report=
	$(BIN)/coverage report --format=total

every-test: $(DEV_READY) browser
	$(PYTEST)

# A system Chromium if there is one, else playwright's own, else Debian's; without any, the browser tests say so.
browser: $(DEV_READY)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| $(BIN)/playwright install chromium || { apt-get update && apt-get install -y chromium; } || true

check: $(DEV_READY) ## Lint, format, types, import contracts, spelling, the JavaScript SDK
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m tests.sdk.sdk_build

package: $(DEV_READY) ## Build the distributions in dist/, and try them in an empty environment
	$(BIN)/python scripts/check_package.py

fault: $(DEV_READY) ## Run the fault tests at full length
	TREADLE_FAULT=full $(BIN)/pytest -n 2 --timeout 5400 -rA --show-capture=no tests/fault tests/model \
		tests/contract/test_races.py tests/contract/test_postgres_connections.py tests/contract/test_rule_agreement.py tests/http/test_fuzz.py \
		tests/http/test_random_resumes.py \
		tests/unit/schedules

bench: $(DEV_READY) ## Measure Treadle
	$(BIN)/python -m bench

bench-peers: $(DEV_READY) .cache/dbos/bin/dbos ## Measure flows against DBOS
	$(BIN)/python -m bench.peers

docs: $(DEV_READY) ## Remake the generated documentation
	@if [ -f scripts/docs.py ]; then $(BIN)/python scripts/docs.py; else echo "nothing to generate yet"; fi

screenshots: $(DEV_READY) ## Take pictures of every page of the dashboard into docs/images
	$(BIN)/python scripts/screenshots.py

lock: .cache/lock/bin/uv ## Remake requirements/dev.txt with the newest versions
	$< pip compile pyproject.toml --extra postgres --extra otel --group dev --universal --upgrade --quiet \
		--no-header --no-emit-index-url --no-emit-find-links --output-file requirements/dev.txt

clean: ## Remove the virtual environment, caches and build output
	rm -rf .venv .cache .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache \
		.ruff_cache build dist htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Treadle needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name a newer one: make PYTHON=python3.12 …" >&2; exit 1; }
	$(PYTHON) -m venv .venv

# The lock constrains what users run too, so that the demo is the one that was tested.
$(RUN_READY): $(BIN)/pip pyproject.toml requirements/dev.txt
	$(BIN)/pip install --quiet --constraint requirements/dev.txt --editable .
	@touch $@

$(DEV_READY): $(BIN)/pip pyproject.toml requirements/dev.txt
	$(BIN)/pip install --quiet --requirement requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	$(BIN)/pip check
	@touch $@ $(RUN_READY)

.cache/lock/bin/uv:
	$(PYTHON) -m venv .cache/lock
	.cache/lock/bin/pip install --quiet uv

.cache/dbos/bin/dbos:
	$(PYTHON) -m venv .cache/dbos
	.cache/dbos/bin/pip install --quiet dbos
