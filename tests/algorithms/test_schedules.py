"""Schedules: of every hyper-parameter that need not be whole, one has an effect or is refused."""

import dataclasses
from typing import Any

import jax
import pytest
from jax.interpreters import partial_eval

from fragmenta import DQN, PPO, SAC, Algorithm, ConfigError, DiscreteSAC, Environment, make
from fragmenta.algorithms import ALGORITHMS
from fragmenta.algorithms.schedules import check_schedule, variant
from small_teams import AimingTeam

TEAMS = ("mappo", "ippo", "vdn", "qmix", "maddpg")
CONTINUOUS = ("sac", "td3", "ddpg", "fast_td3")
VARIANTS = {
    "sac-fixed": SAC(learn_temperature=False, prioritized=True),
    "sac_discrete-fixed": DiscreteSAC(learn_temperature=False),
    "dqn-rainbow": DQN(noisy=True, prioritized=True, distribution="c51"),
    "ppo-clipped": PPO(clip_value=True, normalize_rewards=True, anneal=False),
}


def environment(name: str) -> Environment:
    if name.startswith(TEAMS):
        return make("ProbeTeam")
    return make("Pendulum-v1" if name.split("-")[0] in CONTINUOUS else "CartPole-v1")


def can_be_scheduled(algorithm: Algorithm) -> list[str]:
    names = []
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        try:
            check_schedule(algorithm, (f"{field.name}=linear:{value}:{value}",))
        except ConfigError:
            continue
        names.append(field.name)
    return names


def used(algorithm: Algorithm, env: Environment, names: list[str]) -> list[str]:
    """The hyper-parameters on which an iteration depends."""
    state = jax.eval_shape(lambda key: algorithm.init(env, key), jax.random.key(0))

    def iterate(numbers: dict[str, Any], state: Any) -> Any:
        return variant(algorithm, numbers).iterate(env, state)

    numbers = {name: jax.numpy.asarray(getattr(algorithm, name), "float32") for name in sorted(names)}
    program = jax.make_jaxpr(iterate)(numbers, state).jaxpr
    _, is_used = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))
    return [name for name, matters in zip(numbers, is_used, strict=False) if matters]


@pytest.mark.parametrize("name", [*ALGORITHMS, *VARIANTS])
def test_a_schedule_has_an_effect_or_is_refused(name: str) -> None:
    algorithm, envs = VARIANTS[name] if name in VARIANTS else ALGORITHMS[name](), [environment(name)]
    if name == "maddpg":  # explores in one way with discrete actions, and in another with continuous ones
        envs.append(AimingTeam())
    names = can_be_scheduled(algorithm)
    assert {"learning_rate", "gamma"} <= set(names)
    assert set().union(*(used(algorithm, env, names) for env in envs)) == set(names)


@pytest.mark.parametrize(
    ("algorithm", "rule", "message"),
    [
        (SAC(), "temperature=linear:1:0.1", "temperature, which has no effect while learn_temperature is True: set"),
        (DQN(), "importance=linear:0.4:1", "importance, which has no effect while prioritized is False"),
        (DQN(noisy=True), "exploration=linear:1:0.1", "exploration, which has no effect while noisy is True"),
        (PPO(), "epochs=linear:8:4", "epochs, which is 4: .* compiled once"),
        (PPO(), "anneal=linear:1:0", "anneal, which is True: .* compiled once"),
    ],
)
def test_a_schedule_without_effect_is_one_line(algorithm: Any, rule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^schedule changes {message}"):
        dataclasses.replace(algorithm, schedule=(rule,)).validate(environment("sac" if rule[0] == "t" else "dqn"))


def test_two_schedules_of_one_number_are_refused() -> None:
    rules = ("learning_rate=linear:1e-3:0", "gamma=linear:0.9:1", "learning_rate=cosine:1e-3:0")
    with pytest.raises(ConfigError, match="schedule changes learning_rate by two rules: leave one out"):
        PPO(schedule=rules).validate(make("CartPole-v1"))


def test_a_number_without_a_point_can_be_scheduled() -> None:
    PPO(gamma=1, schedule=("gamma=linear:0.9:1",)).validate(make("CartPole-v1"))
