# `make train` and `make test` install everything they need; a second call installs nothing.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Markers: the package is installed; the dependencies of tests and benchmarks are installed, too; and those of the site.
INSTALLED = $(VENV)/.installed
READY = $(VENV)/.ready
DOCS = $(VENV)/.docs
ADAPTERS = .venv-adapters
PIP = $(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt
WHAT ?= cpu
ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: train test test-gpu full chaos learn bench docs release clean

train: $(INSTALLED)
	$(BIN)/fragmenta train ppo CartPole-v1

# Most of the time of the tests is compiling, so programs are compiled without optimisation here; `make full` and
# `make chaos` compile as runs do.
test: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/pytest

# The kernels that are generated for NVIDIA GPUs, on one; matrix products keep all bits, so that results can be compared.
test-gpu: $(READY)
	JAX_PLATFORMS=cuda,cpu JAX_DEFAULT_MATMUL_PRECISION=highest $(BIN)/pytest -n 0 -m "full or not full" tests/worker/kernels

# All tests, of which `make test` runs a part, and those of every package with an adapter, in a separate virtual
# environment because there are so many packages. In one process, because Craftax writes textures on first use.
full: $(READY)
	$(BIN)/pytest -m "full or not full"
	$(MAKE) $(ADAPTERS)/.adapters VENV=$(ADAPTERS)
	ADAPTERS_REQUIRED=1 $(ADAPTERS)/bin/pytest -n 0 -m "full or not full" tests/envs/test_jax_adapters.py

# Fault injection at full scale: a thousand writers killed while saving, random configurations, every resume, processes
# killed under every distribution policy, on this machine and on a Ray cluster whose nodes and links fail.
chaos: $(READY)
	CHAOS=1 $(BIN)/pytest -m "full or not full" tests/faults tests/training/test_resume.py \
		tests/engines/test_cluster*.py tests/engines/test_ray_*.py

# Train the recipes of the zoo whose packages are installed, with three seeds each, and check what they reach. This takes
# hours: Pong alone about one on an H200, and more than a day on two cores.
learn: $(READY)
	$(BIN)/fragmenta zoo --all --seeds 3 $(ARGS)

# One of benchmarks/: `make bench` compares with rejax, `make bench WHAT=gpu` runs on a GPU; CONTRIBUTING.md lists them.
bench: $(READY)
	$(BIN)/python benchmarks/$(WHAT).py $(ARGS)

# The pictures and lists in docs/ that are drawn from the code, and the site in build/site. Not with --quiet: mkdocs
# would not count warnings, so that none of them were an error.
docs: $(READY) $(DOCS)
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/rooms.py
	$(BIN)/python docs/walks.py
	$(BIN)/python docs/zoo_table.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Build wheel and sdist, and train with each in a fresh virtual environment that has nothing else.
release: $(READY)
	rm -rf dist build/release
	$(PIP) build
	$(BIN)/python -m build --quiet
	for package in dist/*.whl dist/*.tar.gz; do \
		$(PYTHON) -m venv --clear build/release && \
		build/release/bin/python -m pip install --quiet --quiet --constraint constraints.txt $$package && \
		(cd build && release/bin/fragmenta train ppo CartPole-v1 --total-steps 20000 --run-dir release/run) || exit 1; \
	done

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --quiet --upgrade pip
	$(PIP) --editable .
	touch $@

$(READY): $(INSTALLED)
	$(PIP) --editable . --group dev
	touch $@

$(DOCS): $(INSTALLED)
	$(PIP) --group docs
	touch $@

$(VENV)/.adapters: $(INSTALLED)
	$(PIP) --editable '.[brax,craftax,gymnax,jaxmarl,jumanji,playground]' pytest pytest-timeout pytest-xdist psutil
	touch $@

clean:
	rm -rf $(VENV) $(ADAPTERS) build dist .pytest_cache .ruff_cache .import_linter_cache
