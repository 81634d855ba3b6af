"""An illegal action is never drawn: in training, in evaluation, by any algorithm."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import ConfigError, Environment, make
from fragmenta.envs import Box, Dict, Discrete, MultiDiscrete
from fragmenta.envs.probes import ProbeMask
from fragmenta.evaluation.evaluate import evaluate
from fragmenta.rl.exploration import epsilon_greedy
from fragmenta.rl.masks import legal_actions, mask_part, masked_logits
from fragmenta.runs.seeds import of_seed
from fragmenta_core.faults import EnvironmentFaultError
from host_envs import Fussy, FussyPairs, LateFussy, ShortFussy
from own_parts import ForbiddenPairs

SHORT: dict[str, dict[str, Any]] = {"ppo": {"horizon": 16}, "dqn": {"buffer_size": 1_000, "learning_starts": 64}}
LEARNS: dict[str, dict[str, Any]] = {
    "ppo": {"horizon": 16, "hidden": (32,), "total_steps": 16_000},
    "dqn": {"gamma": 0.5, "learning_starts": 256, "hidden": (32,), "total_steps": 24_000},
    **{name: {"total_steps": 10_000} for name in ("ppo_gru", "ppo_lstm", "ppo_transformer", "sac_discrete")},
    **{name: {"total_steps": 20_000} for name in ("a2c", "impala")},
    "reinforce": {"total_steps": 60_000},
    "pqn": {"gamma": 0.5, "total_steps": 60_000},
    "r2d2": {"gamma": 0.5, "total_steps": 30_000},
}
"""By algorithm: what is enough to learn the best legal actions."""
SEVERAL_CHOICES = ("ppo", "a2c", "reinforce", "impala", "ppo_gru", "ppo_lstm", "ppo_transformer")
ENOUGH = 5.5
"""Of 6.22, with the best legal actions; random legal ones get 4, and those that are the best for one sign alone 5.1."""


class Silent(ProbeMask):
    """Says that all actions are legal."""

    def observe(self, state: Any) -> Any:
        return super().observe(state) | {"action_mask": jnp.ones(4, bool)}


def learns_among_legal_actions(name: str, env: Environment) -> None:
    """Three seeds reach the return of the best legal actions, and every episode of training and of evaluation has its
    full length: an illegal action would have ended it."""
    result = fragmenta.train(name, env, seeds=3, **LEARNS[name])
    lengths = [length for record in result.metrics for length in record["per_seed"]["length_mean"]]
    assert set(lengths) - {None} == {8.0}
    assert min(summary["return_mean"] for summary in result.summary["per_seed"]) > ENOUGH
    for seed, is_likeliest in itertools.product(range(3), (True, False)):
        algorithm, params = result.algorithm.inner, of_seed(result.params, seed)  # pyright: ignore
        evaluation = evaluate(algorithm, env, params, 64, deterministic=is_likeliest)
        assert set(evaluation.lengths) == {8}
        assert evaluation.mean > ENOUGH


@pytest.mark.brief("ppo", "dqn")
@pytest.mark.parametrize("name", LEARNS)
def test_the_best_legal_actions_are_learned_and_no_others_are_taken(name: str) -> None:
    learns_among_legal_actions(name, ProbeMask())


@pytest.mark.full
@pytest.mark.parametrize("name", SEVERAL_CHOICES)
def test_each_of_several_choices_has_a_mask(name: str) -> None:
    learns_among_legal_actions(name, ForbiddenPairs())


@pytest.mark.parametrize("name", SHORT)
def test_without_a_mask_illegal_actions_end_episodes(name: str) -> None:
    """Or the tests above would prove nothing."""
    result = fragmenta.train(name, Silent(), total_steps=600, **SHORT[name])
    assert max(record["length_mean"] for record in result.metrics if record["episodes"]) < 8.0


def test_no_legal_action_leaves_the_logits_as_they_are() -> None:
    logits = jnp.asarray([1.0, 2.0, 3.0])
    assert masked_logits(logits, jnp.asarray([0, 1, 1])).tolist() == [-1e9, 2.0, 3.0]
    assert masked_logits(logits, jnp.zeros(3)).tolist() == logits.tolist()
    assert masked_logits(logits, None) is logits


def test_random_actions_are_legal() -> None:
    keys, legal = jax.random.split(jax.random.key(0), 200), jnp.tile(jnp.asarray([False, True, True, False]), (200, 1))
    drawn = epsilon_greedy(keys, jnp.zeros((200, 4)), jnp.ones(200), legal)
    assert set(np.unique(drawn)) == {1, 2}


@pytest.mark.parametrize("kind", ["int8", "uint8", "bool", "float32"])
def test_random_actions_are_legal_among_many(kind: str) -> None:
    """More of them than a small integer counts to."""
    legal = jnp.ones((500, 400)).at[:, :20].set(0).astype(kind)
    drawn = epsilon_greedy(jax.random.split(jax.random.key(0), 500), jnp.zeros((500, 400)), jnp.ones(500), legal)
    assert 20 <= min(drawn) < 60
    assert max(drawn) > 360


def test_masks_of_several_choices() -> None:
    space = Dict((("action_mask", Box(0, 1, (2, 3), "int32")), ("observation", Box(0, 1, (1,)))))
    observation = {"action_mask": jnp.ones((5, 2, 3)), "observation": jnp.zeros((5, 1))}
    assert legal_actions(space, MultiDiscrete((3, 3)), observation).shape == (5, 6)  # pyright: ignore
    with pytest.raises(ConfigError, match="expected one entry for each of the 4 choices"):
        mask_part(space, Discrete(4))


def in_training(result: fragmenta.Result) -> set[float]:
    """The mean returns of all iterations in which an episode ended."""
    return {record["return_mean"] for record in result.metrics if record["episodes"]}


def in_evaluation(result: fragmenta.Result, env: Environment) -> set[float]:
    """The returns of episodes with the most likely and with sampled actions."""
    scores = [evaluate(result.algorithm, env, result.params, 8, deterministic=choice) for choice in (True, False)]
    return {float(value) for score in scores for value in score.returns}


@pytest.mark.parametrize("name", SHORT)
def test_masks_in_infos_of_gymnasium(name: str) -> None:
    env = make(Fussy)
    assert dict(env.observation_space.spaces)["action_mask"].shape == (3,)  # pyright: ignore
    result = fragmenta.train(name, env, num_envs=2, hidden=(8,), total_steps=256, **SHORT[name])
    assert in_training(result) == in_evaluation(result, env) == {5.0}, "an illegal action would have ended an episode"


def test_masks_of_several_choices_in_infos_may_be_a_tuple() -> None:
    result = fragmenta.train("ppo", FussyPairs, num_envs=2, hidden=(8,), total_steps=256, **SHORT["ppo"])
    assert in_training(result) == {5.0}


def test_a_mask_that_comes_only_after_a_step_is_refused() -> None:
    """Nothing would read it."""
    with pytest.raises(EnvironmentFaultError, match="an info with 'action_mask', which the info of its first"):
        fragmenta.train("ppo", LateFussy, num_envs=2, hidden=(8,), total_steps=256, **SHORT["ppo"])


def test_a_mask_of_another_size_is_refused_before_a_run() -> None:
    with pytest.raises(ConfigError, match="'action_mask' with 2 entries, expected one for each of the 3 choices"):
        make(ShortFussy)


def test_predictions_obey_masks_of_infos() -> None:
    result = fragmenta.train("ppo", Fussy, num_envs=2, hidden=(8,), total_steps=64, **SHORT["ppo"])
    env = Fussy()
    observation, info = env.reset(seed=0)
    for deterministic in (True, False, False, False):
        action, _ = result.predict(observation, deterministic=deterministic, action_mask=info["action_mask"])
        assert action == env.legal
        observation, *_, info = env.step(int(action))
    actions, _ = result.predict(np.zeros((3, 2), np.float32), action_mask=np.eye(3, dtype=np.int8))
    assert actions.tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"which actions are legal: pass action_mask=info\['action_mask'\]"):
        result.predict(observation)
    other = fragmenta.train("ppo", "CartPole-v1", num_envs=2, hidden=(8,), total_steps=64, horizon=8)
    with pytest.raises(ConfigError, match="action_mask is for environments with 'action_mask' in their infos"):
        other.predict(np.zeros(4, np.float32), action_mask=np.ones(2))


def test_a_space_with_parts_takes_a_dictionary() -> None:
    parts = {"action_mask": Box(0.0, 1.0, (2,)), "x": Discrete(2)}
    assert Dict(parts) == Dict(tuple(parts.items()))
    assert hash(Dict(parts)) == hash(Dict(tuple(parts.items())))
