"""A run that is stopped and resumed ends like an uninterrupted one, under any distribution policy before and after."""

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fragmenta
from fragmenta import Cluster, RunOptions, SaveOptions
from fragmenta.pictures.curve import curve_figure
from fragmenta.pictures.run_files import read_run_files
from fragmenta.runs.checkpoints import CheckpointFolder
from fragmenta.runs.history import resumes
from fragmenta.training.stopping import NotFiniteError, StoppedError
from helpers import StopAt

TWO = ("cpu:0", "cpu:1")
PLACEMENTS: dict[str, tuple[str, Cluster]] = {
    "fused": ("fused", Cluster(TWO[:1])),
    "coarse": ("single_learner_coarse", Cluster(TWO, 2)),
    "fine": ("single_learner_fine", Cluster(TWO, 2)),
    "multi": ("multi_learner", Cluster(TWO, 2)),
    "central": ("central", Cluster(TWO, 2)),
    "environments": ("environments", Cluster(TWO, 2)),
    "behind": ("single_learner_coarse", Cluster(TWO, 2, lag=1)),
}
SYNCHRONOUS = [place for place, (_, cluster) in PLACEMENTS.items() if not cluster.lag]
SMALL: dict[str, Any] = {"num_envs": 4, "horizon": 8, "hidden": (8,)}
ALGORITHMS = {
    "ppo": fragmenta.PPO(**SMALL, epochs=2, minibatches=2, normalize_observations=True, normalize_rewards=True),
    "a2c": fragmenta.A2C(**SMALL),
    "impala": fragmenta.IMPALA(**SMALL),
    "ppo_gru": fragmenta.RecurrentPPO(**SMALL, epochs=1, minibatches=2, memory=8),
    "mappo_shared": fragmenta.MAPPO(**SMALL, epochs=1, minibatches=2),
    "mappo_separate": fragmenta.MAPPO(**SMALL, epochs=1, minibatches=2, shared=False),
}
ITERATIONS = 8


class Listener(StopAt):
    """Keeps the description of the environments."""

    environments = ""

    def __init__(self) -> None:
        super().__init__(-1)

    def planned(self, plan: Any, algorithm: Any, steps: int, environments: str) -> None:
        self.environments = environments


def start(name: str, place: str, run_dir: Path | None, watcher: Any = None) -> fragmenta.Result:
    algorithm, (policy, cluster) = ALGORITHMS[name], PLACEMENTS[place]
    options: dict[str, Any] = {
        "policy": policy,
        "cluster": cluster,
        "run_dir": run_dir,
        "watcher": watcher,
    }
    steps = ITERATIONS * algorithm.steps_per_iteration
    env = "ProbeTeam" if name.startswith("mappo") else "CartPole-v1"
    # A checkpoint at each iteration, so that the run stops at exactly the requested one.
    return fragmenta.train(
        algorithm, env, **options, total_steps=steps, options=RunOptions(saving=SaveOptions(1), merge=False)
    )


def stopped_and_resumed(name: str, first: str, second: str, run_dir: Path, stop_at: int) -> fragmenta.Result:
    with pytest.raises(StoppedError, match=r"SIGINT: saved after .* continue with: fragmenta resume"):
        start(name, first, run_dir, StopAt(stop_at))
    policy, cluster = PLACEMENTS[second]
    return fragmenta.resume(run_dir, policy, cluster)


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    measured = ("seconds", "steps_per_second", "busy/", "fill/", "memory_mb", "device_memory_mb")
    return [{name: x for name, x in record.items() if not name.startswith(measured)} for record in records]


def every(names: Any, quick: set[Any]) -> list[Any]:
    """All names in `make full`; only the quick ones in `make test`."""
    return [pytest.param(*name, marks=() if name in quick else pytest.mark.full) for name in names]


SAME = {("a2c", "fused")}


