"""Teams: particle worlds equal JaxMARL's, the runner flees, and agents that drop out have no effect."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import ConfigError, Discrete, TeamEnvironment, Transition, World, make
from fragmenta.envs.particles import PUSHES, ParticleTeam, SimpleSpread, SimpleTag
from fragmenta.envs.probes import ProbeTeam

TEAMS = [
    SimpleSpread(),
    pytest.param(SimpleSpread(agents=5), marks=pytest.mark.full),
    pytest.param(SimpleTag(), marks=pytest.mark.full),
    SimpleTag(agents=2),
]


def rollout(env: TeamEnvironment, num_envs: int, steps: int) -> tuple[World, Transition]:
    """The world after every step and the transitions, under random actions; time is the first axis."""

    def tick(world: World, key: jax.Array) -> tuple[World, tuple[World, Transition]]:
        world, transition = env.step(world, jax.random.randint(key, (num_envs, env.agents), 0, env.action_space.n))
        return world, (world, transition)

    @jax.jit
    def run() -> tuple[World, Transition]:
        world = env.reset(jax.random.split(jax.random.key(0), num_envs))
        return jax.lax.scan(tick, world, jax.random.split(jax.random.key(1), steps))[1]

    return run()


@pytest.mark.full
@pytest.mark.parametrize("env", TEAMS, ids=str)
def test_shapes_match_the_spaces(env: ParticleTeam) -> None:
    world, transition = rollout(env, 4, 3)
    assert transition.observation.shape == (3, 4, env.agents, *env.observation_space.shape)
    assert transition.observation.dtype == jnp.float32
    assert transition.reward.shape == transition.alive.shape == (3, 4, env.agents)
    assert transition.terminated.shape == transition.truncated.shape == (3, 4)
    assert bool(jnp.all(world.alive))
    assert hash(env) == hash(dataclasses.replace(env)), "an equal environment is the same constant to JAX"
    assert env.original() is dataclasses.replace(env).original()


def test_sizes_by_name() -> None:
    assert make("jaxmarl:simple_spread").observation_space.shape == (18,)
    assert make("jaxmarl:simple_tag").observation_space.shape == (16,)
    assert SimpleTag(agents=5).observation_space.shape == (20,)


@pytest.mark.brief("SimpleSpread*")
@pytest.mark.parametrize("env", TEAMS, ids=str)
def test_a_step_equals_that_of_jaxmarl(env: ParticleTeam) -> None:
    original, names = env.original(), env.original().agents
    _, state = original.reset(jax.random.key(3))
    for step in range(3):
        key = jax.random.fold_in(jax.random.key(4), step)
        action = jax.random.randint(key, (env.agents,), 0, 5)
        actions = dict(zip(names, [*action, *env.scripted(state)], strict=True))
        observations, expected, rewards, _, _ = original.step_env(key, state, actions)
        state, reward, terminated = env.advance(state, action, key)
        np.testing.assert_array_equal(state.p_pos, expected.p_pos)
        np.testing.assert_array_equal(reward, jnp.stack([rewards[name] for name in names[: env.agents]]))
        rows = jnp.stack([observations[name] for name in names[: env.agents]])
        np.testing.assert_array_equal(env.observe(state), rows)
        assert not terminated


@pytest.mark.full
def test_episodes_are_truncated_after_25_steps() -> None:
    _, transition = rollout(SimpleSpread(), 4, 60)
    assert np.flatnonzero(transition.truncated[:, 0]).tolist() == [24, 49]
    assert not jnp.any(transition.terminated)


@pytest.mark.full
def test_last_observation_is_from_before_the_reset() -> None:
    env = SimpleSpread()
    world, transition = rollout(env, 4, 26)
    place = slice(2, 4)
    velocity, before = transition.observation[24, :, :, :2], transition.observation[24, :, :, place]
    np.testing.assert_allclose(transition.next_observation[24, :, :, place], before + 0.1 * velocity, atol=1e-6)
    assert float(jnp.max(jnp.abs(transition.next_observation[24] - world.observation[24]))) > 0.1
    np.testing.assert_array_equal(world.observation[24][..., :2], 0.0, "a new episode starts at rest")
    np.testing.assert_allclose(transition.next_observation[10], transition.observation[11], atol=1e-6)


@dataclasses.dataclass(frozen=True)
class DazedRunner(SimpleTag):
    """The runner acts pseudo-randomly, based on the digits of all positions."""

    def scripted(self, state: object) -> list[jax.Array]:
        digits = jnp.sum(jnp.abs(state.p_pos)) * 1e4  # pyright: ignore
        return [digits.astype(jnp.int32) % 5]


def pursue(env: SimpleTag, world: World) -> jax.Array:
    """Actions that drive every chaser straight towards the runner."""
    place, velocity = world.state.p_pos, world.state.p_vel
    runner = (place + 0.3 * velocity)[:, env.agents : env.agents + 1]
    way = runner - (place + 0.4 * velocity)[:, : env.agents]
    return jnp.argmax(way @ jnp.asarray(PUSHES).T, axis=-1)


def chase(env: SimpleTag) -> tuple[float, jax.Array]:
    """Catches per episode under pursuit, and the position of the runner at each step."""

    def tick(world: World, _: None) -> tuple[World, jax.Array]:
        return env.step(world, pursue(env, world))[0], world.state.p_pos[:, env.agents]

    @jax.jit
    def run() -> tuple[World, jax.Array]:
        return jax.lax.scan(tick, env.reset(jax.random.split(jax.random.key(0), 200)), length=25)

    world, places = run()
    return float(jnp.mean(world.finished.returns)) / 10.0, places  # a chaser gets 10 for a catch


@pytest.mark.full
def test_the_runner_flees_and_stays_in_the_arena() -> None:
    fleeing, places = chase(SimpleTag())
    dazed, _ = chase(DazedRunner())
    assert 0.5 < fleeing < 0.75 * dazed, "harder to catch than one that acts by chance, but not out of reach"
    assert float(jnp.mean(jnp.abs(places) < 1.0)) > 0.95
    assert float(jnp.max(jnp.abs(places))) < 1.5


@pytest.mark.full
def test_a_lone_runner_turns_away_from_its_chaser() -> None:
    env = SimpleTag(agents=1)
    state = env.initial(jax.random.key(0))
    obstacles = jnp.asarray([[5.0, 5.0], [-5.0, 5.0]])  # the obstacles, out of the way
    for chaser, expected in (((-0.3, 0.0), 2), ((0.3, 0.0), 1), ((0.0, -0.3), 4), ((0.0, 0.3), 3)):
        places = jnp.concatenate([jnp.asarray([chaser, (0.0, 0.0)]), obstacles])
        (action,) = env.scripted(state.replace(p_pos=places))
        assert int(action) == expected
    cornered = jnp.concatenate([jnp.asarray([(0.6, 0.0), (0.9, 0.0)]), obstacles])
    (action,) = env.scripted(state.replace(p_pos=cornered))
    assert int(action) in (3, 4), "along the edge, neither out of the arena nor into the chaser"


@pytest.mark.full
def test_agents_that_dropped_out_observe_garbage_and_get_no_reward() -> None:
    env = ProbeTeam(garbage=1e6)
    _, transition = rollout(env, 3, 8)
    for time in range(8):
        expected = np.arange(4) >= time % 4
        np.testing.assert_array_equal(transition.alive[time], np.tile(expected, (3, 1)))
    observation, alive = np.asarray(transition.observation), np.asarray(transition.alive)
    assert (observation[~alive] == 1e6).all()
    assert (np.abs(observation[alive]) <= 1).all()
    assert (np.asarray(transition.reward)[~alive] == 0).all()
    assert (np.abs(np.asarray(transition.reward)[alive]) == 1).all()
    assert np.flatnonzero(transition.terminated[:, 0]).tolist() == [3, 7]


@pytest.mark.full
def test_importing_fragmenta_does_not_import_jaxmarl_and_make_prints_nothing() -> None:
    code = (
        "import sys, fragmenta; assert 'jaxmarl' not in sys.modules; "
        "kept = sys.stdout, sys.stderr; fragmenta.make('jaxmarl:simple_tag'); "
        "assert 'jaxmarl' in sys.modules; assert kept == (sys.stdout, sys.stderr)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout == ""


def test_a_missing_jaxmarl_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxmarl.environments.mpe", None)
    with pytest.raises(ConfigError, match=r"pip install 'fragmenta\[jaxmarl\]'"):
        SimpleSpread(agents=7)


def test_mappo_refuses_a_single_agent() -> None:
    with pytest.raises(ConfigError, match="CartPole") as error:
        fragmenta.train(fragmenta.MAPPO(), "CartPole-v1")
    assert "\n" not in str(error.value)


def test_agents_with_different_spaces_are_padded() -> None:
    env = make("jaxmarl:MPE_simple_speaker_listener_v4")
    assert (env.action_space, dict(env.observation_space.spaces)["observation"].shape) == (Discrete(5), (11,))
    observation = env.observe(env.initial(jax.random.key(0)))
    assert observation["action_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert not jnp.any(observation["observation"][0, 3:]), "the speaker observes three numbers"
    assert make("jaxmarl:MPE_simple_push_v3").observation_space.shape == (19,), "as many actions each: no mask"


@pytest.mark.full
def test_legal_actions_of_jaxmarl_are_the_mask() -> None:
    env = make("jaxmarl:HeuristicEnemySMAX")
    state = env.initial(jax.random.key(0))
    legal = env.original().get_avail_actions(state.state)
    np.testing.assert_array_equal(env.observe(state)["action_mask"], [legal[name] for name in env.original().agents])
