"""`fragmenta verify` and `fragmenta.verify`: a correct plan passes, and a wrong one is detected."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fragmenta
from fragmenta import ConfigError, Environment, Fragment
from fragmenta.cli.main import main
from fragmenta.engines import IterationReport, LocalEngine, dispatch
from small_algorithm import Reinforce, State

SMALL = Reinforce(num_envs=4)
ONE = ["small_algorithm:Reinforce", "CartPole-v1", "--policy", "single_learner_coarse", "--replicas", "2"]


@pytest.mark.full
def test_every_synchronous_policy_is_verified(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-envs", "2", "--iterations", "2"]
    assert main(["verify", "small_algorithm:Reinforce", "CartPole-v1", *flags]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("Reinforce on CartPole-v1, 2 environments: every leaf of the state and every metric")
    for policy in ("fused", "single_learner_coarse", "single_learner_fine", "multi_learner", "environments"):
        (line,) = [line for line in lines if line.startswith(f"{policy} ")]
        assert "x2  equal " in line
    for policy, why in (
        ("central", "policy 'central' places stages 'gradient' and 'apply'"),
        ("single_learner_async", "depends on timing"),
    ):
        (line,) = [line for line in lines if line.startswith(f"{policy} ")]
        assert "refused: " in line
        assert why in line
    assert lines[-1] == "5 equal, 3 refused"


@pytest.mark.full
def test_a_policy_that_places_nested_stages_is_verified(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--policy", "central", "--replicas", "2", "--num-envs", "4", "--iterations", "1"]
    assert main(["verify", "a2c", "CartPole-v1", *flags]) == 0
    assert capsys.readouterr().out.endswith("1 equal\n")


def doubled(leaf: Any) -> Any:
    return leaf * 2 + 1


def other_key(leaf: Any) -> Any:
    return jax.vmap(lambda key: jax.random.fold_in(key, 1))(leaf)


def change(leaf: str, transform: Callable[[Any], Any], from_iteration: int = 1) -> Callable[..., Any]:
    """A replacement for `LocalEngine.state` that changes one leaf."""
    honest, calls = LocalEngine.state, [0]

    def state(self: LocalEngine) -> list[Any]:
        calls[0] += 1
        index = self.plan.graph.state_names.index(leaf)
        return [
            transform(value) if i == index and calls[0] >= from_iteration else value
            for i, value in enumerate(honest(self))
        ]

    return state


@pytest.mark.brief("keys-*")
@pytest.mark.parametrize(
    ("leaf", "transform", "message"),
    [
        ("params.weights", doubled, "differs in params.weights["),
        ("count", lambda leaf: leaf + 1, "differs in count after iteration 1: expected 1, found 2"),
        ("count", lambda leaf: leaf.astype(jnp.float32), "differs in count after iteration 1: expected int32[], found"),
        ("keys", other_key, "differs in keys["),
        ("params.bias", lambda leaf: leaf.at[1].set(jnp.nan), "differs in params.bias[1] after iteration 1: expected"),
        ("params.bias", lambda leaf: leaf.at[0].set(jnp.inf), "differs in params.bias[0] after iteration 1: expected"),
    ],
)
def test_a_changed_leaf_is_named(
    leaf: str, transform: Callable[[Any], Any], message: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LocalEngine, "state", change(leaf, transform))
    assert main(["verify", *ONE]) == 1
    output = capsys.readouterr().out
    assert message in output
    assert "0 equal, 1 differ" in output


@pytest.mark.full
def test_replicas_joined_in_the_wrong_order_are_detected(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    honest = dispatch.join_parts
    monkeypatch.setattr(dispatch, "join_parts", lambda parts, layout: honest(parts[::-1], layout))
    assert main(["verify", *ONE]) == 1
    assert "differs in world." in capsys.readouterr().out


@pytest.mark.full
def test_the_first_iteration_that_differs_is_reported(monkeypatch: Any) -> None:
    monkeypatch.setattr(LocalEngine, "state", change("params.bias", doubled, from_iteration=2))
    verification = fragmenta.verify(SMALL, "CartPole-v1", "single_learner_coarse", replicas=2)
    assert not verification.equal
    assert verification.largest_difference > 1
    first = verification.first_difference
    assert first is not None
    assert (first.leaf, first.iteration) == ("params.bias", 2)
    assert first.actual == pytest.approx(first.expected * 2 + 1)
    assert "magnifies" not in str(verification), "it was bitwise the same before"


def test_a_changed_metric_is_named(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    honest = LocalEngine.run

    def run(self: LocalEngine, iterations: int) -> Iterator[IterationReport]:
        index = self.plan.graph.metric_names.index("reward")
        for report in honest(self, iterations):
            yield dataclasses.replace(report, metrics=report.metrics | {index: report.metrics[index] + 1})

    monkeypatch.setattr(LocalEngine, "run", run)
    assert main(["verify", *ONE]) == 1
    assert "differs in metric reward after iteration 1: expected 1.0, found 2.0" in capsys.readouterr().out


@pytest.mark.full
def test_rounding_is_no_difference(monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(LocalEngine, "state", change("params.weights", lambda leaf: leaf * (1 + 1e-6)))
    assert main(["verify", *ONE]) == 0
    assert "equal within" in capsys.readouterr().out


@dataclasses.dataclass(frozen=True)
class Coarse(Reinforce):
    """Has a bfloat16 bias, and a metric that is NaN."""

    def init(self, env: Environment, key: jax.Array) -> State:
        state = super().init(env, key)
        return state._replace(params=state.params | {"bias": jnp.full(2, 0.5, jnp.bfloat16)})

    def iterate(self, env: Environment, state: State) -> tuple[State, dict[str, jax.Array]]:
        state, metrics = super().iterate(env, state)
        return state, metrics | {"nan": jnp.full(3, jnp.nan).at[1].set(jnp.inf)}


@pytest.mark.brief("1.2-*")
@pytest.mark.parametrize(("factor", "equal"), [(1.0, True), (1.01, True), (1.2, False)])
def test_low_precision_leaves_have_a_larger_tolerance(factor: float, equal: bool, monkeypatch: Any) -> None:
    def scaled(leaf: Any) -> Any:
        return leaf * jnp.asarray(factor, jnp.bfloat16)

    monkeypatch.setattr(LocalEngine, "state", change("params.bias", scaled))
    verification = fragmenta.verify(
        Coarse(num_envs=4), "CartPole-v1", "single_learner_coarse", replicas=2, iterations=1
    )
    assert verification.equal == equal, str(verification)


def test_rounding_that_training_magnifies_is_reported_as_such(monkeypatch: Any) -> None:
    apart = iter((1e-6, 3e-5))
    monkeypatch.setattr(LocalEngine, "state", change("params.weights", lambda leaf: leaf * (1 + next(apart))))
    verification = fragmenta.verify(SMALL, "CartPole-v1", "single_learner_coarse", replicas=2)
    (comparison,) = verification.comparisons
    assert comparison.difference is not None
    assert (comparison.difference.leaf, comparison.difference.iteration) == ("params.weights", 2)
    assert str(comparison).endswith(" after iteration 1, so it may be rounding amplified by training)")


def alone(stages: tuple[str, ...], cluster: Any) -> list[Fragment]:
    return [Fragment("all", stages, cluster.spread(1))]


def test_user_defined_policies_with_two_and_four_replicas() -> None:
    verification = fragmenta.verify(SMALL, "CartPole-v1", [alone, "test_verify:alone"], iterations=1)
    compared = [(comparison.policy, comparison.replicas) for comparison in verification.comparisons]
    assert compared == [("alone", 2), ("alone", 4), ("test_verify:alone", 2), ("test_verify:alone", 4)]
    assert verification.equal
    assert verification.largest_difference == 0
    assert verification.first_difference is None
    assert all(comparison.bitwise for comparison in verification.comparisons)


def test_a_replay_with_other_numbers_of_shards_and_learners(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-envs", "4", "--batch-size", "8", "--buffer-size", "64", "--learning-starts", "16", "--hidden", "4"]
    parts = ["--policy", "replay", "--replicas", "4", "--shards", "2", "--learners", "2"]
    assert main(["verify", "dqn", "CartPole-v1", *sizes, *parts]) == 0
    assert "replay                 x4  equal" in capsys.readouterr().out
    assert main(["verify", "dqn", "CartPole-v1", *sizes, "--policy", "fused", "--shards", "2"]) == 2
    assert "shards is 2, but distribution policy 'fused' does not use it" in capsys.readouterr().err
    assert main(["verify", "dqn", "CartPole-v1", *sizes, *parts[:-1], "0"]) == 2
    assert "there must be at least 1 learner" in capsys.readouterr().err


class Careless(gymnasium.Env):
    """Draws its observations from an unseeded generator."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.random.default_rng().random(4).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        return np.random.default_rng().random(4).astype(np.float32), 1.0, False, False, {}


