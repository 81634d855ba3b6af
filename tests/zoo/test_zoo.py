"""The zoo: recipes that are valid, and a check that can fail."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

import zoo_table
from fragmenta.cli.arguments import read
from fragmenta.cli.main import main
from fragmenta.cli.train import TrainOptions
from fragmenta.envs import make
from fragmenta.errors import ConfigError
from fragmenta.training.stopping import StoppedError
from fragmenta.zoo import CLASSIC, GAMES, RECIPES, ROBOTS, TEAMS, Recipe, RecipeCheck, recipe_named, train_recipe
from fragmenta.zoo.recipe import Reference

QUICK = Recipe(
    "quick",
    "ppo",
    "CartPole-v1",
    4_096,
    5.0,
    Reference("gravity", "https://example.org", 9.0, note="a pole that nobody holds"),
    hyper_parameters={"num_envs": 8, "horizon": 16, "hidden": (8,), "epochs": 1},
)


def test_names_are_unique_and_there_are_enough() -> None:
    assert len(RECIPES) == len(CLASSIC) + len(GAMES) + len(ROBOTS) + len(TEAMS) >= 25
    assert all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)+", name) for name in RECIPES)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_the_printed_command_trains_the_recipe(recipe: Recipe) -> None:
    algorithm, env, _ = read("train", TrainOptions, recipe.train_arguments()[1:])
    assert (algorithm, env) == (recipe.make_algorithm(), recipe.env)
    assert algorithm.total_steps == recipe.steps
    defaults = type(algorithm)()
    same = [name for name, value in recipe.hyper_parameters.items() if getattr(defaults, name) == value]
    assert len(same) < max(1, len(recipe.hyper_parameters)), f"all of {same} are defaults"


@pytest.mark.brief("*-cartpole", "*-pendulum", "*-acrobot", "*-mountaincar", "ppo-hopper", "sac-hopper")
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_hyper_parameters_suit_the_environment(recipe: Recipe) -> None:
    try:
        env = make(recipe.env)
    except ConfigError as error:
        pytest.skip(str(error))
    recipe.make_algorithm().validate(env)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_what_was_measured_is_enough(recipe: Recipe) -> None:
    assert all(value >= recipe.expected for value in recipe.measured)
    assert recipe.expected <= recipe.reference.figure or recipe.is_measured, "a goal beyond what anybody reached"


def test_a_reference_says_who_reached_what_and_when() -> None:
    reference = Reference("CleanRL", "https://docs.cleanrl.dev", 9635, 1_000_000, "± 1,424, on v2")
    assert str(reference) == "CleanRL: 9,635 at 1,000,000 steps (± 1,424, on v2)"
    assert QUICK.source == "gravity: 9 (a pole that nobody holds)"


def test_every_seed_must_reach_it_in_enough_episodes() -> None:
    assert RecipeCheck(QUICK, 4_096, (6.0, 5.0), (100, 200)).is_ok
    assert not RecipeCheck(QUICK, 4_096, (6.0, 4.9), (200, 200)).is_ok
    few = RecipeCheck(QUICK, 4_096, (6.0, 5.0), (200, 99))
    assert str(few) == "reached 6.00, 5.00, expected 5.00: too few episodes: 99 of 100"
    assert not few.is_ok
    assert str(RecipeCheck(QUICK, 64, (6.0, None), (1, 0))) == "reached 6.00, no episode, expected 5.00: below"


@pytest.mark.full
@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_seeds_are_trained_together_or_one_after_another(env: str, tmp_path: Path) -> None:
    check = train_recipe(dataclasses.replace(QUICK, env=env), 3, 2, run_dir=tmp_path / "run", progress=False)
    assert check.is_ok
    assert len(set(check.returns)) == len(set(check.episodes)) == 2
    assert (check.steps, min(check.episodes) >= 100) == (4_096, True)
    assert {path.name for path in (tmp_path / "run").glob("seed-*")} == {"seed-3", "seed-4"}


def test_the_command_lists_all_recipes(capsys: Any) -> None:
    assert main(["zoo"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in RECIPES)
    assert "not run yet" in listed


@pytest.fixture
def quick_ones(monkeypatch: Any, tmp_path: Path) -> None:
    """A recipe that reaches what it should, and one that cannot; runs are written to an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(RECIPES, "quick", QUICK)
    monkeypatch.setitem(RECIPES, "hopeless", dataclasses.replace(QUICK, name="hopeless", expected=400.0))


