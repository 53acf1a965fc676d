"""Other ways to carry out a recipe: ``sound`` is the library's, everything else is an extension.

``published``, a recipe by the formulas of its paper, comes with ``twinproof-papers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel
from torch import nn, optim

from twinproof.errors import ConfigError
from twinproof.extensions import PUBLISHED as PUBLISHED
from twinproof.extensions import Group, find, names, where_to_get
from twinproof.guarantee import Status
from twinproof.keys import Key
from twinproof.training.per_example.paths import RecordLoss
from twinproof.training.sources import GradientSource, PlainGradients

SOUND = "sound"


class Holds(Protocol):
    """What is done to a network before the first step and after each one."""

    def apply(self, network: nn.Module) -> None:
        """Changes the network in place."""


@dataclass(frozen=True)
class Variant:
    """What a variant changes of its recipe.

    ``status`` is what it claims about privacy, and ``refutation`` why that is false. ``defaults`` are put over the recipe's.
    ``section`` is a settings section of its own, by name. ``deviations`` replaces the noise of a mechanism
    at sensitivity 1, by (epsilon, delta). ``unpaid_shares``: a noise layer's shares are taken from the training records as they
    are.

    Where no plan can count the steps, ``source`` makes their gradients from plain ones. Such a variant promises no privacy: its
    ledger spends nothing and no epsilon is printed. ``check`` refuses a network of which they cannot be made.

    ``network`` adds modules to the bare network, when it is made and when it is opened; ``prepare`` fills them in before the
    first step; ``constraint`` holds them afterwards.
    """

    recipe: str
    name: str
    status: Status
    refutation: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    section: tuple[str, type[BaseModel]] | None = None
    deviations: Mapping[str, Callable[[float, float], float]] = field(default_factory=dict)
    unpaid_shares: bool = False
    loss: RecordLoss | None = None
    source: Callable[[Any, PlainGradients, nn.Module, Key], GradientSource] | None = None
    check: Callable[[nn.Module], object] | None = None
    optimizer: Callable[[nn.Module, float], optim.Optimizer] | None = None
    default_network: Callable[[tuple[int, ...]], str] | None = None
    network: Callable[[nn.Module, tuple[int, ...]], nn.Module] | None = None
    prepare: Callable[[nn.Module, Any], None] | None = None
    constraint: Callable[[], Holds] | None = None


def variants_of(recipe: str) -> list[str]:
    """The names of the recipe's variants that are installed; nothing is loaded."""
    known = (name.rpartition(".") for name in names(Group.VARIANTS))
    return [SOUND, *(name for of, _, name in known if of == recipe)]


def find_variant(recipe: str, name: str) -> Variant | None:
    """The variant of that name; None for ``sound``, which changes nothing."""
    if name == SOUND:
        return None
    found: Variant | None = find(Group.VARIANTS, f"{recipe}.{name}", Variant)
    if found is None:
        others = [of for of, _, other in (known.rpartition(".") for known in names(Group.VARIANTS)) if other == name]
        raise ConfigError(
            f"this recipe has no {name} variant" if others else f"there is no {name} variant",
            where="variant",
            got=f"{name!r}, with {recipe}",
            wanted=" or ".join(others) if others else " or ".join(variants_of(recipe)),
            fix=where_to_get(name) or "leave variant out",
        )
    return found


def variants_with_section(section: str | None = None) -> list[Variant]:
    """Every installed variant that has a settings section, of this name where one is given."""
    every = (find(Group.VARIANTS, name, Variant) for name in names(Group.VARIANTS))
    with_one = [found for found in every if found is not None and found.section is not None]
    return [found for found in with_one if section is None or (found.section or ("",))[0] == section]
