"""The zoo: recipes by name, each with the return that it must reach."""

from fragmenta.errors import unknown
from fragmenta.zoo.classic import CLASSIC
from fragmenta.zoo.games import GAMES
from fragmenta.zoo.recipe import Recipe
from fragmenta.zoo.robots import ROBOTS
from fragmenta.zoo.teams import TEAMS
from fragmenta.zoo.training import RecipeCheck, train_recipe

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (*CLASSIC, *GAMES, *ROBOTS, *TEAMS)}


def recipe_named(name: str) -> Recipe:
    """The recipe with that name; ConfigError with the closest one if there is none."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]


__all__ = ["CLASSIC", "GAMES", "RECIPES", "ROBOTS", "TEAMS", "Recipe", "RecipeCheck", "recipe_named", "train_recipe"]
