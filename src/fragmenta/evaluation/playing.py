"""Play episodes with a policy and render them frame by frame."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import numpy as np

from fragmenta.algorithms import Algorithm
from fragmenta.envs import Environment
from fragmenta.envs.host import seeds_of
from fragmenta.envs.render import frames_per_second, observation_image, render
from fragmenta.errors import ConfigError
from fragmenta.evaluation.evaluate import episode_keys
from fragmenta_core.faults import UnusableError
from fragmenta_core.spaces import assemble
from fragmenta_host.catalogue import single_maker
from fragmenta_host.pool import Pool

MOST_PER_SECOND = 25.0
"""Maximum frame rate; an environment with more steps per second is drawn only every second, third, ... step."""


@dataclasses.dataclass(frozen=True)
class Frame:
    """An image, as height x width x 3 bytes, with its episode and step."""

    picture: np.ndarray
    episode: int
    step: int
    total: float
    """Sum of the rewards so far; the mean over a team."""
    last: bool


@dataclasses.dataclass(frozen=True)
class Video:
    """Frames, rendered lazily, and their frame rate."""

    frames: Iterator[Frame]
    per_second: float


class _Scene(Protocol):
    """One environment that can be rendered. Observations and `alive` have a batch size of one."""

    steps_per_second: float

    def start(self, key: jax.Array) -> tuple[Any, Any]: ...
    def step(self, action: Any) -> tuple[Any, Any, float, bool]: ...
    def picture(self) -> np.ndarray: ...
    def close(self) -> None: ...


def play(
    algorithm: Algorithm, env: Environment, params: Any, episodes: int = 1, seed: int = 0, max_steps: int = 1_000
) -> Video:
    """A video of the first episodes that `evaluate` plays with that seed and the most likely actions."""
    for name, value, least in (("episodes", episodes, 1), ("max_steps", max_steps, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{name} is {value}: it must be at least {least}")
    scene = _host_scene(env, env.host_pool) if env.host_pool else _JaxScene(env)
    every = max(1, -int(-scene.steps_per_second // MOST_PER_SECOND))
    frames = _frames(algorithm, env, params, scene, episode_keys(seed, episodes)[0], max_steps, every)
    return Video(frames, scene.steps_per_second / every)


def check_drawable(env: Environment) -> None:
    """Raise ConfigError if an environment cannot be rendered, by rendering its first frame."""
    scene = _host_scene(env, env.host_pool) if env.host_pool else _JaxScene(env)
    with contextlib.closing(scene):
        scene.start(episode_keys(0, 1)[0][0])
        scene.picture()


def _frames(
    algorithm: Algorithm, env: Environment, params: Any, scene: _Scene, keys: jax.Array, limit: int, every: int
) -> Iterator[Frame]:
    decide = jax.jit(lambda observation, alive, memory: algorithm.decide(env, params, observation, alive, memory, None))
    with contextlib.closing(scene):
        for episode, key in enumerate(keys):
            (observation, alive), memory, total = scene.start(key), algorithm.fresh_memory(1, env.num_agents), 0.0
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
        self._step = jax.jit(lambda world, action: (env.next_states(world, action), *env.step(world, action)))

    def start(self, key: jax.Array) -> tuple[Any, Any]:
        self._world = self._reset(key[None])
        self._state = self._world.state
        return self._world.observation, self._world.alive

    def step(self, action: Any) -> tuple[Any, Any, float, bool]:
        self._state, self._world, transition = self._step(self._world, action)
        ended = bool(transition.terminated[0] | transition.truncated[0])
        return self._world.observation, self._world.alive, float(transition.reward.mean()), ended

    def picture(self) -> np.ndarray:
        return render(self._env, jax.tree.map(lambda x: x[0], jax.device_get(self._state)))

    def close(self) -> None:
        pass


def _host_scene(env: Environment, pool: Pool) -> _Scene:
    return _VectorScene(env, pool) if pool.spec.is_vector else _SingleScene(env, pool)


class _SingleScene:
    """An environment that renders itself, in this process."""

    def __init__(self, env: Environment, pool: Pool) -> None:
        spec = pool.spec
        drawing = dataclasses.replace(spec, arguments=spec.arguments | {"render_mode": "rgb_array"})
        self._env, self._leaves = env, pool.description.observation_leaves
        with self._drawing():
            self._single = single_maker(drawing)()
        metadata = getattr(getattr(self._single, "env", None), "metadata", None) or {}
        self.steps_per_second = float(metadata.get("render_fps") or 30.0)

    def start(self, key: jax.Array) -> tuple[Any, Any]:
        return self._inputs(*self._single.reset(int(seeds_of(key[None])[0])))

    def step(self, action: Any) -> tuple[Any, Any, float, bool]:
        action = self._single.actions(np.asarray(action))[0]
        observation, reward, terminated, truncated, info = self._single.step(action)
        return *self._inputs(observation, info), float(np.mean(reward)), bool(terminated or truncated)

    def picture(self) -> np.ndarray:
        with self._drawing():
            picture = self._single.env.render()  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[-1] != 3:
            problem = f"cannot draw {self._env.title}: its render() returns {type(picture).__name__}"
            raise ConfigError(f"{problem}, not an image of height x width x 3 for render_mode 'rgb_array'")
        return np.asarray(picture, np.uint8)

    def close(self) -> None:
        self._single.close()

    def _inputs(self, observation: Any, info: Any) -> tuple[Any, Any]:
        parts = zip(self._single.parts([observation]), self._leaves, strict=True)
        assembled = assemble(self._env.observation_space, (np.asarray(rows, dtype) for rows, (_, _, dtype) in parts))
        return assembled, np.asarray(self._single.alive([info])) if self._env.team_size else ()

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """Turn any rendering failure into a one-line error that says what to do."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except Exception as error:
            reason = " ".join((str(error) or type(error).__name__).split())
            if isinstance(error, UnusableError) and "render_mode" in reason:
                reason = "its constructor takes no render_mode"
            if "mujoco" in self._env.title.lower() or _is_mujoco(self):
                reason += "; MuJoCo renders with OpenGL: set MUJOCO_GL=egl (or osmesa), and install that library"
            raise ConfigError(f"cannot draw {self._env.title}: {reason}") from error


def _is_mujoco(scene: _SingleScene) -> bool:
    env = getattr(getattr(scene, "_single", None), "env", None)
    return any("mujoco" in kind.__module__ for kind in type(getattr(env, "unwrapped", None)).__mro__)


class _VectorScene:
    """A vectorised environment: only its observations can be drawn."""

    steps_per_second = 15.0

    def __init__(self, env: Environment, pool: Pool) -> None:
        self._env, self._pool = env, pool.twin()

    def start(self, key: jax.Array) -> tuple[Any, Any]:
        parts, _ = self._pool.reset(np.asarray(seeds_of(key[None])))
        return self._inputs(parts)

    def step(self, action: Any) -> tuple[Any, Any, float, bool]:
        result = self._pool.step(0, np.asarray(action))
        observation, _ = self._inputs(result.next_observation)
        return observation, (), float(result.reward[0]), bool(result.ended[0])

    def picture(self) -> np.ndarray:
        picture = observation_image(self._env.observation_space, np.asarray(self._latest[0]))
        if picture is None:
            package = self._pool.spec.package
            raise ConfigError(
                f"cannot draw {self._env.title}: {package} cannot render, and observations are not images"
            )
        return picture

    def close(self) -> None:
        self._pool.close()

    def _inputs(self, parts: list[np.ndarray]) -> tuple[Any, Any]:
        self._latest = parts[0]
        return assemble(self._env.observation_space, iter(parts)), ()
