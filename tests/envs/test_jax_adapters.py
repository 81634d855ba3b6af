"""Environments of other packages: spaces, step results, and termination versus truncation.

Packages that are not installed are skipped unless ADAPTERS_REQUIRED is set, as in `make full`.
"""

import dataclasses
import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import PPO, ConfigError, Environment, Transition, World, make
from fragmenta.envs import ADAPTERS, Box, Dict, Discrete, MultiDiscrete, Space
from fragmenta.envs.packages import NO_LIMIT
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.rl import keys_by_index

ENVS, STEPS = 4, 100

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # raised by the packages while tracing
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.timeout(1_200),  # Craftax alone compiles for minutes on two cores
]


@dataclasses.dataclass(frozen=True)
class Case:
    """An environment, its time limit, and the package's own step from one of our states."""

    name: str
    limit: int
    by_hand: Callable[[Any, Any, Any, Any], Any]
    terminates: bool = True
    """Whether random actions end episodes within STEPS."""

    def __str__(self) -> str:
        return self.name

    def env(self) -> Environment:
        installed(self.name.partition(":")[0])
        return dataclasses.replace(make(self.name), max_steps=self.limit)


def installed(package: str) -> None:
    """Skip the test if the package is missing, or fail if it is required."""
    if importlib.util.find_spec({"playground": "mujoco_playground"}.get(package, package)) is None:
        (pytest.fail if os.environ.get("ADAPTERS_REQUIRED") else pytest.skip)(f"{package} is not installed")


def gymnax_step(env: Any, state: Any, action: Any, key: Any) -> Any:
    return env.original().step_env(key, state.state, action, env.params())[0]


def state_step(env: Any, state: Any, action: Any, key: Any) -> Any:
    return env.original().step(state, action).obs


def jumanji_step(env: Any, state: Any, action: Any, key: Any) -> Any:
    return env.original().step(state.state, action)[1].observation._asdict()


def craftax_step(env: Any, state: Any, action: Any, key: Any) -> Any:
    return env.original().step(key, state, action, env.original().default_params)[0]


def jaxmarl_step(env: Any, state: Any, action: Any, key: Any) -> Any:
    names = env.original().agents
    observations, state, *_ = env.original().step_env(key, state.state, dict(zip(names, action, strict=True)))
    rows = jnp.stack([observations[name] for name in names])
    if not isinstance(env.observation_space, Dict):
        return rows
    legal = env.original().get_avail_actions(state)
    return {"action_mask": jnp.stack([legal[name] for name in names]), "observation": rows}


CASES = [
    Case("gymnax:CartPole-v1", 20, gymnax_step),
    Case("gymnax:Breakout-MinAtar", 7, gymnax_step),  # in 0.0.x its state stores the time limit as termination
    Case("jaxmarl:switch_riddle", 6, jaxmarl_step),
    Case("brax:inverted_pendulum/spring", 20, state_step),
    Case("playground:CartpoleBalance", 20, state_step, terminates=False),
    Case("jumanji:Snake-v1", 20, jumanji_step),
    Case("jumanji:LevelBasedForaging-v0", NO_LIMIT, jumanji_step, terminates=False),  # it truncates itself at 100
    Case("craftax:Craftax-Classic-Symbolic-v1", 20, craftax_step, terminates=False),
]
SLOW = Case("jaxmarl:HeuristicEnemySMAX", 10, jaxmarl_step, terminates=False)
ALL = pytest.mark.parametrize("case", [*CASES, pytest.param(SLOW, marks=pytest.mark.full)], ids=str)


def random_actions(env: Environment, key: jax.Array) -> jax.Array:
    """One action per step, environment and (in a team) agent."""
    space, rows = env.action_space, (STEPS, ENVS) + ((env.num_agents,) if env.num_agents > 1 else ())
    if isinstance(space, Discrete):
        return jax.random.randint(key, rows, 0, space.n)
    if isinstance(space, MultiDiscrete):
        return jax.random.randint(key, (*rows, len(space.choices)), 0, jnp.asarray(space.choices))
    assert isinstance(space, Box)
    return jax.random.uniform(key, (*rows, *space.shape), minval=space.low, maxval=space.high)


@functools.cache
def programs(env: Environment) -> tuple[Any, Any]:
    """The compiled reset, and a compiled rollout that returns the world before and the observation after each step."""

    def tick(world: World, action: jax.Array) -> tuple[World, tuple[World, Transition, Any]]:
        following, transition = env.step(world, action)
        return following, (world, transition, following.observation)

    return jax.jit(env.reset), jax.jit(lambda world, actions: jax.lax.scan(tick, world, actions)[1])


@functools.cache
def rollout(env: Environment, seed: int = 0) -> tuple[World, Transition, Any]:
    reset, run = programs(env)
    return run(reset(keys_by_index(jax.random.key(seed), ENVS)), random_actions(env, jax.random.key(7)))


