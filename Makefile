# `make` or `make help` lists the targets. What follows `##` is what it prints.
.DEFAULT_GOAL := help
PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin
JOB ?= jobs/fedfa_prostate
WORKSPACE ?= demo
WHEELS ?= dist/wheelhouse

.PHONY: help install nnunet demo test test-real test-all coverage lint docs jobs lock audit wheelhouse release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
	  printf '  make %-12s %s\n' "$$name" "$$what"; done

install: $(VENV)/.installed ## install everything for development into .venv

# Compiled modules are kept: the tests start hundreds of processes that import the same ones.
export PYTHONDONTWRITEBYTECODE =

# torch first and alone: an index may offer other builds to a looser request. Modules are compiled when they are first
# imported: most of what is installed never is. nnU-Net's networks come without timm and torchvision, which its U-Nets do
# not import.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev,docs]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --no-deps dynamic-network-architectures
	touch $@

# In an environment of its own, which sees the packages of the other and decides none of their versions.
NNUNET = $(VENV)/nnunet
nnunet: $(NNUNET)/.installed ## install nnU-Net, which the tests of exports to it run

$(NNUNET)/.installed: $(VENV)/.installed scripts/nnunet-packages.txt
	$(PYTHON) -m venv $(NNUNET)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$($(NNUNET)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beside.pth"
	$(NNUNET)/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps --requirement scripts/nnunet-packages.txt
	touch $@

demo: install ## train on simulated scans of six sites under FLARE's simulator
	$(BIN)/fedshift data phantom
	$(BIN)/fedshift run $(JOB) --workspace $(WORKSPACE) --phantom --force

jobs: install ## write the committed jobs again, from jobs/commands.txt
	grep -v '^#' jobs/commands.txt | xargs -L 1 $(BIN)/fedshift job

# Three at a time on two cores: some tests wait for processes that they start.
test: install lint ## lint, types and the tests of a change: about ten minutes on two fast cores
	$(BIN)/python -m pytest -m "not slow" -n 3 --dist worksteal

# The slow tests that a change most likely breaks: recorded weights, and a run of each kind.
REAL = tests/test_weights_unchanged.py tests/test_frozen.py tests/flare/test_same_numbers.py tests/flare/test_deployed.py \
  tests/mailbox/test_same_numbers.py tests/pacs/test_orthanc.py tests/inference/test_nnunet_export.py
test-real: install nnunet ## recorded weights, the simulator, provisioned sites, a mailbox, a PACS: some minutes
	$(BIN)/python -m pytest -m slow -n 3 --dist loadfile --no-loadscope-reorder $(REAL)

# A file of slow tests stays in one process: its tests share a federation that takes a minute to start. Most of the time
# they wait for their processes, so four on two cores are not too many. tests/conftest.py has them in a good order.
test-all: test nnunet ## what make test runs, then all slow tests: half an hour to an hour
	$(BIN)/python -m pytest -m slow -n 4 --dist loadfile --no-loadscope-reorder

coverage: install ## branch coverage of make test, written to benchmarks/results/tests/after.json
	$(BIN)/python -m benchmarks.branch_coverage --out benchmarks/results/tests/after.json -- -m "not slow" --dist worksteal

lint: install ## ruff, mypy and the order of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: install ## build the documentation as a site: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# In an environment of its own, so that it decides no version of ours.
TOOLS = $(VENV)/release-tools
$(TOOLS)/.installed: $(VENV)/.installed scripts/release-tools.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/pip install --quiet --disable-pip-version-check --requirement scripts/release-tools.txt
	touch $@

lock: $(TOOLS)/.installed ## write deploy/requirements.lock again, with a hash for every file
	scripts/lock.sh $(TOOLS)

# OSV, as it fails where it cannot be reached; pip-audit's other service then reports nothing.
audit: $(TOOLS)/.installed ## look up known vulnerabilities of what is locked (needs internet)
	$(TOOLS)/bin/pip-audit --strict --vulnerability-service osv --disable-pip --require-hashes \
	  --requirement deploy/requirements.lock

wheelhouse: $(TOOLS)/.installed ## collect all wheels for machines without internet
	scripts/wheelhouse.sh $(WHEELS) $(BIN)/python $(TOOLS)

release: $(TOOLS)/.installed ## check, test, build and tag a release; pushes nothing
	scripts/release.sh

clean: ## delete .venv and everything that was built
	rm -rf $(VENV) $(WORKSPACE) dist build site .pytest_cache .mypy_cache .ruff_cache
