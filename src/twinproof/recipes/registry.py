"""All recipes by name."""

from __future__ import annotations

import difflib

from twinproof.errors import ConfigError
from twinproof.recipes.dpcert_gaussian import DPCERT_GAUSSIAN
from twinproof.recipes.dpsgd import DPSGD
from twinproof.recipes.hgm_pixeldp import HGM_PIXELDP
from twinproof.recipes.pixeldp import PIXELDP
from twinproof.recipes.recipe import Recipe
from twinproof.recipes.regular import REGULAR
from twinproof.recipes.securesgd import SECURESGD
from twinproof.recipes.securesgd_agm import SECURESGD_AGM

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (REGULAR, DPSGD, DPCERT_GAUSSIAN, PIXELDP, HGM_PIXELDP, SECURESGD, SECURESGD_AGM)
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, or an error that suggests one."""
    if name in RECIPES:
        return RECIPES[name]
    near = difflib.get_close_matches(name, RECIPES, n=1)
    raise ConfigError(
        "there is no such recipe",
        where="recipe",
        got=name,
        wanted=" or ".join(RECIPES),
        fix=f"did you mean {near[0]!r}?" if near else "see `twinproof recipes`",
    )
