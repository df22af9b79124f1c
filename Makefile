# Two commands do all: `make demo` measures here and now, `make test` proves the project.
#
# PYTHON  the interpreter to build .venv with; 3.10 or newer; default: the first found
# TORCH   lock: the tested torch from requirements.lock (default)
#         system: the torch that PYTHON already has, a GPU vendor's build for instance
#         once .venv is built, later calls follow what it was built with
# WHEELS  a folder of wheels to install from instead of a package index

PYTHON ?=
VENV := .venv
TORCH ?= $(shell cat $(VENV)/.torch 2>/dev/null || echo lock)
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	$(if $(WHEELS),--no-index --find-links "$(WHEELS)")
OLDEST := .venv-oldest
PYTEST_OF := bin/pytest -n 2 --dist worksteal -rs
PYTEST := $(VENV)/$(PYTEST_OF)
LANG_OF_PAGE ?= en
export WHEELS
# Of `make gpu`, see its help: python -m benchmarks.card --help
DEVICE ?=
SIZE ?= full
SECTIONS ?=
RESULTS ?=
RESTART ?=
BUDGET ?=
# Of `make test-hollow`, see tests/hollow/README.md
HOLLOW ?= build/hollow
HOLLOW_TORCH ?= 2.11.0 2.15.0
VULKAN ?= build/vulkan

.PHONY: help install install-dev demo test test-oldest test-engines test-hollow test-vulkan test-nightly lint docs bench pictures gpu lock clean

help: ## show what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

install: $(VENV)/.installed-$(TORCH) ## .venv with the program and tested versions of all it needs
	@echo "$(BIN)/trainmark is ready: $$($(BIN)/python --version), TORCH=$(TORCH)"

install-dev: $(VENV)/.installed-dev ## the same with the development tools

demo: install ## a trial: measure DistilBERT on generated data, print figures and paths
	@run=runs/$$(date -u +%Y%m%dT%H%M%SZ)-demo && \
	$(BIN)/trainmark run distilbert_sst2 --out $$run --lang $(LANG_OF_PAGE)

test: install-dev lint ## lint, types, contracts, tests; -rs says what was skipped and why
	$(PYTEST) -m "not nightly" --durations 10 --ignore tests/engines

test-oldest: $(OLDEST)/.installed ## models, steppers, kernels and jobs with the lowest versions admitted
	$(OLDEST)/$(PYTEST_OF) -m "not nightly" tests/cases tests/rank tests/train

test-engines: install-dev $(VENV)/.installed-engines ## install Slurm, sshd, Ray …; a run on each
	tools/engines.sh tests/engines/debian-packages.txt
	$(BIN)/pytest -rs -m "not nightly" tests/engines

# One process at a time: torch for CUDA takes gigabytes of memory in each.
test-hollow: install-dev ## torch for CUDA on a card that computes nothing; HOLLOW, HOLLOW_TORCH
	for version in $(HOLLOW_TORCH); do \
		PYTHON="$(BIN)/python" tests/hollow/build.sh "$(HOLLOW)" $$version && \
		tests/hollow/on_card.sh "$(HOLLOW)" $$version -m pytest -rs tests/hollow || exit 1; \
	done

test-vulkan: install-dev ## every case on a Vulkan device that computes on the processor; VULKAN
	tests/vulkan/build.sh $(BIN)/python "$(VULKAN)"
	VK_DRIVER_FILES="$$(echo /usr/share/vulkan/icd.d/lvp_icd*.json)" \
		PYTHONPATH="$(abspath $(VULKAN)):$(CURDIR)/tests/vulkan/vendor" \
		$(BIN)/pytest -rs tests/vulkan

# Besides: real runs of every kind, engines and browser in full, each benchmark at its smallest, and
# with the lowest versions what computes in one process: neither real runs nor what is nightly.
test-nightly: install-dev lint $(VENV)/.installed-engines $(VENV)/.installed-loggers $(OLDEST)/.installed ## all tests there are; about two hours
	tools/engines.sh tests/engines/debian-packages.txt
	$(PYTEST) $(addprefix --ignore tests/,engines hollow vulkan)
	$(BIN)/pytest -rs tests/engines
	$(OLDEST)/$(PYTEST_OF) -m "not nightly" $(addprefix --ignore tests/,integration engines benchmarks)
	$(MAKE) test-hollow test-vulkan

lint: install-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/ty check --python $(VENV) --output-format concise
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell
	$(BIN)/vermin --quiet --no-tips --violations --target=3.10- src tests tools benchmarks
	$(BIN)/mkdocs build --strict --site-dir build/site  # --quiet would let warnings pass

docs: install-dev ## the documentation as a site of plain files in site/
	$(BIN)/mkdocs build --strict
	@echo "The site: site/index.html"

bench: install-dev ## the speed benchmarks, each with its bar; takes about an hour
	$(BIN)/python -m benchmarks

pictures: install-dev $(VENV)/.installed-engines ## draw the README's pictures anew, from a run on this machine
	$(BIN)/python -m tools.pictures docs/pictures

gpu: $(VENV)/.installed-gpu ## measure and check an accelerator in sections; DEVICE, SECTIONS, RESTART=1, BUDGET=8m
	@$(BIN)/python -m benchmarks.card --size $(SIZE) --sections "$(SECTIONS)" \
		$(if $(DEVICE),--device $(DEVICE)) $(if $(RESULTS),--results "$(RESULTS)") \
		$(if $(RESTART),--restart) $(if $(BUDGET),--budget "$(BUDGET)")

lock: ## write requirements.lock anew from what is installed in .venv
	$(BIN)/python tools/lock.py

clean: ## remove both .venv and caches; runs stay
	rm -rf $(VENV) $(OLDEST) build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.installed-$(TORCH): requirements.lock pyproject.toml tools/install.sh
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" tools/install.sh $(VENV)
	@touch $@

$(VENV)/.installed-gpu: requirements.lock requirements-dev.lock pyproject.toml tools/install.sh
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" EXTRA=gpu tools/install.sh $(VENV)
	@touch $(VENV)/.installed-$(TORCH) $@

$(VENV)/.installed-engines: requirements.lock requirements-dev.lock pyproject.toml tools/install.sh
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" EXTRA=engines tools/install.sh $(VENV)
	@touch $(VENV)/.installed-$(TORCH) $@

$(VENV)/.installed-loggers: requirements.lock requirements-dev.lock pyproject.toml tools/install.sh
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" EXTRA=loggers tools/install.sh $(VENV)
	@touch $(VENV)/.installed-$(TORCH) $@

$(VENV)/.installed-dev: $(VENV)/.installed-$(TORCH) requirements-dev.lock
	$(PIP_INSTALL) --requirement requirements-dev.lock
	@touch $@

$(OLDEST)/.installed: pyproject.toml requirements-dev.lock tools/install.sh tools/oldest.py
	PYTHON="$(PYTHON)" TORCH=oldest tools/install.sh $(OLDEST)
	@touch $@
