"""Play episodes with a policy and show them, picture by picture."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment, HostEnvironment
from fragmenta.envs.host import seeds_of
from fragmenta.envs.render import drawn, frames_per_second, picture_of
from fragmenta.errors import ConfigError
from fragmenta.evaluation.evaluate import episode_keys
from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import assemble
from fragmenta_host.catalogue import Spec, single_maker

MOST_PER_SECOND = 25.0
"""Where more steps are a second, only every second, third, ... of them is drawn."""


@dataclasses.dataclass(frozen=True)
class Frame:
    """A picture, as height x width x 3 bytes, and where it is from."""

    picture: np.ndarray
    episode: int
    step: int
    total: float
    """The rewards so far; the mean over a team."""
    last: bool


@dataclasses.dataclass(frozen=True)
class Video:
    """Pictures that are made as they are asked for, and how many of them are a second."""

    frames: Iterator[Frame]
    per_second: float


class _Scene(Protocol):
    """One environment that can be seen. What it shows and who takes part are batches of one."""

    steps_per_second: float

    def start(self, key: jax.Array) -> tuple[Any, Any]: ...
    def step(self, action: Any) -> tuple[Any, Any, float, bool]: ...
    def picture(self) -> np.ndarray: ...
    def close(self) -> None: ...


def play(
    algorithm: Algorithm, env: Environment, params: Any, episodes: int = 1, seed: int = 0, max_steps: int = 1_000
) -> Video:
    """A video of the first so many episodes that `evaluate` plays with that seed and the likeliest actions."""
    for name, value, least in (("episodes", episodes, 1), ("max_steps", max_steps, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{name} is {value}: it must be at least {least}")
    scene = _host_scene(env) if isinstance(env, HostEnvironment) else _JaxScene(env)
    every = max(1, -int(-scene.steps_per_second // MOST_PER_SECOND))
    frames = _frames(algorithm, env, params, scene, episode_keys(seed, episodes)[0], max_steps, every)
    return Video(frames, scene.steps_per_second / every)


def _frames(
    algorithm: Algorithm, env: Environment, params: Any, scene: _Scene, keys: jax.Array, limit: int, every: int
) -> Iterator[Frame]:
    decide = jax.jit(lambda seen, alive, memory: algorithm.decide(env, params, seen, alive, memory, None))
    with contextlib.closing(scene):
        for episode, key in enumerate(keys):
            (observation, alive), memory, total = scene.start(key), algorithm.fresh_memory(1), 0.0
            yield Frame(scene.picture(), episode, 0, total, last=False)
            for step in range(1, limit + 1):
                action, memory = decide(observation, alive, memory)
                observation, alive, reward, ended = scene.step(action)
                total, last = total + reward, ended or step == limit
                if last or step % every == 0:
                    yield Frame(scene.picture(), episode, step, total, last)
                if last:
                    break


class _JaxScene:
    def __init__(self, env: Environment) -> None:
        self._env, self.steps_per_second = env, frames_per_second(env)
        self._reset = jax.jit(env.reset)
        self._step = jax.jit(lambda world, action: (env.led_to(world, action), *env.step(world, action)))

    def start(self, key: jax.Array) -> tuple[Any, Any]:
        self._world = self._reset(key[None])
        self._state = self._world.state
        return self._world.observation, self._world.alive

    def step(self, action: Any) -> tuple[Any, Any, float, bool]:
        self._state, self._world, transition = self._step(self._world, action)
        ended = bool(transition.terminated[0] | transition.truncated[0])
        return self._world.observation, self._world.alive, float(transition.reward.mean()), ended

    def picture(self) -> np.ndarray:
        return drawn(self._env, jax.tree.map(lambda x: x[0], jax.device_get(self._state)))

    def close(self) -> None:
        pass


def _host_scene(env: HostEnvironment) -> _Scene:
    return _VectorScene(env) if env.pool.spec.is_vector else _SingleScene(env)


class _SingleScene:
    """An environment that draws itself, in this process."""

    def __init__(self, env: HostEnvironment) -> None:
        spec = env.pool.spec
        drawing = Spec(
            spec.package, spec.name, spec.arguments | {"render_mode": "rgb_array"}, spec.wrappers, spec.stack
        )
        self._env = env
        with self._drawing():
            self._single = single_maker(drawing)()
        metadata = getattr(getattr(self._single, "env", None), "metadata", None) or {}
        self.steps_per_second = float(metadata.get("render_fps") or 30.0)

    def start(self, key: jax.Array) -> tuple[Any, Any]:
        return self._seen(*self._single.reset(int(seeds_of(key[None])[0])))

    def step(self, action: Any) -> tuple[Any, Any, float, bool]:
        action = self._single.actions(np.asarray(action))[0]
        observation, reward, terminated, truncated, said = self._single.step(action)
        return *self._seen(observation, said), float(np.mean(reward)), bool(terminated or truncated)

    def picture(self) -> np.ndarray:
        with self._drawing():
            picture = self._single.env.render()  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[-1] != 3:
            wrong = f"cannot draw {self._env.title}: its render() gives {type(picture).__name__}"
            raise ConfigError(f"{wrong}, not a picture of height x width x 3 for render_mode 'rgb_array'")
        return np.asarray(picture, np.uint8)

    def close(self) -> None:
        self._single.close()

    def _seen(self, observation: Any, said: Any) -> tuple[Any, Any]:
        leaves = self._env.pool.description.observation_leaves
        parts = zip(self._single.parts([observation]), leaves, strict=True)
        seen = assemble(self._env.observation_space, (np.asarray(rows, dtype) for rows, (_, _, dtype) in parts))
        return seen, np.asarray(self._single.alive([said])) if self._env.team_size else ()

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """Whatever fails because there is nothing to draw with is one line that says what to do."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except Exception as error:
            what = " ".join((str(error) or type(error).__name__).split())
            if isinstance(error, UnusableError) and "render_mode" in what:
                what = "its constructor takes no render_mode"
            if "mujoco" in self._env.title.lower() or _is_mujoco(self):
                what += "; MuJoCo draws by OpenGL: set MUJOCO_GL=egl (or osmesa), and install that library"
            raise ConfigError(f"cannot draw {self._env.title}: {what}") from error


def _is_mujoco(scene: _SingleScene) -> bool:
    env = getattr(getattr(scene, "_single", None), "env", None)
    return any("mujoco" in kind.__module__ for kind in type(getattr(env, "unwrapped", None)).__mro__)


class _VectorScene:
    """An environment whose package steps many at once: only what it shows can be seen."""

    steps_per_second = 15.0

    def __init__(self, env: HostEnvironment) -> None:
        self._env, self._pool = env, env.pool.twin()

    def start(self, key: jax.Array) -> tuple[Any, Any]:
        shown, _ = self._pool.reset(np.asarray(seeds_of(key[None])))
        return self._seen(shown)

    def step(self, action: Any) -> tuple[Any, Any, float, bool]:
        found = self._pool.step(0, np.asarray(action))
        observation, _ = self._seen(found.next_observation)
        return observation, (), float(found.reward[0]), bool(found.ended[0])

    def picture(self) -> np.ndarray:
        picture = picture_of(self._env.observation_space, np.asarray(self._latest[0]))
        if picture is None:
            package = self._env.pool.spec.package
            raise ConfigError(f"cannot draw {self._env.title}: {package} gives no pictures, and it shows none itself")
        return picture

    def close(self) -> None:
        self._pool.close()

    def _seen(self, shown: list[np.ndarray]) -> tuple[Any, Any]:
        self._latest = shown[0]
        return assemble(self._env.observation_space, iter(shown)), ()
