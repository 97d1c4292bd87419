# Everything starts from here: `make help` lists the commands.
# Needs Python 3.11 or newer and make; the first command builds .venv, later ones reuse it.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
# Extra pip arguments, for example PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
# to get the small CPU build of torch on Linux.
PIP_ARGS ?=
# Extra pytest arguments, for example PYTEST_ARGS="-x -k spaces".
PYTEST_ARGS ?=
# Processes that run tests at the same time: a number, or `logical` for one per core.
WORKERS ?= logical

BIN := .venv/bin
INSTALLED := .venv/.installed
SITE_TOOLS := .venv/.site-tools
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 16
CODE := germline tests benchmarks checks
# Without cached bytecode every worker, and every process that a test starts, compiles germline.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install demo test docs site format lint types imports rules spelling check engines equality clean

help:  ## list the commands
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

install: $(INSTALLED)  ## build .venv with the pinned versions (done by every other command)

demo: $(INSTALLED)  ## train the embedded model to answer concisely, about a minute and a half
	@$(BIN)/germline train configs/demo.yaml

test: $(INSTALLED)  ## run the tests, those of the docs included, but for the slow ones
	@$(PYTEST) -m 'not slow' $(PYTEST_ARGS)

docs: $(INSTALLED)  ## write docs/cli.md and docs/config.md anew, build the documentation site
	@$(BIN)/python -m checks.reference
	@$(MAKE) --no-print-directory site

site: $(SITE_TOOLS)  ## build the documentation site into site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html in a browser."

format: $(INSTALLED)  ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: $(INSTALLED)  ## check format and lint
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(INSTALLED)  ## check types (mypy --strict)
	@$(BIN)/mypy $(CODE)

imports: $(INSTALLED)  ## check that imports only go down (import-linter)
	@$(BIN)/lint-imports

rules: $(INSTALLED)  ## check the project rules (checks/rules.py)
	@$(BIN)/python checks/rules.py

spelling: $(INSTALLED)  ## check the spelling, which is American (codespell)
	@$(BIN)/codespell

check: lint types imports rules spelling site  ## all of the above and every test, the slow ones too; what CI runs
	@$(PYTEST) $(PYTEST_ARGS)

engines: $(INSTALLED)  ## build the environments of vLLM and SGLang (gigabytes, once per machine)
	@PIP_ARGS='$(PIP_ARGS)' $(BIN)/python -m checks.engines.build

equality: $(INSTALLED)  ## hold vLLM and SGLang on a CPU against the inprocess engine
	@named=$$(PIP_ARGS='$(PIP_ARGS)' $(BIN)/python -m checks.engines.build) && eval "$$named" && \
	  $(BIN)/python -m pytest $(PYTEST_ARGS) tests/engines_real

clean:  ## remove .venv and the tools' caches
	rm -rf .venv site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "germline needs Python 3.11 or newer; '$(PYTHON)' is not one." >&2; \
	  echo "Install it, or name one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Creating .venv" >&2; $(PYTHON) -m venv .venv; }
	@echo "Installing (a few minutes, once; torch is the large part)" >&2
	@$(PIP) torch
	@$(PIP) -e '.[dev]'
	@touch $@

$(SITE_TOOLS): $(INSTALLED)
	@$(PIP) -e '.[docs]'
	@touch $@