@pytest.mark.parametrize(("name", "place"), every([(n, p) for n in ALGORITHMS for p in PLACEMENTS], SAME))
def test_stopped_and_resumed_equals_undisturbed_bitwise(name: str, place: str, tmp_path: Path) -> None:
    whole = start(name, place, tmp_path / "whole")
    stop_at = random.randint(1, ITERATIONS - 1)
    parts = stopped_and_resumed(name, place, place, tmp_path / "parts", stop_at)
    for expected, actual in zip(jax.tree.leaves(whole.state), jax.tree.leaves(parts.state), strict=True):
        assert np.array_equal(_raw(expected), _raw(actual)), f"stopped at {stop_at}"
    records = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert without_times(records) == without_times(whole.metrics), f"stopped at {stop_at}"
    assert parts.summary["return_mean"] == whole.summary["return_mean"]


CHANGES = list(itertools.permutations(SYNCHRONOUS, 2))
ACROSS = [("ppo", *change) for change in CHANGES]
# Agents with separate parameters are split under one distribution policy only.
ACROSS += [("mappo_separate", *change) for change in CHANGES if "environments" in change]


@pytest.mark.parametrize(("name", "first", "second"), every(ACROSS, {("ppo", "fused", "coarse")}))
def test_a_run_goes_on_under_another_policy(name: str, first: str, second: str, tmp_path: Path) -> None:
    whole = start(name, "fused", None)
    parts = stopped_and_resumed(name, first, second, tmp_path / "run", ITERATIONS // 2)
    for expected, actual in zip(jax.tree.leaves(whole.params), jax.tree.leaves(parts.params), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    assert parts.summary["policy"] == PLACEMENTS[second][0]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["policy"] == PLACEMENTS[second][0]


@pytest.mark.full
def test_values_in_flight_can_be_resumed_with_any_number_of_replicas(tmp_path: Path) -> None:
    whole = start("a2c", "behind", None)
    with pytest.raises(StoppedError):
        start("a2c", "behind", tmp_path / "run", StopAt(3))
    resumed = fragmenta.resume(tmp_path / "run", cluster=Cluster(TWO, 4, lag=1))
    for expected, leaf in zip(jax.tree.leaves(whole.params), jax.tree.leaves(resumed.params), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-5, atol=1e-5)
    assert [record["lag"] for record in resumed.metrics] == [1] * 5


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "second"),
    [("behind", "coarse"), *every([("coarse", "behind"), ("behind", "fused"), ("fused", "behind")], set())],
)
def test_a_lag_may_be_added_or_removed(first: str, second: str, tmp_path: Path) -> None:
    listener = Listener()
    with pytest.raises(StoppedError):
        start("a2c", first, tmp_path / "run", StopAt(3))
    policy, cluster = PLACEMENTS[second]
    resumed = fragmenta.resume(tmp_path / "run", policy, cluster, watcher=listener)
    assert resumed.summary["iterations"] == ITERATIONS
    assert ("without the values in flight" in listener.environments) == (first == "behind")
    assert resumed.metrics[0].get("lag") == (0 if second == "behind" else None)


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "second"),
    [("single_learner_async", "fused"), pytest.param("fused", "single_learner_async", marks=pytest.mark.full)],
)
def test_asynchronous_runs_are_saved_and_resumed(first: str, second: str, tmp_path: Path) -> None:
    algorithm, cluster, path = ALGORITHMS["impala"], Cluster(TWO, 2), tmp_path / "r"
    options: dict[str, Any] = {
        "cluster": cluster,
        "run_dir": path,
        "watcher": StopAt(3),
        "options": RunOptions(saving=SaveOptions(1)),
    }
    steps = 20 * algorithm.steps_per_iteration
    with pytest.raises(StoppedError):
        fragmenta.train(algorithm, "CartPole-v1", first, total_steps=steps, **options)
    resumed = fragmenta.resume(tmp_path / "r", second, cluster)
    assert resumed.summary["total_steps"] >= steps
    records = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(len(records)))
    assert all(later["steps"] > earlier["steps"] for earlier, later in itertools.pairwise(records))


@pytest.mark.full
def test_environments_on_the_host_start_new_episodes(tmp_path: Path) -> None:
    listener = Listener()
    algorithm = fragmenta.RecurrentPPO(**SMALL, epochs=1, minibatches=2, memory=8, normalize_rewards=True)
    options: dict[str, Any] = {
        "run_dir": tmp_path / "run",
        "watcher": StopAt(2),
        "options": RunOptions(saving=SaveOptions(1)),
    }
    with pytest.raises(StoppedError):
        fragmenta.train(algorithm, "gymnasium:CartPole-v1", total_steps=8 * 32, **options)
    resumed = fragmenta.resume(tmp_path / "run", watcher=listener)
    assert "start new episodes because their state cannot be saved; resumed after " in listener.environments
    assert resumed.summary["total_steps"] == 8 * 32


