"""The settings of what a recipe does with the copies of one record beyond averaging their cross-entropy.

Each recipe reads some of these fields; its defaults name them all. docs/recipes.md has the values of the papers, of their
programs and of the systems that they adapt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from twinproof.errors import ConfigError

Setting = Literal[
    "weight",
    "eta",
    "beta",
    "macer_gamma",
    "radius",
    "attack_steps",
    "warm_up_epochs",
    "xi",
    "attack_size",
    "attack_stride",
]
FIELD = "regulariser"


class RegulariserConfig(BaseModel):
    """Settings of a regulariser or of an attack on the copies; None means: not read by this recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="gamma or lambda: weight of the term")
    eta: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="weight of the mean prediction's entropy")
    beta: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="MACER: inverse temperature of softmax")
    macer_gamma: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="MACER: margins above it do not count"
    )
    radius: float | None = Field(default=None, gt=0, allow_inf_nan=False, description="attack on the copies, l2, input units")
    attack_steps: int | None = Field(default=None, ge=1, le=100, description="steps of that attack")
    warm_up_epochs: int | None = Field(default=None, ge=0, description="epochs in which its radius grows to the full one")

    xi: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="StoBatch: weight of adversarial copies")
    attack_size: float | None = Field(
        default=None, gt=0, le=1, description="StoBatch: largest attack on the copies, linf, input units"
    )
    attack_stride: float | None = Field(
        default=None, gt=0, le=100, description="StoBatch: length of a step of the attacks, times steps over size"
    )

    def value(self, name: Setting) -> float:
        """A setting that the recipe reads."""
        found: float | None = getattr(self, name)
        if found is None:
            raise _missing([name], "none")
        return found


def reading(regulariser: RegulariserConfig | None, name: Setting) -> float:
    """The setting ``name`` of a recipe that has a regulariser."""
    if regulariser is None:
        raise _missing([name], "no regulariser")
    return regulariser.value(name)


def check_regulariser(recipe: str, regulariser: RegulariserConfig | None, defaults: Mapping[str, Any] | None) -> None:
    """Refuses settings that the recipe does not read, and the lack of one that it does; ``defaults`` names those it reads."""
    given = {} if regulariser is None else regulariser.model_dump(exclude_none=True)
    read = {} if defaults is None else defaults
    strange = [name for name in given if name not in read]
    if strange:
        raise ConfigError(
            "this recipe does not read every setting of the regulariser",
            where=", ".join(f"{FIELD}.{name}" for name in strange),
            got=f"{', '.join(f'{name} = {given[name]}' for name in strange)}, with {recipe}",
            wanted=", ".join(read) or "no regulariser",
            fix="leave them out, or choose another recipe",
        )
    missing = [name for name in read if name not in given]
    if missing:
        raise _missing(missing, "none")


def _missing(names: Iterable[str], got: str) -> ConfigError:
    return ConfigError(
        "the recipe reads a setting that is not there",
        where=", ".join(f"{FIELD}.{name}" for name in names),
        got=got,
        wanted="a number",
        fix="leave it out, so that the recipe's own value is taken",
    )