def assert_in(space: Space, value: Any, rows: tuple[int, ...]) -> None:
    """Assert that the value has the shape and type of the space, and is within its bounds."""
    if isinstance(space, Dict):
        assert {name for name, _ in space.spaces} == set(value)
        for name, part in space.spaces:
            assert_in(part, value[name], rows)
        return
    assert isinstance(space, Box)
    assert value.shape == (*rows, *space.shape)
    assert str(value.dtype) == space.dtype
    array = np.asarray(value, np.float64)
    assert np.isfinite(array).all()
    assert (array >= space.low - 1e-6).all()
    assert (array <= space.high + 1e-6).all()


def assert_equal(one: Any, two: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(left, right)


def entry(tree: Any, *index: int) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


@pytest.mark.full
@ALL
def test_observations_match_the_space(case: Case) -> None:
    env = case.env()
    _, transition, _ = rollout(env)
    rows = (STEPS, ENVS) + ((env.num_agents,) if env.num_agents > 1 else ())
    assert_in(env.observation_space, transition.observation, rows)
    assert_in(env.observation_space, transition.next_observation, rows)
    assert transition.reward.shape == rows
    assert transition.reward.dtype == jnp.float32
    assert np.isfinite(transition.reward).all()
    assert transition.terminated.shape == transition.truncated.shape == (STEPS, ENVS)
    assert transition.terminated.dtype == transition.truncated.dtype == jnp.bool_


@pytest.mark.brief("gymnax:CartPole*")
@ALL
def test_a_rollout_depends_on_the_keys_and_not_on_the_position(case: Case) -> None:
    env = case.env()
    reset, run = programs(env)
    actions, keys = random_actions(env, jax.random.key(7)), keys_by_index(jax.random.key(0), ENVS)
    _, transition, _ = rollout(env)
    assert_equal(run(reset(keys), actions)[1], transition)
    order = jnp.asarray([2, 0, 3, 1])
    moved = run(reset(keys[order]), actions[:, order])[1]
    assert_equal(moved, jax.tree.map(lambda x: x[:, order], transition))
    other_transition = rollout(env, seed=1)[1]
    parts = zip(jax.tree.leaves(other_transition), jax.tree.leaves(transition), strict=True)
    assert any(not np.array_equal(one, two) for one, two in parts), "another key, another rollout"


@ALL
def test_the_time_limit_truncates_and_only_an_end_terminates(case: Case) -> None:
    env = case.env()
    before, transition, _ = rollout(env)
    terminated, truncated = np.asarray(transition.terminated), np.asarray(transition.truncated)
    limit = min(case.limit, 100)
    np.testing.assert_array_equal(truncated, np.asarray(before.episode_length) + 1 == limit)
    assert (truncated & ~terminated).any(), "the time limit alone never ends an episode"
    assert terminated.any() or not case.terminates, "no episode ended: the test saw too little"
    assert not (terminated.any() and not case.terminates and case is not SLOW)
    assert env.shortest_cut == limit


@ALL
def test_the_next_observation_is_the_packages_own_before_the_reset(case: Case) -> None:
    env = case.env()
    before, transition, after = rollout(env)
    step = jax.jit(functools.partial(case.by_hand, env))
    ends = np.argwhere(np.asarray(transition.terminated | transition.truncated))
    for time, place in [*ends[:2], (3, 1)]:
        key = jax.random.fold_in(jax.random.split(before.key[time, place])[1], 1)
        expected = step(entry(before.state, time, place), transition.action[time, place], key)
        actual = entry(transition.next_observation, time, place)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), actual, expected)
    time, place = ends[0]
    last, fresh = entry(transition.next_observation, time, place), entry(after, time, place)
    assert any(not np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (last, fresh)), strict=True))


def test_cartpole_terminates_where_it_fell() -> None:
    _, transition, _ = rollout(CASES[0].env())
    x, _, theta, _ = np.moveaxis(np.asarray(transition.next_observation), -1, 0)
    np.testing.assert_array_equal(transition.terminated, (np.abs(x) > 2.4) | (np.abs(theta) > 12 * np.pi / 180))


def test_craftax_tells_death_from_the_time_limit() -> None:
    env: Any = next(case for case in CASES if case.name.startswith("craftax")).env()
    reset, run = programs(env)
    world = reset(keys_by_index(jax.random.key(0), ENVS))
    health = world.state.player_health.at[0].set(0)
    age = world.state.timestep.at[1].set(env.original().default_params.max_timesteps)
    world = world._replace(state=world.state.replace(player_health=health, timestep=age))
    _, transition, _ = run(world, random_actions(env, jax.random.key(7)))
    assert transition.terminated[0].tolist() == [True, False, False, False]


