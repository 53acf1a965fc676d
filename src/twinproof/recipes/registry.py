"""All recipes by name."""

from __future__ import annotations

import difflib

from twinproof.errors import ConfigError
from twinproof.recipes.adlm import ADLM
from twinproof.recipes.dpcert_consistency import DPCERT_CONSISTENCY
from twinproof.recipes.dpcert_gaussian import DPCERT_GAUSSIAN
from twinproof.recipes.dpcert_macer import DPCERT_MACER
from twinproof.recipes.dpcert_smoothadv import DPCERT_SMOOTHADV
from twinproof.recipes.dpcert_stability import DPCERT_STABILITY
from twinproof.recipes.dpsgd import DPSGD
from twinproof.recipes.gaussian import GAUSSIAN
from twinproof.recipes.hgm_pixeldp import HGM_PIXELDP
from twinproof.recipes.pixeldp import PIXELDP
from twinproof.recipes.psac import PSAC
from twinproof.recipes.recipe import Recipe
from twinproof.recipes.regular import REGULAR
from twinproof.recipes.securesgd import SECURESGD
from twinproof.recipes.securesgd_agm import SECURESGD_AGM
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
