# `make train` and `make test` set everything up themselves; a second call installs nothing.
PYTHON ?= python3
VENV ?= .venv
OLDEST ?= python3.11
NEWEST ?= python3.12
BIN = $(VENV)/bin
READY = $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: train test full chaos lint bench bench-gpu bench-split bench-envs bench-cluster bench-metrics bench-keeping bench-hops learn learn-envs atari host-soak team async soak soak-run both-jax adapters adapters-here clean

train: $(READY)
	$(BIN)/fragmenta train ppo CartPole-v1

test: lint
	$(BIN)/pytest

# All of the suites of which `make test` runs a part.
full: $(READY)
	$(BIN)/pytest -m "full or not full"

# Faults in full number: a thousand writers killed while they save, random configurations, every resume; processes of every
# policy killed, on this machine and on a Ray cluster, whose nodes and links are lost; all that they compute against the
# plain program.
chaos: $(READY)
	CHAOS=1 $(BIN)/pytest -m "full or not full" tests/faults tests/training/test_resume.py \
		tests/engines/test_cluster*.py tests/engines/test_ray_*.py

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

# Side by side with rejax, which gets a virtual environment of its own.
bench: $(READY)
	$(BIN)/python benchmarks/cpu.py

bench-gpu:
	PYTHONPATH=src python3 benchmarks/gpu.py

# What splitting costs on one device, and where the time goes.
bench-split: $(READY)
	$(BIN)/python benchmarks/split.py

# Host environments side by side with Stable-Baselines3, RLlib (in a virtual environment of their own) and bare stepping.
bench-envs: $(READY)
	$(BIN)/python benchmarks/environments.py

# PPO on the Ray engine side by side with RLlib and with the local engine.
bench-cluster: $(READY)
	$(BIN)/python benchmarks/cluster.py

# What writing metrics at every iteration costs.
bench-metrics: $(READY)
	$(BIN)/python benchmarks/metrics_cost.py

# What checkpoints, TensorBoard and evaluation cost together.
bench-keeping: $(READY)
	$(BIN)/python benchmarks/keeping.py

# A value there and back between two processes: our pipes and the ways of Ray.
bench-hops: $(READY)
	$(BIN)/python benchmarks/hops.py

# PPO on Gymnasium's CartPole and HalfCheetah under three policies, three seeds each.
learn-envs: $(READY)
	$(BIN)/python benchmarks/host_learning.py

# Pong with the CNN, for ten minutes.
atari: $(READY)
	$(BIN)/python benchmarks/atari.py pong

# Twenty minutes of HalfCheetah, and a thousand starts and stops of worker processes.
host-soak: $(READY)
	$(BIN)/python benchmarks/host_soak.py

# MAPPO on simple_spread and simple_tag, three seeds each.
team: $(READY)
	$(BIN)/python benchmarks/team.py

# A3C and IMPALA on CartPole, five seeds each; a slow actor; a hundred starts and stops.
async: $(READY)
	$(BIN)/python benchmarks/asynchronous.py

# CartPole on five seeds, in float32 and bfloat16, and Pendulum.
learn: $(READY)
	$(BIN)/python benchmarks/learn.py

# 500 short runs, three at a time: none may hang.
soak: $(READY)
	$(BIN)/python benchmarks/soak.py

# One run of two hours with all that is kept of it: memory, files, threads and speed stay as they are.
soak-run: $(READY)
	$(BIN)/python benchmarks/soak_run.py --minutes 120

# The test suite on both ends of the range of JAX: Python 3.11 with jax 0.10, and the newest jax under the cap.
both-jax:
	$(MAKE) test VENV=.venv-oldest PYTHON=$(OLDEST)
	$(MAKE) test VENV=.venv-newest PYTHON=$(NEWEST)

# The environments of all packages that have adapters, which are too much for the tests' own virtual environment.
adapters:
	$(MAKE) adapters-here VENV=.venv-adapters-oldest PYTHON=$(OLDEST)
	$(MAKE) adapters-here VENV=.venv-adapters-newest PYTHON=$(NEWEST)

# In one process: the tests of an environment share what they compiled, and Craftax writes its textures on first use.
adapters-here: $(VENV)/.adapters-ready
	ADAPTERS_REQUIRED=1 $(BIN)/pytest -n 0 -m "full or not full" tests/envs/test_jax_adapters.py

$(VENV)/.adapters-ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt \
		--editable '.[brax,craftax,gymnax,jaxmarl,jumanji,playground]' pytest pytest-timeout pytest-xdist
	touch $@

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --quiet --constraint constraints.txt --editable . --group dev
	touch $(READY)

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .venv-adapters-oldest .venv-adapters-newest .pytest_cache .ruff_cache