@pytest.mark.usefixtures("quick_ones")
def test_the_command_trains_and_checks(tmp_path: Path, capsys: Any) -> None:
    assert main(["zoo", "quick", "--run-dir", "run"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("quick: fragmenta train ppo CartPole-v1 --num-envs 8 --horizon 16 --hidden 8")
    assert re.fullmatch(r"quick: reached \d+\.\d+, expected 5\.00: ok", last)
    assert (tmp_path / "run" / "config.json").exists()
    assert main(["zoo", "hopeless"]) == 1
    assert "expected 400.0: below" in capsys.readouterr().out
    assert [path.name[:15] for path in (tmp_path / "runs").iterdir()] == ["zoo-hopeless-0-"]


@pytest.mark.full
@pytest.mark.usefixtures("quick_ones")
def test_several_recipes_get_a_table_and_a_directory_each(tmp_path: Path, capsys: Any) -> None:
    assert main(["zoo", "quick", "hopeless", "--run-dir", "both", "--total-steps", "8192"]) == 1
    output = capsys.readouterr().out
    assert re.findall(r"│ (\w+) +│ ([0-9,]+) │ .*│ (ok|below) +│", output) == [
        ("quick", "8,192", "ok"),  # not the steps of the recipe
        ("hopeless", "8,192", "below"),
    ]
    assert output.endswith("2 recipes: 1 ok, 1 below\n")
    assert {path.name for path in (tmp_path / "both").iterdir()} == {"quick", "hopeless"}


@pytest.fixture
def only_three(monkeypatch: Any, tmp_path: Path) -> dict[str, Recipe]:
    """Three recipes: of a package that is not installed, one that stops with an exception, and one that is fine."""
    monkeypatch.chdir(tmp_path)
    elsewhere = dataclasses.replace(QUICK, name="elsewhere", env="missing:Game")
    recipes = {one.name: one for one in (elsewhere, dataclasses.replace(QUICK, name="broken"), QUICK)}
    monkeypatch.setattr("fragmenta.cli.zoo.RECIPES", recipes)

    def made(env: str) -> Any:
        if env == "missing:Game":
            raise ConfigError("this environment needs missing: pip install 'fragmenta[missing]'")
        return make(env)

    def trained(recipe: Recipe, *_: Any) -> RecipeCheck:
        if recipe.name == "broken":
            raise ZeroDivisionError("nothing to divide by")
        return RecipeCheck(recipe, 2_048, (9.0,), (150,))

    monkeypatch.setattr("fragmenta.cli.zoo.make", made)
    monkeypatch.setattr("fragmenta.cli.zoo.train_recipe", trained)
    return recipes


@pytest.mark.usefixtures("only_three")
def test_a_recipe_that_fails_does_not_lose_the_others(capsys: Any) -> None:
    assert main(["zoo", "--all"]) == 1
    output = capsys.readouterr()
    assert "in trained\n    raise ZeroDivisionError" in output.err
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.out.splitlines() if "│" in line]
    assert rows == [
        ["elsewhere", "", "5", "", "skipped: this environment needs missing: pip install 'fragmenta[missing]'"],
        ["broken", "", "5", "", "failed: ZeroDivisionError: nothing to divide by"],
        ["quick", "2,048", "5", "9.00", "ok"],
    ]
    assert output.out.endswith("3 recipes: 1 skipped, 1 failed, 1 ok\n")


def test_skipped_recipes_do_not_fail_but_are_counted(only_three: dict[str, Recipe], capsys: Any) -> None:
    del only_three["broken"]
    assert main(["zoo", "--all"]) == 0
    assert capsys.readouterr().out.endswith("2 recipes: 1 skipped, 1 ok\n")


@pytest.mark.usefixtures("only_three")
def test_an_interrupted_command_shows_what_was_reached(monkeypatch: Any, capsys: Any) -> None:
    def interrupted(recipe: Recipe, *_: Any) -> RecipeCheck:
        if recipe.name == "quick":
            raise StoppedError(2, "SIGINT: saved")
        return RecipeCheck(recipe, 2_048, (9.0,), (150,))

    monkeypatch.setattr("fragmenta.cli.zoo.train_recipe", interrupted)
    assert main(["zoo", "--all"]) == 130
    assert capsys.readouterr().out.endswith("2 recipes: 1 skipped, 1 ok\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ppo-cartpol"], "unknown recipe 'ppo-cartpol': did you mean 'ppo-cartpole'?"),
        (["ppo-cartpole", "--seeds", "0"], "seeds is 0: it must be at least 1"),
        (["ppo-cartpole", "--all"], "give one or the other"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], message: str, capsys: Any) -> None:
    assert main(["zoo", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


def test_a_missing_package_is_named_before_anything_is_trained(monkeypatch: Any, capsys: Any) -> None:
    def missing(*_: Any) -> None:
        raise ConfigError("this environment needs brax: pip install 'fragmenta[brax]'")

    monkeypatch.setattr("fragmenta.cli.zoo.make", missing)
    assert main(["zoo", "ppo-brax-ant"]) == 2
    assert capsys.readouterr() == ("", "fragmenta: this environment needs brax: pip install 'fragmenta[brax]'\n")


def test_an_unknown_recipe() -> None:
    with pytest.raises(ConfigError, match="unknown recipe"):
        recipe_named("quick")


def test_the_page_has_the_table() -> None:
    page = zoo_table.PAGE.read_text()
    assert zoo_table.with_table(page) == page, "python docs/zoo_table.py writes it again"
