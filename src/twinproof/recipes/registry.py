"""All recipes by name: the library's, and those that other packages register (``twinproof.extensions``)."""

from __future__ import annotations

import difflib

from twinproof.errors import ConfigError
from twinproof.extensions import Group, Plugin, find, names, permitted, plugin_of
from twinproof.guarantee import Status
from twinproof.recipes import adlm, dpcert, dpsgd, interval, pixeldp, stobatch, twinproof
from twinproof.recipes.recipe import SOUND, Recipe

# One module for each family; every recipe that one defines is found there.
FAMILIES = (dpsgd, dpcert, twinproof, interval, pixeldp, stobatch, adlm)
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for family in FAMILIES for recipe in vars(family).values() if isinstance(recipe, Recipe)
}


def recipe_names() -> list[str]:
    """All names; nothing from outside is loaded."""
    return list(dict.fromkeys([*RECIPES, *names(Group.RECIPES)]))


def all_recipes() -> list[Recipe]:
    """Every recipe that can be loaded."""
    outside = (find(Group.RECIPES, name, Recipe) for name in names(Group.RECIPES) if name not in RECIPES)
    return [*RECIPES.values(), *(recipe for recipe in outside if recipe is not None)]


def known_recipe(name: str) -> Recipe | None:
    """The recipe of that name, if there is one."""
    found: Recipe | None = RECIPES.get(name) or find(Group.RECIPES, name, Recipe)
    return found


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or an error that suggests one."""
    if (found := known_recipe(name)) is not None:
        return found
    near = difflib.get_close_matches(name, recipe_names(), n=1)
    raise ConfigError(
        "there is no such recipe",
        where="recipe",
        got=name,
        wanted=" or ".join(recipe_names()),
        fix=f"did you mean {near[0]!r}?" if near else "see `twinproof recipes`",
    )


def privacy_status(recipe: Recipe) -> Status:
    """What the recipe may claim: ``proven`` for those of this package alone."""
    return recipe.privacy_status if RECIPES.get(recipe.name) is recipe else permitted(recipe.privacy_status)


def recipe_plugins(recipe: str, variant: str) -> list[Plugin]:
    """Which of the two come from outside of this package, and from where."""
    places = [] if recipe in RECIPES else [plugin_of(Group.RECIPES, recipe)]
    places += [] if variant == SOUND else [plugin_of(Group.VARIANTS, f"{recipe}.{variant}")]
    return [place for place in places if place is not None]
