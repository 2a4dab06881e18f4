# Each target sets up .venv first, also from a clean clone. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
CONFIG ?= config/examples/train_lora_tiny_cpu_with_telemetry.yaml
ARGS ?=
# More than the cores of a small machine: a test that waits for a process leaves its core to another.
# Each process collects every test first, so not many more.
JOBS ?= 3
MINUTES ?= 10
CORPUS ?= ../shared/corpus
QUESTION ?= diagnosis
# Empty: install the newest versions instead of those in the lock file.
LOCKED ?= yes
# Which Python versions the release check installs the wheel on, and on which of them it also installs torch and trains.
PYTHONS ?= 3.10 3.11 3.12 3.13
TORCH_ON ?= 3.11

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check
LOCK := requirements/lock-linux.txt
# What the lock file has to name, so that it is used here.
SYSTEM := import platform, sys; print(*sys.version_info[:2], sep=".", end=f"-{sys.platform}-{platform.machine().lower()}")
comma := ,

# The dashboard's packages are large, so they are installed only if there is a dashboard.
EXTRAS := dev,training,tensorboard,wandb,otlp,metrics,fleet,sql,mcp,top,integrations$(if $(wildcard dashboard/app.py),$(comma)dashboard$(comma)login)
READY := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
READY_TO_BENCH := $(READY)-bench
# Less, where there is not everything already.
READY_TO_RUN := $(firstword $(wildcard $(READY)) $(VENV)/.installed-training-dashboard)
READY_TO_SHOW := $(firstword $(wildcard $(READY) $(READY_TO_RUN)) $(VENV)/.installed-dashboard)
REQUIREMENTS := pyproject.toml dashboard_requirements.txt $(wildcard requirements/*.txt)

.PHONY: help run dashboard fleet test compiled faults fuzz docs check format bench evaluate release-check lock sbom clean
.DELETE_ON_ERROR:

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# A terminal sends Ctrl-C to both programs; another signal comes here alone. The training saves before it ends, does not
# get the tokens of the pages, and says how it ended. A signal interrupts one wait, so there is another.
run: $(READY_TO_RUN)  ## Train the example and show it on http://localhost:8501, until Ctrl-C (CONFIG=, ARGS= go to run.py).
	@$(BIN)/python run_dashboard.py & pages=$$!; \
		env -u TELEMETRY_DASHBOARD_TOKEN -u TELEMETRY_DASHBOARD_READER_TOKEN \
			$(BIN)/python run.py $(CONFIG) $(ARGS) & training=$$!; \
		trap : INT; trap "kill $$training $$pages" TERM HUP; wait $$training; code=$$?; wait; wait; exit $$code

# exec, so that signals reach the program and not a shell around it.
dashboard: $(READY_TO_SHOW)  ## Serve the dashboard on http://localhost:8501 (ARGS="--log-dir DIR --port N ...").
	@exec $(BIN)/python run_dashboard.py $(ARGS)

fleet: $(READY)  ## Start a whole fleet on this machine: ClickHouse, two nodes, 200 runs and the dashboard, until Ctrl-C.
	@exec $(BIN)/python -m benchmarks.fleet_demo $(ARGS)

test: compiled check  ## Run the checks, then every test (ARGS= goes to pytest; JOBS=0 runs one at a time, in order).
	@echo "== pytest"
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Next to the checks, which need one core: in a new clone every worker would compile every test by itself.
compiled: $(READY)
	@$(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider $(ARGS) > /dev/null 2>&1 < /dev/null &

faults: $(READY)  ## Test faults, attacks and load at full length; writes the figures of docs/guarantees.md (ARGS= goes to pytest).
	@mkdir -p build
	@TELEMETRY_LONG=1 $(BIN)/python -m pytest --timeout 3600 --junitxml build/faults.xml \
		tests/faults tests/attacks tests/load tests/browser \
		$$(grep -rlE --include 'test_*.py' '^from (tests.lengths|hypothesis) import' tests | grep -v ^tests/fuzz/) \
		$$($(BIN)/python -m benchmarks.guarantees --other-tests) $(ARGS)
	@$(BIN)/python -m benchmarks.guarantees build/faults.xml

fuzz: $(READY)  ## Fuzz for MINUTES=10, then test random run histories for as long (ARGS="--keep TARGET ..." goes to the fuzzer).
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(ARGS)
	@TELEMETRY_LONG=1 FUZZ_MINUTES=$(MINUTES) $(BIN)/python -m pytest tests/fuzz/test_machine.py

docs: $(READY)  ## Write the parts of the documents that are made from the code.
	@$(BIN)/python -m tests.project.command_docs > docs/cli.md
	@$(BIN)/python -m tests.project.option_docs
	@$(BIN)/python -m tests.project.places

check: $(READY)  ## Check lint, types and import contracts.
	@echo "== ruff check"
	@$(BIN)/ruff check
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check --quiet || { echo "Run 'make format' to fix it." >&2; exit 1; }
	@echo "== mypy --strict"
	@$(BIN)/mypy
	@echo "== import contracts"
	@$(BIN)/lint-imports --no-logo

format: $(READY)  ## Format code and sort imports.
	@$(BIN)/ruff check --select I --fix --quiet
	@$(BIN)/ruff format

bench: $(READY_TO_BENCH)  ## Benchmark us and our peers (ARGS=--quick for a short run).
	@$(BIN)/python -m benchmarks $(ARGS)

evaluate: $(READY)  ## Measure how often an answer is right; writes docs/figures (QUESTION=diagnosis, CORPUS=DIR, ARGS="--quick --fit").
	@$(BIN)/python -m evaluations $(QUESTION) --corpus $(CORPUS) $(ARGS)

release-check: $(READY)  ## Build the packages, install them in new environments and try them (PYTHONS="3.11 3.12", TORCH_ON=3.11).
	@$(BIN)/python -m tests.project.release_check --pythons "$(PYTHONS)" --torch-on "$(TORCH_ON)" $(ARGS)

lock: $(READY)  ## Write the lock file of Linux from .venv; to upgrade it: make clean, make test LOCKED=, make lock.
	@$(BIN)/python -m tests.project.lock_file $(EXTRAS)

sbom: $(READY)  ## Write what the lock file contains as a CycloneDX SBOM, build/sbom.cdx.json.
	@$(BIN)/python -m tests.project.sbom build/sbom.cdx.json

clean:  ## Remove everything make, tests and tools created, except logs and trained weights.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find toolkit dashboard tests benchmarks evaluations -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per set of extras; it contains their names, so a new extra means a new stamp.
# Where the lock file is for this Python and system, what the extras need of it is installed first. A file with another
# hash is an error. A version that cannot be had here is not: then the newest are installed, as on other systems.
$(VENV)/.installed-%: $(REQUIREMENTS) | $(BIN)/python
	@echo "Installing $(subst -,$(comma) ,$*) into $(VENV) (a few minutes the first time)"
	@system=$$($(BIN)/python -c '$(SYSTEM)'); \
	if [ -z "$(LOCKED)" ] || ! grep -q "^# is for.* $$system" $(LOCK); then \
		echo "Nothing is locked for $$system: the newest versions are installed." >&2; \
	else \
		awk -v wanted="$(subst -, ,$*)" 'BEGIN {n = split(wanted, extras)} /^# for / {keep = 0; \
			for (i = 1; i <= n; i++) keep += index($$0 " ", " " extras[i] " ") > 0} keep' $(LOCK) > "$@.locked"; \
		$(PIP) --no-deps --require-hashes --requirement "$@.locked" 2> "$@.errors" || { \
			cat "$@.errors" >&2; \
			! grep -q "DO NOT MATCH THE HASHES" "$@.errors" || exit 1; \
			echo "$(LOCK) cannot be installed here, so the newest versions are." >&2; }; \
		rm -f "$@.locked" "$@.errors"; \
	fi
	@$(PIP) --constraint requirements/constraints.txt --editable ".[$(subst -,$(comma),$*)]"
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "Python 3.10 or newer is needed, and '$(PYTHON)' is not one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "'$(PYTHON) -m venv' failed, see above. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
