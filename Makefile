# `make demo` trains on simulated sites under FLARE, `make test` runs every test; `make jobs` writes the committed jobs.
PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin
JOB ?= jobs/fedfa_prostate
WORKSPACE ?= demo
WHEELS ?= dist/wheelhouse

.PHONY: demo docs jobs test lint install clean wheelhouse

install: $(VENV)/.installed

# torch first and alone: an index may offer other builds to a looser request.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

demo: install
	$(BIN)/fedshift data phantom
	$(BIN)/fedshift run $(JOB) --workspace $(WORKSPACE)

jobs: install
	grep -v '^#' jobs/commands.txt | xargs -L 1 $(BIN)/fedshift job

test: install lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The documentation as a site: open site/index.html.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# For machines without internet: all that fedshift is installed from, for this Python on this kind of machine.
wheelhouse: install
	$(BIN)/pip wheel --quiet --disable-pip-version-check --constraint constraints.txt --wheel-dir $(WHEELS) torch
	$(BIN)/pip wheel --quiet --disable-pip-version-check --constraint constraints.txt --find-links $(WHEELS) \
	  --wheel-dir $(WHEELS) .
	cp deploy/wheelhouse.txt $(WHEELS)/README.txt

clean:
	rm -rf $(VENV) $(WORKSPACE) dist build site .pytest_cache .mypy_cache .ruff_cache
