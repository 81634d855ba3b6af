"""An illegal action is never drawn: in training, in evaluation, by any algorithm."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import ConfigError, make
from fragmenta.envs import Box, Dict, Discrete, MultiDiscrete
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.rl.exploration import epsilon_greedy
from fragmenta.rl.masks import legal_actions, mask_part, masked_logits
from own_parts import Forbidden

SHORT: dict[str, dict[str, Any]] = {"ppo": {"horizon": 16}, "dqn": {"buffer_size": 1_000, "learning_starts": 64}}
ALL = ["a2c", "impala", "reinforce", "pqn", "r2d2", "sac_discrete", "ppo_gru", "ppo_transformer"]


@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(name, marks=pytest.mark.full) for name in ALL)])
def test_only_legal_actions_are_taken(name: str) -> None:
    result = fragmenta.train(name, Forbidden(), total_steps=600, **SHORT.get(name, {}))
    assert result.summary["return_mean"] >= 0, "one illegal action costs ten"
    for deterministic in (True, False):
        scores = evaluate(result.algorithm, Forbidden(), result.params, episodes=8, seed=0, deterministic=deterministic)
        assert min(scores.returns) >= 0


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


class Fussy(gymnasium.Env):
    """Says in its info which action is legal; any other one is an error."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.legal = 0, int(self.np_random.integers(3))
        return np.zeros(2, np.float32), {"action_mask": np.eye(3, dtype=np.int8)[self.legal]}

    def step(self, action: Any) -> Any:
        assert action == self.legal, "illegal"
        self.steps, self.legal = self.steps + 1, int(self.np_random.integers(3))
        info = {"action_mask": np.eye(3, dtype=np.int8)[self.legal]}
        return np.zeros(2, np.float32), 1.0, False, self.steps == 5, info


def test_masks_in_infos_of_gymnasium() -> None:
    env = make(Fussy)
    assert dict(env.observation_space.spaces)["action_mask"].shape == (3,)  # pyright: ignore
    result = fragmenta.train("ppo", env, num_envs=2, horizon=8, minibatches=2, hidden=(8,), total_steps=64)
    assert result.summary["return_mean"] == 5.0
