"""An illegal action is never drawn: in training, in evaluation, by any algorithm."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import ConfigError, Environment, make
from fragmenta.envs import Box, Dict, Discrete, MultiDiscrete
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.rl.exploration import epsilon_greedy
from fragmenta.rl.masks import legal_actions, mask_part, masked_logits
from host_envs import Fussy
from own_parts import Forbidden

SHORT: dict[str, dict[str, Any]] = {"ppo": {"horizon": 16}, "dqn": {"buffer_size": 1_000, "learning_starts": 64}}
ALL = ["a2c", "impala", "reinforce", "pqn", "r2d2", "sac_discrete", "ppo_gru", "ppo_transformer"]


def in_training(result: fragmenta.Result) -> set[float]:
    """The mean returns of all iterations in which an episode ended."""
    return {record["return_mean"] for record in result.metrics if record["episodes"]}


def in_evaluation(result: fragmenta.Result, env: Environment) -> set[float]:
    """The returns of episodes with the most likely and with sampled actions."""
    scores = [evaluate(result.algorithm, env, result.params, 8, deterministic=choice) for choice in (True, False)]
    return {float(value) for score in scores for value in score.returns}


@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(name, marks=pytest.mark.full) for name in ALL)])
def test_only_legal_actions_are_taken(name: str) -> None:
    env = Forbidden(bonus=0.0)
    result = fragmenta.train(name, env, total_steps=600, **SHORT.get(name, {}))
    assert in_training(result) == in_evaluation(result, env) == {8.0}, "an illegal action would have ended an episode"


@pytest.mark.parametrize("name", SHORT)
def test_without_a_mask_illegal_actions_end_episodes(name: str) -> None:
    """Or the test above would prove nothing."""
    result = fragmenta.train(name, Forbidden(bonus=0.0, tells=False), total_steps=600, **SHORT[name])
    assert max(in_training(result)) < 8.0


def test_no_legal_action_leaves_the_logits_as_they_are() -> None:
    logits = jnp.asarray([1.0, 2.0, 3.0])
    assert masked_logits(logits, jnp.asarray([0, 1, 1])).tolist() == [-1e9, 2.0, 3.0]
    assert masked_logits(logits, jnp.zeros(3)).tolist() == logits.tolist()
    assert masked_logits(logits, None) is logits


def test_random_actions_are_legal() -> None:
    keys, legal = jax.random.split(jax.random.key(0), 200), jnp.tile(jnp.asarray([False, True, True, False]), (200, 1))
    drawn = epsilon_greedy(keys, jnp.zeros((200, 4)), jnp.ones(200), legal)
    assert set(np.unique(drawn)) == {1, 2}


def test_masks_of_several_choices() -> None:
    space = Dict((("action_mask", Box(0, 1, (2, 3), "int32")), ("observation", Box(0, 1, (1,)))))
    observation = {"action_mask": jnp.ones((5, 2, 3)), "observation": jnp.zeros((5, 1))}
    assert legal_actions(space, MultiDiscrete((3, 3)), observation).shape == (5, 6)  # pyright: ignore
    with pytest.raises(ConfigError, match="expected one entry for each of the 4 choices"):
        mask_part(space, Discrete(4))


@pytest.mark.parametrize("name", SHORT)
def test_masks_in_infos_of_gymnasium(name: str) -> None:
    env = make(Fussy)
    assert dict(env.observation_space.spaces)["action_mask"].shape == (3,)  # pyright: ignore
    result = fragmenta.train(name, env, num_envs=2, hidden=(8,), total_steps=256, **SHORT[name])
    assert in_training(result) == in_evaluation(result, env) == {5.0}, "an illegal action would have ended an episode"
