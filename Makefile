# fedsink: `make simulate` and `make test` set up everything they need in .venv.
PYTHON ?= python3
GPU_PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install install-dev simulate deploy-demo core-wheel test test-medium test-slow test-guards test-others test-all test-gpu mutants coverage bench results tutorials lint types contracts packages claims docs release check clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "fedsink needs Python 3.11 or newer, and '$(PYTHON)' was not found: install it, or name one with 'make PYTHON=/path/to/python3 …'." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fedsink needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1): name a newer one with 'make PYTHON=/path/to/python3 …'." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is missing: install it (Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps make both installs idempotent: they are redone only when the requirements change.
$(VENV)/.installed: pyproject.toml packages/papers/pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing fedsink and PyTorch into $(VENV): up to 6.2 GB, about three minutes, and pip says nothing meanwhile."
	$(PIP) install --quiet --constraint constraints.txt --editable . --editable packages/papers
	@touch $@
	@echo "Installed. 'source $(BIN)/activate' makes fedsink a command of your shell; without it, type $(BIN)/fedsink."

$(VENV)/.installed-dev: pyproject.toml packages/papers/pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what the tests need into $(VENV), and fedsink (up to 6.4 GB) if it is not there: a minute or more."
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]' --editable packages/papers
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	@touch $@

# With what slow tests alone need: a release's tools, Optuna's sweeper, Ray's job server, Hugging Face's reader.
$(VENV)/.installed-slow: $(VENV)/.installed-dev
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,docs,jobs,optuna]' datasets
	@touch $@

install: $(VENV)/.installed ## create .venv and install fedsink
install-dev: $(VENV)/.installed-dev ## ... with what the tests need

simulate: install ## run the main job: DP-Sinkhorn on the embedded digits, ε = 10
	$(BIN)/fedsink simulate $(or $(ARGS),mode=central)

deploy-demo: install ## a SuperLink and hospitals on this machine, TLS and all; ARGS=--masked: secure aggregation
	$(BIN)/python deploy/demo.py $(ARGS)

core-wheel: install-dev ## the wheel of fedsink-core, what a node installs, into dist/
	$(BIN)/python -m build --wheel --no-isolation --outdir dist packages/core

# Two processes, each with fixtures of its own; who has done its tests takes some of the other's.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal

test: install-dev ## run the quick tests
	$(PYTEST) $(ARGS)

test-medium: install-dev ## run those that take over half a second
	$(PYTEST) -m 'medium and not slow and not gpu' $(ARGS)

test-slow: $(VENV)/.installed-slow ## run the slow ones
	$(PYTEST) -m 'slow and not gpu' $(ARGS)

# A skip that an install could prevent is a failure here (tests/conftest.py).
test-all: export FEDSINK_TEST_ALL := 1
test-all: test test-medium test-slow ## run all of them

# CI counts lines where these run, and runs of the slow tests only theirs: more is beyond forty minutes.
GUARDS := tests/adversary tests/clients tests/privacy tests/secagg packages/papers/tests/clients
test-guards: install-dev ## the slow tests of what guards private data
	$(MAKE) test-slow ARGS="$(GUARDS) $(ARGS)"

# No install: a machine with a GPU has its own PyTorch. Neither Flower nor Ray nor Hydra is needed.
test-gpu: ## what needs a GPU, with the Python that has PyTorch for it (GPU_PYTHON=python3)
	PYTHONPATH=.:packages/papers/src $(GPU_PYTHON) -m pytest -q -s -rs -m gpu --confcutdir=tests/gpu tests/gpu $(ARGS)

mutants: install-dev ## plant defects and see that the tests fail
	$(PYTEST) -m 'slow or not slow' $(ARGS) tests/mutants

coverage: install-dev ## quick and medium tests of what guards private data: they run 95 % of its lines and branches
	$(PYTEST) -m 'not slow and not gpu' $(GUARDS) --cov $(ARGS)

test-others: ## the medium tests of everything else
	$(MAKE) test-medium ARGS="$(GUARDS:%=--ignore=%) $(ARGS)"

bench: install-dev ## every benchmark that needs no argument: takes long, wants a quiet machine
	@for file in $$(grep -l __main__ benchmarks/*.py | grep -vE '/(clipart|figures|guarded_fedavg|results)\.py$$'); do \
	  echo "== $$file"; $(BIN)/python $$file || exit 1; done

results: install-dev ## the rows of docs/results/: what is not measured yet, then the pages (ARGS="--data DIR")
	$(BIN)/python benchmarks/results.py run $(ARGS)
	$(BIN)/python benchmarks/results.py render $(ARGS)

tutorials: install-dev ## run the notebooks of docs/tutorials and store their output
	$(BIN)/python docs/tutorials/execute.py

lint: install-dev ## ruff: format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install-dev ## mypy --strict
	$(BIN)/mypy
	MYPYPATH=examples/plugin $(BIN)/mypy -p fedsink_plugin

contracts: install-dev ## the boundaries of the architecture, as import contracts
	$(BIN)/lint-imports

packages: install-dev ## build wheel and sdist and check what they hold
	$(BIN)/python .ci/check_packages.py

claims: install-dev ## what documents claim of results, held against records and papers
	$(BIN)/python .ci/check_claims.py

docs: $(VENV)/.installed-docs ## the documentation as a site, into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --clean --strict $(ARGS)
	$(BIN)/python .ci/check_site.py site

release: check ## wheels, sdist, SBOMs and checksums of a clean, named version into dist/; publishes nothing
	$(BIN)/python .ci/release.py dist

check: lint types contracts packages claims docs ## everything CI runs besides the tests

clean: ## remove .venv and caches (runs/ stays)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build site
