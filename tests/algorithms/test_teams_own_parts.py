"""Parts of the user's own in algorithms for teams: networks, functions, critics that see more, memories."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import IPPO, MADDPG, MAPPO, QMIX, VDN, ConfigError, make
from fragmenta.algorithms.team import of_encoders
from fragmenta.envs.probes import ProbeTeam
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.rl.teams import TeamView
from helpers import initial_state, plain
from own_parts import Gelu, first_two, pair, slow_adam, upside_down
from small_teams import AimingTeam, HintedTeam, RecallTeam, SightedTeam

FEW: dict[str, Any] = {"num_envs": 4, "horizon": 4, "epochs": 2, "minibatches": 2, "hidden": (8,), "total_steps": 640}
REPLAY: dict[str, Any] = {
    "num_envs": 4,
    "horizon": 2,
    "updates": 1,
    "batch_size": 8,
    "buffer_size": 64,
    "learning_starts": 8,
    "hidden": (8,),
    "total_steps": 640,
}
LEARNED: dict[str, Any] = {"num_envs": 32, "horizon": 12, "minibatches": 2, "hidden": (32,), "learning_rate": 5e-3}
KINDS = (MAPPO, IPPO, VDN, QMIX, MADDPG)
EACH = pytest.mark.parametrize("kind", KINDS)
SHARED = pytest.mark.parametrize("shared", [True, False])


def small(kind: Any, **settings: Any) -> Any:
    return kind(**(FEW if issubclass(kind, MAPPO) else REPLAY), **settings)


def shapes(algorithm: Any, env: Any) -> Any:
    """The shapes of all parameters, after tracing an iteration."""
    algorithm.validate(env)
    state = jax.eval_shape(lambda key: algorithm.init(env, key), jax.random.key(0))
    after, _ = jax.eval_shape(lambda state: algorithm.iterate(env, state), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    return jax.tree.map(lambda x: x.shape, state.learner.params)


def first_width(net: Any) -> int:
    kernel = next(shape for name, shape in net["params"].items() if name in ("kernel_0", "dense_1"))
    return (kernel["kernel"] if isinstance(kernel, dict) else kernel)[-2]


@SHARED
@EACH
def test_a_network_encodes_what_each_agent_observes(kind: Any, shared: bool) -> None:
    env = ProbeTeam()
    sizes = shapes(small(kind, network=Gelu(5), shared=shared), env)
    assert sizes["encoder"]["params"]["Dense_0"]["kernel"] == ((2, 5) if shared else (4, 2, 5))
    index = 4 if shared else 0
    acting = next(sizes[name] for name in ("policy", "actor", "q") if name in sizes)
    assert first_width(acting) == 5 + index
    if kind is MAPPO:
        assert first_width(sizes["value"]) == 5 + 4 * 5 + index


@EACH
def test_an_observation_function_is_applied_to_each_agent(kind: Any) -> None:
    sizes = shapes(small(kind, shared=False, observation_function=lambda x: jnp.append(first_two(x), 0.0)), ProbeTeam())
    acting = next(sizes[name] for name in ("policy", "actor", "q") if name in sizes)
    assert first_width(acting) == 3


@EACH
def test_rewards_are_those_of_a_function_of_the_team_s_transition(kind: Any) -> None:
    env, action = ProbeTeam(), jnp.ones((4, 4), jnp.int32)
    world = env.reset(jax.random.split(jax.random.key(0), 4))
    plain_reward = env.step(world, action)[1].reward
    _, transition = small(kind, reward_function=upside_down).stepped(env, world, action)
    np.testing.assert_array_equal(transition.reward, -plain_reward)


@pytest.mark.parametrize("kind", [MAPPO, *(pytest.param(kind, marks=pytest.mark.full) for kind in KINDS[1:])])
def test_networks_and_optimizers_of_the_user_learn(kind: Any) -> None:
    env, settings = ProbeTeam(), {"network": pair, "optimizer": slow_adam}
    algorithm = small(kind, schedule=("learning_rate=linear:0.01:0.001",), **settings)
    algorithm.validate(env)
    before, (state, _) = initial_state(algorithm, env), plain(algorithm, env, 8)
    for name in ("encoder", *(name for name in before.learner.params if name != "encoder")):
        same = jax.tree.map(np.allclose, before.learner.params[name], state.learner.params[name])
        assert not all(jax.tree.leaves(same)), f"{name} did not change"


@pytest.mark.parametrize(("kind", "critic_width"), [(MAPPO, 3 * 4), (IPPO, 4), (QMIX, 2 * 4), (MADDPG, 2 * (2 + 4))])
def test_a_critic_sees_parts_that_actors_do_not(kind: Any, critic_width: int) -> None:
    sizes = shapes(small(kind, shared=False, critic_only=("hint",)), HintedTeam())
    critic, actor = (next(sizes[name] for name in names if name in sizes) for names in CRITICS_AND_ACTORS)
    assert first_width(actor) == 1
    width = critic["params"]["first_bias"]["kernel"][0] if kind is QMIX else first_width(critic)
    assert width == critic_width


CRITICS_AND_ACTORS = (("value", "critic", "mixer"), ("policy", "actor", "q"))


def test_what_only_a_critic_sees_does_not_change_actions() -> None:
    algorithm, env = small(MAPPO, critic_only=("hint",)), HintedTeam()
    state = initial_state(algorithm, env)
    params, observation, alive = state.learner.params, state.world.observation, state.world.alive
    other = {**observation, "hint": 1.0 - observation["hint"]}
    (encoded, policy), (other_encoded, other_policy) = (
        (encoded := algorithm.encode_each(env, params, TeamView(x, alive)), algorithm.policy(env, params, encoded))
        for x in (observation, other)
    )
    np.testing.assert_array_equal(policy.logits, other_policy.logits)
    values = (algorithm.value(env, params, x) for x in (encoded, other_encoded))
    assert not np.allclose(*values)


@SHARED
@pytest.mark.parametrize("kind", [MAPPO, IPPO])
def test_images_and_several_integers(kind: Any, shared: bool) -> None:
    sizes = shapes(small(kind, shared=shared), SightedTeam())
    assert sizes["encoder"]["params"]["picture"]["kernel_0"] == (() if shared else (2,)) + (3, 3, 1, 32)
    assert sizes["policy"]["params"]["kernel_1"][-1] == 2 + 3


@pytest.mark.parametrize("cell", ["gru", pytest.param("lstm", marks=pytest.mark.full)])
@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_sequence_is_remembered_as_its_steps_are(cell: str, shared: bool) -> None:
    algorithm, env = small(MAPPO, cell=cell, memory=6, shared=shared), RecallTeam()
    params = initial_state(algorithm, env).learner.params
    observation = jax.random.normal(jax.random.key(1), (5, 4, 2, 1))
    alive, ended = jnp.ones((5, 4, 2), bool), jnp.zeros((5, 4, 2), bool).at[2, 0].set(True)
    memory, steps, before = algorithm.fresh_memory(4, 2), [], []
    for time in range(5):
        before.append(memory)
        memory, encoded = algorithm.remember_each(env, params, TeamView(observation[time], alive[time]), memory)
        memory = algorithm.kept(ended[time], memory)
        steps.append(encoded.actor)
    view = TeamView(observation, alive)
    together = algorithm.remember_sequence(env, params, view, jnp.stack(before), ended).actor
    np.testing.assert_allclose(together, jnp.stack(steps), rtol=1e-5, atol=1e-6)


@pytest.mark.full
@SHARED
@pytest.mark.parametrize("kind", [MAPPO, IPPO])
def test_agents_with_a_memory_learn_what_must_be_remembered(kind: Any, shared: bool) -> None:
    env = RecallTeam()
    algorithm = kind(cell="gru", memory=16, shared=shared, total_steps=32 * 12 * 60, **LEARNED)
    assert evaluate(algorithm, env, fragmenta.train(algorithm, env).params, 200).mean > 0.95
    without = kind(shared=shared, total_steps=32 * 12 * 30, **LEARNED)
    assert evaluate(without, env, fragmenta.train(without, env).params, 200).mean < 0.7


@pytest.mark.full
@SHARED
@pytest.mark.parametrize("kind", [MAPPO, IPPO])
def test_continuous_actions_follow_what_is_observed(kind: Any, shared: bool) -> None:
    env = AimingTeam()
    algorithm = kind(shared=shared, total_steps=32 * 12 * 150, **LEARNED)
    assert evaluate(algorithm, env, fragmenta.train(algorithm, env).params, 200).mean > 0.9


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (small(VDN, cell="gru"), r"VDN has no memory of the episode: .*; use mappo or ippo"),
        (small(MADDPG, cell="gru"), r"MADDPG has no memory of the episode: .*; use mappo or ippo"),
        (small(MAPPO, cell="grru"), "cell is 'grru': choose from none, gru, lstm, transformer"),
        (small(MAPPO, network="own_parts:Flat"), "expected one vector each"),
        (small(QMIX, critic_only=("state",)), "critic_only is 'state', but it is not part of the observations"),
    ],
)
def test_mistakes_are_one_line(algorithm: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        algorithm.validate(ProbeTeam())
    assert "\n" not in str(error.value)


@pytest.mark.full
def test_the_state_of_a_jaxmarl_simulator_is_for_critics() -> None:
    env = make("jaxmarl:HeuristicEnemySMAX:world_state")
    parts = {name: part.shape for name, part in env.observation_space.spaces}
    assert set(parts) == {"action_mask", "observation", "world_state"}
    sizes = shapes(small(MAPPO, shared=False, critic_only=("world_state",)), env)
    (size,), (extra,) = parts["observation"], parts["world_state"]
    assert first_width(sizes["policy"]) == size
    assert first_width(sizes["value"]) == (1 + env.num_agents) * (size + extra)


@pytest.mark.parametrize("name", ["simple_spread:world_state", "MPE_simple_spread_v3:world_state", "simple_spread:x"])
def test_a_simulator_that_does_not_say_its_state_is_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=r"has no part '.*' to add to its observations: leave it out") as error:
        make(f"jaxmarl:{name}")
    assert "\n" not in str(error.value)


@pytest.mark.full
@EACH
def test_all_train_on_simple_spread(kind: Any) -> None:
    algorithm = small(kind)
    result = fragmenta.train(algorithm, "jaxmarl:simple_spread", options=fragmenta.RunOptions())
    assert result.summary["total_steps"] >= 640
    assert of_encoders(result.params) == {}