@pytest.mark.full
def test_allies_that_fell_are_not_alive() -> None:
    env: Any = dataclasses.replace(SLOW.env(), max_steps=100)
    before, transition, _ = rollout(env)
    units = np.asarray(before.state.state.state.unit_alive)[..., : env.agents]
    np.testing.assert_array_equal(transition.alive, units)
    assert not units.all(), "nobody fell: the test saw too little"
    assert (np.asarray(transition.reward)[~units] == 0).all()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("craftax:Craftax-Classic-Pixels-v1", (63, 63, 3)),
        ("craftax:Craftax-Pixels-v1", (130, 110, 3)),
        ("craftax:Craftax-Symbolic-v1", (8268,)),
        ("brax:ant", (27,)),
        ("gymnax:Asterix-MinAtar", (10, 10, 4)),
    ],
)
def test_sizes_by_name(name: str, shape: tuple[int, ...]) -> None:
    installed(name.partition(":")[0])
    env = make(name)
    assert isinstance(env.observation_space, Box)
    assert (env.observation_space.shape, env.observation_space.dtype) == (shape, "float32")
    assert hash(env) == hash(dataclasses.replace(env)), "an equal environment is the same constant to JAX"


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "gymnax:CartPole-v1",
        pytest.param("gymnax:Pendulum-v1", marks=pytest.mark.full),
        "brax:inverted_pendulum/spring",
        "playground:CartpoleBalance",
    ],
)
def test_ppo_trains(name: str) -> None:
    installed(name.partition(":")[0])
    result = fragmenta.train(PPO(num_envs=4, horizon=8, total_steps=64), name)
    assert result.summary["total_steps"] == 64


@pytest.mark.full
def test_mappo_trains() -> None:
    installed("jaxmarl")
    algorithm = fragmenta.MAPPO(num_envs=4, horizon=10, total_steps=80)
    assert fragmenta.train(algorithm, "jaxmarl:switch_riddle").summary["total_steps"] == 80


def strict(env: Environment) -> Environment:
    """The environment with other rewards: -1 for an illegal action where there is a legal one, otherwise 0."""
    kind: Any = type(env)

    class Strict(kind):
        def advance(self, state: Any, action: jax.Array, key: jax.Array) -> Any:
            legal = self.observe(state)["action_mask"].reshape(*action.shape, -1) > 0
            is_illegal = jnp.any(legal, -1) & ~jnp.take_along_axis(legal, action[..., None], -1)[..., 0]
            following, reward, terminated = super().advance(state, action, key)
            penalty = -is_illegal.astype(jnp.float32)
            return following, penalty if jnp.ndim(reward) else jnp.sum(penalty), terminated

    return Strict(**{field.name: getattr(env, field.name) for field in dataclasses.fields(env)})


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("jumanji:Snake-v1", "ppo"),
        ("jumanji:Game2048-v1", "dqn"),
        ("jumanji:Minesweeper-v0", "ppo"),  # two numbers are one action, since the mask is of both
        ("jumanji:RobotWarehouse-v0", "ppo"),  # several choices
        ("jaxmarl:HeuristicEnemySMAX", "mappo"),
        ("jaxmarl:hanabi", "vdn"),
    ],
)
def test_training_and_evaluation_take_legal_actions_only(name: str, algorithm: str) -> None:
    installed(name.partition(":")[0])
    env = strict(dataclasses.replace(make(name), max_steps=8))
    settings = {"dqn": {"learning_starts": 64}, "vdn": {"learning_starts": 64}}.get(algorithm, {})
    short = {"num_envs": 4, "horizon": 16, "hidden": (16,), "total_steps": 1_024, **settings}
    result = fragmenta.train(algorithm, env, **short)
    assert {record["return_mean"] for record in result.metrics if record["episodes"]} == {0.0}
    for is_likeliest in (True, False):
        evaluation = evaluate(result.algorithm, env, result.params, 8, deterministic=is_likeliest)
        assert set(evaluation.returns) == {0.0}
    assert (np.asarray(rollout(env)[1].reward) < 0).any(), "no random action is illegal: the test saw too little"


@pytest.mark.parametrize("package", ADAPTERS)
def test_an_unknown_name_is_one_line_with_the_closest_match(package: str) -> None:
    installed(package)
    name = next(case.name for case in CASES if case.name.startswith(package)).partition("/")[0]
    with pytest.raises(ConfigError, match=f"did you mean '{name}'") as error:
        make(name[:-1])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("package", ADAPTERS)
def test_a_missing_package_is_one_line(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = {"playground": "mujoco_playground", "brax": "brax.envs", "craftax": "craftax.craftax_env"}
    monkeypatch.setitem(sys.modules, module.get(package, package), None)
    name = {"craftax": "Craftax-Pixels-v1"}.get(package, "anything")
    if package == "craftax":
        from fragmenta.envs import craftax

        craftax._build.cache_clear()
    with pytest.raises(ConfigError, match=rf"^this environment needs {package}: pip install 'fragmenta\[{package}\]'$"):
        make(f"{package}:{name}")
