"""Groups of runs, and intervals over their seeds."""

from pathlib import Path

import numpy as np
import pytest

from fragmenta.pictures.comparison import arrival, group_runs, remarks, target_return
from fragmenta.pictures.comparison_picture import comparison_figure
from fragmenta.pictures.intervals import estimate
from fragmenta.pictures.run_files import read_run_files
from made_runs import made_run


def read(*paths: Path):
    return [read_run_files(path) for path in paths]


def test_interquartile_mean_and_interval_equal_those_of_rliable() -> None:
    scores = np.random.default_rng(3).normal(size=(8, 5))
    interval = estimate(scores)
    from rliable.metrics import aggregate_iqm

    assert np.allclose(interval.middle, [aggregate_iqm(scores[:, [column]]) for column in range(5)])
    assert interval.low is not None
    assert interval.high is not None
    assert (interval.low < interval.middle).all()
    assert (interval.middle < interval.high).all()
    assert (interval.high - interval.low < np.ptp(scores, axis=0)).all()


def test_intervals_are_reproducible_and_do_not_touch_the_global_random_state() -> None:
    scores = np.random.default_rng(3).normal(size=(9, 4))
    np.random.seed(7)
    expected = np.random.random(3)
    np.random.seed(7)
    first = estimate(scores)
    assert np.array_equal(np.random.random(3), expected)
    second = estimate(scores)
    assert np.array_equal(first.low, second.low)  # pyright: ignore[reportArgumentType]
    assert np.array_equal(first.high, second.high)  # pyright: ignore[reportArgumentType]


def test_one_run_has_no_interval() -> None:
    interval = estimate(np.asarray([[1.0, 2.0]]))
    assert interval.middle.tolist() == [1.0, 2.0]
    assert interval.low is None
    assert interval.high is None


def test_groups_are_named_by_what_differs(tmp_path: Path) -> None:
    runs = read(
        *(made_run(tmp_path / f"a{seed}", seed) for seed in (0, 1, 2)),
        made_run(tmp_path / "b0", 0, learning_rate=0.0003),
        made_run(tmp_path / "c0", 0, policy="central", replicas=2, devices=["cpu:0", "cpu:1"]),
        made_run(tmp_path / "c1", 0, policy="central", replicas=4, devices=["cpu:0", "cpu:1"]),
        made_run(tmp_path / "d0", 0, algorithm="a2c", policy="central"),
    )
    groups = group_runs(runs)
    assert {group.label: len(group.runs) for group in groups} == {
        "ppo, fused, learning_rate 0.001": 3,
        "ppo, fused, learning_rate 0.0003": 1,
        "ppo, central, replicas 2, learning_rate 0.001": 1,
        "ppo, central, replicas 4, learning_rate 0.001": 1,
        "a2c, central": 1,
    }
    assert [group.label for group in group_runs(runs[:3])] == ["ppo, fused"]


def test_curve_final_and_arrival(tmp_path: Path) -> None:
    paths = [made_run(tmp_path / f"fast{seed}", seed, slope=5.0) for seed in (0, 1, 2)]
    paths += [made_run(tmp_path / f"slow{seed}", seed, slope=1.0, learning_rate=0.1) for seed in (0, 1)]
    fast, slow = group_runs(read(*paths))
    # The latest 100 episodes are those of the last five iterations, so their mean is that of two iterations ago.
    assert fast.final.middle[0] == pytest.approx(5 * 37 + 1)
    assert slow.final.middle[0] == pytest.approx(37 + 0.5)
    assert (fast.steps[0], fast.steps[-1]) == (100, 4000)
    assert fast.curve.middle[-1] == pytest.approx(fast.final.middle[0])
    assert fast.best == pytest.approx(5 * 37 + 2)
    assert fast.steps_per_second == 1000.0
    target = target_return([fast, slow], "CartPole-v1", 0.5)
    assert target == pytest.approx(1 + 0.5 * (186 - 1))
    reached = arrival(fast, target)
    assert reached is not None
    assert reached.reached == 3
    assert reached.steps == 2200
    assert reached.seconds == pytest.approx(2.2)
    assert arrival(slow, target) is None


def test_a_shorter_run_and_a_duplicate_seed_are_reported(tmp_path: Path) -> None:
    whole = made_run(tmp_path / "whole")
    short = made_run(tmp_path / "short", iterations=10, finished=False)
    (group,) = group_runs(read(whole, short))
    assert group.steps[-1] == 1000
    assert remarks([group]) == [
        "ppo, fused: seed 0 more than once, but the intervals assume independent runs",
        f"ppo, fused: the curve ends at 1,000 steps, as {short} does",
    ]


def test_a_panel_per_environment_and_a_colour_per_group(tmp_path: Path) -> None:
    paths = [made_run(tmp_path / f"{env}{seed}", seed, env=env) for env in ("A", "B", "C", "D") for seed in (0, 1)]
    figure = comparison_figure(group_runs(read(*paths)))
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title(loc="left") for axes in panels] == [f"ppo on {env}" for env in "ABCD"]
    assert len({axes.lines[0].get_color() for axes in panels}) == 1
