"""Follows one observation, or the state of a resumed run, through the code as it runs, up to a compiled program.

    python docs/walks.py local|processes|resume

prints the files in the order in which it passes through them, how often it comes back to a file that it has left, and
the places in memory where it lies; without an argument it writes all walks to walk.md. One number is a mark that occurs
nowhere else; a profile function looks for it in the arguments, results and local variables of all calls into our code.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import fragmenta
from fragmenta.engines import engine_named
from fragmenta.stage import stage

SOURCE = str(Path(os.environ.get("WALK_SOURCE", Path(__file__).parents[1] / "src"))) + "/"
PAGE = Path(__file__).with_name("walk.md")
BEGIN, END = "<!-- {}: followed by docs/walks.py -->", "<!-- end of walk -->"
WALKS = {"local": 2, "processes": 2, "resume": 4}
"""What is followed, and how often it may come back to a file that it has left."""
MARK = np.float32(54321.125)
LOOK_FOR = MARK.tobytes()
COMPILED = "jax/_src/stages.py"
"""Where compiled programs are called: the end of the walk."""
MARKED_STEP = 3
"""The step of environment 0 whose observation carries the mark."""
INSIDE = ("Arrays", "StepArrays", "Bundle", "Start", "Checkpoint", "Transition", "World", "State")
"""Objects whose attributes are looked into."""


class _Note(threading.local):
    busy = False


_note = _Note()
_alive: list[Any] = []
"""Everything that has carried the mark, so that no two of them get the same memory."""


def places(value: Any, depth: int = 0) -> Iterator[int]:
    """The addresses of the mark in a value."""
    if depth > 6:
        return
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from places(part, depth + 1)
    elif isinstance(value, dict):
        for part in value.values():
            yield from places(part, depth + 1)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        raw = np.frombuffer(value, np.uint8)
        if (offset := raw.tobytes().find(LOOK_FOR)) >= 0:
            yield raw.ctypes.data + offset
    elif isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.flags.c_contiguous:
            yield from places(value.data, depth + 1)
        elif value.dtype == np.float32 and (hits := np.argwhere(value == MARK)).size:
            yield value.ctypes.data + int(np.dot(hits[0], value.strides))
    elif isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        if value.dtype == np.float32 and not value.is_deleted():
            yield from places(np.asarray(value), depth + 1)
    elif type(value).__name__ in INSIDE and hasattr(value, "__dict__"):
        for part in vars(value).values():
            yield from places(part, depth + 1)


def _ours(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not frame.f_code.co_filename.startswith(SOURCE):
        frame = frame.f_back
    return frame


def _write(frame: FrameType, event: str, found: list[int]) -> None:
    """Note where the mark is; with an event, it was passed between this function and its caller."""
    frames = [frame.f_code, *([caller.f_code] if (caller := _ours(frame.f_back)) else [])]
    calls = [[code.co_filename.removeprefix(SOURCE), code.co_name] for code in frames]
    note = json.dumps([time.monotonic(), os.getpid(), calls, event, found])
    with Path(os.environ["WALK"]).open("a") as file:
        file.write(note + "\n")


def watch(frame: FrameType, event: str, result: Any) -> None:
    """The profile function: notes calls that get or return the mark."""
    file = frame.f_code.co_filename
    compiled = file.endswith(COMPILED) and frame.f_code.co_name == "__call__"
    if _note is None or _note.busy or event not in ("call", "return") or not (file.startswith(SOURCE) or compiled):
        return
    _note.busy = True
    try:
        # A worker, a pool and a worker's values hold everything that has ever come by: that they do means nothing.
        holders = {"self", "values"} if isinstance(frame.f_locals.get("values"), dict) else {"self"}
        local = [value for name, value in frame.f_locals.items() if name not in holders]
        passed = list(places(result if event == "return" else local))
        if held := list(places(local)) + passed:
            _alive.append((local, result))
            _write(frame, event if passed else "", list(dict.fromkeys(held)))
    finally:
        _note.busy = False


def start_watching() -> None:
    """Watch this thread, and all that start later."""
    threading.setprofile(watch)
    sys.setprofile(watch)


if "WALK" in os.environ:
    start_watching()


class Marked(gymnasium.Env):
    """An environment one of whose observations carries the mark."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (3,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation = np.zeros(3, np.float32)
        if self.steps == MARKED_STEP:
            with contextlib.suppress(FileExistsError):  # in one process of several
                Path(os.environ["WALK"] + ".marked").touch(exist_ok=False)
                observation[1] = MARK
        return observation, 0.0, False, False, {}


class MarkedState(NamedTuple):
    """A weight, which learns, and the mark, which stays."""

    weight: jax.Array
    world: Any
    kept: jax.Array