@pytest.mark.full
def test_a_run_can_be_extended(tmp_path: Path) -> None:
    start("a2c", "fused", tmp_path / "run")
    steps = ITERATIONS * ALGORITHMS["a2c"].steps_per_iteration
    with pytest.raises(fragmenta.ConfigError, match=f"has completed its {steps} steps: .* --total-steps {2 * steps}"):
        fragmenta.resume(tmp_path / "run")
    with pytest.raises(StoppedError):
        fragmenta.resume(tmp_path / "run", total_steps=2 * steps, watcher=StopAt(ITERATIONS + 2))
    run = fragmenta.load(tmp_path / "run")
    assert run.steps() > steps, "its parameters are those of now, not of the end that it had before"
    assert not (tmp_path / "run" / "summary.json").exists()
    assert fragmenta.resume(tmp_path / "run").summary["iterations"] == 2 * ITERATIONS


@pytest.mark.full
def test_resumed_from_an_earlier_checkpoint_everything_after_it_is_discarded(tmp_path: Path) -> None:
    options = RunOptions(saving=SaveOptions(checkpoint_every=1, keep_last=10))
    with pytest.raises(StoppedError):  # so that this iteration is saved for certain
        fragmenta.train(
            ALGORITHMS["ppo"],
            "CartPole-v1",
            "fused",
            total_steps=6 * 32,
            run_dir=tmp_path / "run",
            watcher=StopAt(3),
            options=options,
        )
    whole = fragmenta.resume(tmp_path / "run")
    with pytest.raises(StoppedError):
        fragmenta.resume(tmp_path / "run", checkpoint="3", watcher=StopAt(5))
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    assert max(int(name) for name in folder.names()) == 5
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5
    again = fragmenta.resume(tmp_path / "run")
    assert again.summary["params_sha256"] == whole.summary["params_sha256"]
    assert resumes(tmp_path / "run") == [3 * 32, 5 * 32]
    picture = curve_figure(read_run_files(tmp_path / "run"))
    marked = [line.get_xdata()[0] for line in picture.axes[0].lines if line.get_linestyle() == "--"]
    assert marked == [3 * 32, 5 * 32], "the curve has a line at each"


@pytest.mark.full
def test_several_seeds_are_resumed_together(tmp_path: Path) -> None:
    algorithm = fragmenta.A2C(**SMALL, total_steps=ITERATIONS * 32)
    whole = fragmenta.train(algorithm, "CartPole-v1", seeds=2)
    options: dict[str, Any] = {
        "run_dir": tmp_path / "run",
        "watcher": StopAt(3),
        "options": RunOptions(saving=SaveOptions(1)),
    }
    with pytest.raises(StoppedError):
        fragmenta.train(algorithm, "CartPole-v1", seeds=2, **options)
    parts = fragmenta.resume(tmp_path / "run")
    assert parts.summary["per_seed"] == whole.summary["per_seed"]
    for seed in (0, 1):
        lines = (tmp_path / "run" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["iteration"] for line in lines] == list(range(ITERATIONS))


@pytest.mark.full
def test_non_finite_values_end_the_run_and_name_the_stage(tmp_path: Path) -> None:
    algorithm = fragmenta.A2C(**SMALL, learning_rate=3e37, total_steps=200 * 32)
    with pytest.raises(NotFiniteError) as caught:
        fragmenta.train(algorithm, "CartPole-v1", run_dir=tmp_path / "run")
    message = str(caught.value)
    assert re.match(r"stage 'learn' produced NaN or Inf from finite inputs in iteration \d+ \(", message), message
    assert f"is saved: continue with fragmenta resume {tmp_path / 'run'}" in message
    checkpoint = CheckpointFolder(tmp_path / "run" / "checkpoints").newest()
    assert all(np.isfinite(array).all() for array in checkpoint.arrays.values() if array.dtype.kind == "f")


def _raw(leaf: Any) -> np.ndarray:
    is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)