@pytest.mark.full
def test_environments_on_the_host() -> None:
    verification = fragmenta.verify(SMALL, "gymnasium:CartPole-v1", "single_learner_coarse", replicas=2)
    assert verification.equal, str(verification)
    with pytest.raises(ConfigError, match="'test_verify:Careless' is not deterministic for the same seeds"):
        fragmenta.verify(SMALL, "test_verify:Careless", "single_learner_coarse", replicas=2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--iterations", "0"], "iterations is 0: it must be at least 1"),
        (["--replicas", "0"], "replicas is 0: it must be at least 1"),
        (["--policy", "fused", "--replicas", "3"], "3 replicas of fragment 'all' do not divide 4 environments"),
        (["--policy", "fussed"], "unknown distribution policy 'fussed': did you mean 'fused'?"),
        (["--policy", "single_learner_async"], "'single_learner_async' cannot be verified: its fragments do not wait"),
        (["--engine", "locl"], "unknown engine 'locl': did you mean 'local'?"),
        (["--num-envs", "0"], "num_envs is 0"),
    ],
)
def test_mistakes_get_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "small_algorithm:Reinforce", "CartPole-v1", *flags]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err


def test_if_nothing_can_be_placed_verification_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "small_algorithm:Reinforce", "CartPole-v1", "--replicas", "3"]) == 2
    assert "nothing was verified" in capsys.readouterr().err
