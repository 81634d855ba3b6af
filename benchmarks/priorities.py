"""Prioritised replay: our tree with eight children per node (`fragmenta.rl.priorities`), a binary tree, flashbax.

An iteration adds a step of each of eight environments, draws a batch by priority, and sets new priorities for it, in a
loop within one compiled program; the buffers are full. Every side stores and reads one number per step besides, so that
it is the priorities that are timed. Sides take turns, each in a process of its own; figures are medians.
"""

import argparse
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from sides import answer, ask

HERE = Path(__file__).parent
ENVS = 8
SIZES = (10_000, 100_000, 1_000_000)
BATCHES = (32, 256)
FLASHBAX = "flashbax==0.1.3"

Iterate = Callable[[Any, jax.Array], Any]


def wide(size: int, batch: int) -> tuple[Any, Iterate]:
    """Ours: a ring for each environment, a batch has as many steps of each."""
    from fragmenta.rl.priorities import add_rows, draw_rows, no_priorities, set_rows

    length = size // ENVS
    whole = jnp.full(ENVS, length)
    values = jax.random.uniform(jax.random.key(0), (length, ENVS))
    priorities = set_rows(no_priorities(length, ENVS), jnp.tile(jnp.arange(length)[:, None], (1, ENVS)), values)

    def iterate(state: Any, key: jax.Array) -> Any:
        priorities, stored, position = state
        stored = stored.at[position].set(1.0)
        priorities = add_rows(priorities, position, whole[0], 1, 1, length)
        rows, _ = draw_rows(priorities, jax.random.split(key, ENVS), batch // ENVS)
        error = jnp.take_along_axis(stored, rows, axis=0) * jax.random.uniform(key, rows.shape)
        return set_rows(priorities, rows, error), stored, (position + 1) % length

    return (priorities, jnp.ones((length, ENVS)), jnp.int32(0)), iterate


def binary(size: int, batch: int) -> tuple[Any, Iterate]:
    """A tree of sums over the steps of all environments, level by level; the leaves are the last."""
    depth = math.ceil(math.log2(size))
    leaves = jnp.zeros(2**depth).at[:size].set(jax.random.uniform(jax.random.key(0), (size,)))
    levels = [leaves]
    while levels[0].size > 1:
        levels.insert(0, levels[0].reshape(-1, 2).sum(axis=1))

    def write(levels: list[jax.Array], index: jax.Array, values: jax.Array) -> list[jax.Array]:
        changed = [levels[-1].at[index].set(values)]
        for level in reversed(levels[:-1]):
            index = index // 2
            changed.insert(0, level.at[index].set(changed[0][2 * index] + changed[0][2 * index + 1]))
        return changed

    def draw(levels: list[jax.Array], key: jax.Array) -> jax.Array:
        target = (jnp.arange(batch) + jax.random.uniform(key, (batch,))) / batch * levels[0][0]
        index = jnp.zeros(batch, jnp.int32)
        for level in levels[1:]:
            left = level[2 * index]
            goes_right = target >= left
            index, target = 2 * index + goes_right, jnp.where(goes_right, target - left, target)
        return jnp.minimum(index, size - 1)

    def iterate(state: Any, key: jax.Array) -> Any:
        levels, stored, position = state
        added = (position + jnp.arange(ENVS)) % size
        stored = stored.at[added].set(1.0)
        levels = write(levels, added, jnp.ones(ENVS))
        rows = draw(levels, key)
        error = stored[rows] * jax.random.uniform(key, rows.shape)
        return write(levels, rows, error), stored, (position + ENVS) % size

    return (levels, jnp.ones(size), jnp.int32(0)), iterate


def flashbax(size: int, batch: int) -> tuple[Any, Iterate]:
    """The prioritised flat buffer of flashbax, with the functions that it chooses for this device."""
    import flashbax as fbx

    def buffer(add_sequences: bool) -> Any:
        settings = {"add_batch_size": ENVS, "add_sequences": add_sequences, "device": jax.default_backend()}
        return fbx.make_prioritised_flat_buffer(size, batch, batch, **settings)

    filling, single = buffer(True), buffer(False)
    length = size // ENVS
    state = filling.init({"stored": jnp.zeros(())})
    add = jax.jit(filling.add, donate_argnums=0)
    for _ in range(11):
        state = add(state, {"stored": jnp.ones((ENVS, length // 10))})

    def iterate(state: Any, key: jax.Array) -> Any:
        state = single.add(state, {"stored": jnp.ones(ENVS)})
        drawn = single.sample(state, key)
        error = drawn.experience.first["stored"] * jax.random.uniform(key, (batch,))
        return single.set_priorities(state, drawn.indices, error)

    return state, iterate


SIDES = {"wide": wide, "binary": binary, "flashbax": flashbax}


def microseconds(side: str, size: int, batch: int, seconds: float) -> float:
    """Per iteration."""
    state, iterate = SIDES[side](size, batch)

    def loop(state: Any, count: jax.Array, key: jax.Array) -> Any:
        return jax.lax.fori_loop(0, count, lambda i, state: iterate(state, jax.random.fold_in(key, i)), state)

    run = jax.jit(loop, donate_argnums=0)
    for _ in range(2):  # the types of the first state may be others than those of the next, for another compilation
        state = jax.block_until_ready(run(state, 20, jax.random.key(0)))
    count, spent = 20, 0.0
    while spent < seconds:
        count *= 2
        began = time.perf_counter()
        state = jax.block_until_ready(run(state, count, jax.random.key(count)))
        spent = time.perf_counter() - began
    return spent / count * 1e6


def flashbax_python() -> Path:
    """The interpreter of the virtual environment of flashbax, which is created on first use, with the same JAX."""
    folder = HERE / f".venv-flashbax-{jax.__version__}"
    if not (folder / ".ready").exists():
        same = [f"jax=={jax.__version__}", f"jaxlib=={jax.__version__}"]
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", "--quiet", FLASHBAX, *same], check=True)
        (folder / ".ready").touch()
    return folder / "bin/python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each measurement")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [(size, batch) for size in SIZES for batch in BATCHES]
    if options.side:
        times = [microseconds(options.side, *case, options.seconds) for case in cases]
        answer(0.0, times=times)
        return
    pythons = dict.fromkeys(SIDES, Path(sys.executable)) | {"flashbax": flashbax_python()}
    rounds: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    for i in range(options.rounds):
        for side in SIDES if i % 2 == 0 else reversed(SIDES):
            command = [pythons[side], Path(__file__), "--side", side, "--seconds", str(options.seconds)]
            rounds[side].append(ask(command, deadline=600)["times"])
    print(f"microseconds per iteration on {jax.devices()[0].device_kind}, jax {jax.__version__}, {FLASHBAX}")
    print(f"{'rows':>9} {'batch':>5} " + " ".join(f"{side:>9}" for side in SIDES))
    for number, (size, batch) in enumerate(cases):
        medians = [statistics.median(times[number] for times in rounds[side]) for side in SIDES]
        print(f"{size:>9,} {batch:>5} " + " ".join(f"{value:>9.1f}" for value in medians))


if __name__ == "__main__":
    main()
