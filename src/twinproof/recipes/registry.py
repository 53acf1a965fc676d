"""All recipes by name."""

from __future__ import annotations

import difflib

from twinproof.errors import ConfigError
from twinproof.recipes.adlm import ADLM
from twinproof.recipes.dpcert import DPCERT_CONSISTENCY, DPCERT_GAUSSIAN, DPCERT_MACER, DPCERT_SMOOTHADV, DPCERT_STABILITY
from twinproof.recipes.dpsgd import DPSGD, GAUSSIAN, PSAC, REGULAR
from twinproof.recipes.pixeldp import HGM_PIXELDP, PIXELDP, SECURESGD, SECURESGD_AGM
from twinproof.recipes.recipe import Recipe
from twinproof.recipes.stobatch import STOBATCH
from twinproof.recipes.twinproof import TWINPROOF

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        REGULAR,
        GAUSSIAN,
        DPSGD,
        PSAC,
        DPCERT_GAUSSIAN,
        DPCERT_SMOOTHADV,
        DPCERT_STABILITY,
        DPCERT_CONSISTENCY,
        DPCERT_MACER,
        TWINPROOF,
        PIXELDP,
        HGM_PIXELDP,
        SECURESGD,
        SECURESGD_AGM,
        STOBATCH,
        ADLM,
    )
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
