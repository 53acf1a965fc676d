"""Which learned weights a cell starts from, as far as its name must tell: the settings only say that there are some."""

from __future__ import annotations

from typing import Any

from twinproof.layers.prior import PRIOR_NETWORK, PRIOR_WIDTH, Prior, prior_sha256
from twinproof.recipes.config import TrainConfig
from twinproof.recipes.resumption import SECTION

FIRST_PRIOR = "d67589bc92a269ea452aca5a1d9c88cc736ea792f79b45443b5df1f25caff108"
"""SHA-256 of the weights that all cells started from before names told: theirs stay as they are."""


def told_prior(config: TrainConfig) -> dict[str, Any]:
    """What the settings of a cell say of the shipped weights, as run.json says it; nothing where they play no part.

    Guarantees
        Two cells that start from different learned weights have different settings, and so different names. Settings do not
        change with the shipped file where a cell starts at random, nor while the file is the first one.
    """
    if not may_start_from_prior(config):
        return {}
    shipped = prior_sha256()
    return {} if shipped == FIRST_PRIOR else {SECTION: {"name": str(Prior.FIGURES), "sha256": shipped}}


def may_start_from_prior(config: TrainConfig) -> bool:
    """Whether training starts from the shipped weights. What only the shape of the data decides counts as yes.

    A cell that is made twice costs time; one that is reused with other weights behind it is wrong.
    """
    if config.prior is not None:
        return config.prior is Prior.FIGURES
    has_some = config.model in (None, PRIOR_NETWORK) and config.width == PRIOR_WIDTH
    return config.spec.starts_from_prior and has_some
