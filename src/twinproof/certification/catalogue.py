"""All robustness bounds by name and noise: a closed set, since a promise depends on the choice."""

from __future__ import annotations

from collections.abc import Mapping

from twinproof.certification.bounds import (
    HGM,
    Composition,
    HGMComplement,
    PixelDPGaussian,
    PixelDPLaplace,
    RobustnessBound,
    TightGaussian,
    TightLaplace,
)
from twinproof.certification.published_bounds import PublishedComposition, PublishedHGM
from twinproof.errors import ConfigError
from twinproof.layers.noise import Law

_BOUNDS: tuple[RobustnessBound, ...] = (
    TightGaussian(),
    TightLaplace(),
    HGM(),
    HGMComplement(),
    PixelDPGaussian(),
    PixelDPLaplace(),
    Composition(),
    PublishedHGM(),
    PublishedComposition(),
)
_BY_NAME: Mapping[tuple[str, Law], RobustnessBound] = {(bound.name, bound.law): bound for bound in _BOUNDS}
BOUND_NAMES: tuple[str, ...] = tuple(dict.fromkeys(bound.name for bound in _BOUNDS))


def find_bound(name: str, law: Law, place: str | None = None) -> RobustnessBound:
    """The bound of that name for noise of that law, and at that ``place`` where one is given; the error lists what there is."""
    found = _BY_NAME.get((name, law))
    if found is None or not _speaks_of(found, place):
        noise = f"{law} noise" if found is None else f"{law} noise at the place {place!r}"
        there = ", ".join(bound.name for bound in _BOUNDS if bound.law == law and _speaks_of(bound, place))
        raise ConfigError(
            f"there is no such bound for {noise}" if name in BOUND_NAMES else "there is no such bound",
            where="bound",
            got=name,
            wanted=f"one of: {there}",
            fix="tight is never smaller than the other sound ones",
        )
    return found


def _speaks_of(bound: RobustnessBound, place: str | None) -> bool:
    return None in (bound.place, place) or bound.place == place
