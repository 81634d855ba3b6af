"""Learning curves: what is kept of a run, and that pictures and tables on the page are those of the curves."""

from typing import Any

import pytest

import curves
from fragmenta.zoo import RECIPES

FILES = sorted(path.stem for path in curves.KEPT.glob("*.json"))


def test_a_point_is_the_mean_of_enough_episodes() -> None:
    records: list[dict[str, Any]] = [
        {"episodes": 0, "return_mean": None},
        {"episodes": 2, "return_mean": 1.0},
        {"episodes": 1, "return_mean": 4.0},
        {"episodes": 3, "return_mean": 5.0},
    ]
    assert curves.curve(records, 3) == [None, 1.0, 2.0, 5.0]
    assert curves.curve(records, 4) == [None, 1.0, 2.0, 4.75]


def test_points_are_at_equal_distances_and_the_last_is_the_end() -> None:
    assert curves.places(4) == [0, 1, 2, 3]
    assert curves.places(250)[:3] == [1, 4, 6]
    assert (len(curves.places(250)), curves.places(250)[-1]) == (curves.POINTS, 249)


@pytest.mark.parametrize("name", FILES)
def test_three_seeds_reached_what_the_recipe_expects(name: str) -> None:
    """Unless they were trained shorter."""
    recipe, kept = curves.CURVES[name], curves.read(curves.CURVES[name])
    assert len(kept["reached"]) == len(kept["returns"]) == 3
    assert all(len(returns) == len(kept["steps"]) <= curves.POINTS for returns in kept["returns"])
    assert kept["steps"][-1] < 0.98 * recipe.steps or min(kept["reached"]) >= recipe.expected
    assert name not in RECIPES or recipe.is_measured or kept["steps"][-1] < 0.98 * recipe.steps


def test_every_curve_is_in_a_picture_and_a_table() -> None:
    panels = [panel for group in curves.GROUPS.values() for panel in group]
    assert sorted(recipe.name for panel in panels for recipe in panel.recipes) == FILES
    page = curves.PAGE.read_text()
    assert curves.with_tables(page) == page, "python benchmarks/curves.py writes it again"
    for group, panels in curves.GROUPS.items():
        assert (f"(images/curves_{group}.png)" in page) == any(panel.recipes for panel in panels)
        assert (curves.DOCS / "images" / f"curves_{group}.png").exists() == any(panel.recipes for panel in panels)