@dataclasses.dataclass(frozen=True)
class Keeping(fragmenta.Algorithm):
    """An algorithm whose state carries the mark through a checkpoint."""

    num_envs: int = 4
    total_steps: int = 64

    def init(self, env: fragmenta.Environment, key: jax.Array) -> MarkedState:
        return MarkedState(jnp.zeros(()), env.reset(jax.random.split(key, self.num_envs)), jnp.full(3, MARK))

    def iterate(self, env: fragmenta.Environment, state: MarkedState) -> tuple[MarkedState, dict[str, jax.Array]]:
        action = self.act(state.world.observation, state.weight + 0 * state.kept[0])
        world, transition = env.step(state.world, action)
        return MarkedState(self.learn(state.weight, transition.reward), world, state.kept), {"loss": state.weight}

    @stage
    def act(self, observation: jax.Array, weight: jax.Array) -> jax.Array:
        return (observation[:, 0] + weight > 0).astype(jnp.int32)

    @stage
    def learn(self, weight: jax.Array, reward: jax.Array) -> jax.Array:
        return weight + reward.mean()

    def params(self, state: MarkedState) -> jax.Array:
        return state.weight


@dataclasses.dataclass(frozen=True)
class FollowedPPO(fragmenta.PPO):
    """PPO; being of this module, it is watched in every process."""


def observation(engine: str) -> None:
    """One iteration of PPO whose environments run elsewhere than the networks."""
    algorithm = FollowedPPO(num_envs=4, horizon=5, minibatches=1, epochs=1, total_steps=20)
    options = fragmenta.RunOptions(env=fragmenta.EnvOptions(env_mode="serial"), merge=False)
    cluster = None if engine == "local" else engine_named(engine).cluster(fragmenta.EngineOptions())
    fragmenta.train(algorithm, "walks:Marked", "single_learner_fine", engine, cluster=cluster, options=options)


def resume(folder: Path) -> None:
    """Training, stopped at a checkpoint, and its continuation; only the second is watched."""
    sys.setprofile(None)
    threading.setprofile(None)
    fragmenta.train(Keeping(), "CartPole-v1", run_dir=folder)
    start_watching()
    fragmenta.resume(folder, total_steps=128, algorithm=Keeping(), env="CartPole-v1")
    sys.setprofile(None)


@dataclasses.dataclass(frozen=True)
class Walk:
    """The files in order, and for each place where the mark lay, the function that first had it there."""

    files: list[str]
    places: list[str]

    @property
    def returns(self) -> int:
        """How often it came back to a file that it had left."""
        return len(self.files) - len(set(self.files))


def read(path: Path) -> Walk:
    """The walk up to the first compiled program, from the notes of all processes."""
    files: list[str] = []
    seen: dict[tuple[int, int], str] = {}
    for _, process, calls, event, found in sorted(map(json.loads, path.read_text().splitlines())):
        if any(file.endswith(COMPILED) for file, _ in calls):
            break
        for file, _ in (calls if event == "return" else calls[::-1]) if event else ():
            if not files or files[-1] != file:
                files.append(file)
        file, function = calls[0]
        for place in found:
            if function != "send":  # the receiver sees the same slot
                seen.setdefault((process, place), f"{file}: {function}")
    return Walk(files, list(seen.values()))


def follow(what: str) -> Walk:
    """Run it in a process of its own, and follow the mark."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        environment = {**os.environ, "WALK": str(notes), "PYTHONPATH": f"{Path(__file__).parent}:{SOURCE}"}
        command = [sys.executable, "-c", f"import walks; walks.run({what!r}, {folder!r})"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return read(notes)


def run(what: str, folder: str) -> None:
    """In the watched process."""
    if what == "resume":
        resume(Path(folder) / "run")
    else:
        observation(what)


def section(what: str, walk: Walk) -> str:
    """A walk as walk.md shows it."""
    counts = f"{walk.returns} returns to a file already left, {len(walk.places) - 1} copies:"
    files = "\n".join(walk.files)
    return f"{BEGIN.format(what)}\n{counts}\n\n```text\n{files}\n```\n\n{END}"


def page() -> str:
    """The page with the walks of now."""
    text = PAGE.read_text()
    for what in WALKS:
        before, _, rest = text.partition(BEGIN.format(what))
        text = f"{before}{section(what, follow(what))}{rest.partition(END)[2]}"
    return text


if __name__ == "__main__":
    if sys.argv[1:]:
        walk = follow(sys.argv[1])
        print(*walk.files, f"returns: {walk.returns}", *walk.places, sep="\n")
    else:
        PAGE.write_text(page())
