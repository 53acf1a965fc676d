"""All robustness bounds by name and noise: the library's, and those that other packages register, which are never proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from twinproof.certification.bounds import (
    HGM,
    BestLaplace,
    Composition,
    HGMComplement,
    PixelDPGaussian,
    PixelDPLaplace,
    PureEpsilon,
    RobustnessBound,
    TightGaussian,
    TightLaplace,
)
from twinproof.certification.method import BEST, Method
from twinproof.errors import ConfigError
from twinproof.extensions import Group, Plugin, find, names, permitted, plugin_of, where_to_get
from twinproof.guarantee import Status
from twinproof.layers.noise import Law, Place
from twinproof.privacy.linear_maps import Norm

_BOUNDS: tuple[RobustnessBound, ...] = (
    TightGaussian(),
    BestLaplace(),
    TightLaplace(),
    PureEpsilon(),
    HGM(),
    HGMComplement(),
    PixelDPGaussian(),
    PixelDPLaplace(),
    Composition(),
)
_BY_NAME: Mapping[tuple[str, Law], RobustnessBound] = {(bound.name, bound.law): bound for bound in _BOUNDS}


def bound_names() -> tuple[str, ...]:
    """The names of all bounds; nothing from outside is loaded."""
    outside = (name.rpartition(".")[0] for name in names(Group.BOUNDS))
    return tuple(dict.fromkeys([BEST, *(bound.name for bound in _BOUNDS), *outside]))


def best_bound(law: Law) -> str:
    """The name of the bound that ``best`` asks for: one is tight for Gaussian noise, and no single one for Laplace noise."""
    return TightGaussian.name if law is Law.GAUSSIAN else BestLaplace.name


def refuse_loose(method: Method, law: Law, place: str) -> None:
    """Refuses to call new radii tight that are not."""
    if (method.bound, law) == (TightLaplace.name, Law.LAPLACE) and (method.norm, place) != (Norm.L1, Place.INPUT):
        raise ConfigError(
            "this bound is not tight here",
            where="bound",
            got=f"{method.bound} for {law} noise, {method.norm}, {place}",
            wanted=f"tight for {law} noise in {Norm.L1} at the {Place.INPUT}",
            fix=f"leave --bound out for the longest radii that are proven, or take {PureEpsilon.name}",
        )


def find_bound(name: str, law: Law, place: str | None = None) -> RobustnessBound:
    """The bound of that name for noise of that law, and at that ``place`` where one is given; the error lists what there is."""
    name = best_bound(law) if name == BEST else name
    found = _BY_NAME.get((name, law)) or _from_outside(f"{name}.{law}")
    if found is None or not _speaks_of(found, place):
        noise = f"{law} noise" if found is None else f"{law} noise at the place {place!r}"
        outside = (_from_outside(known) for known in names(Group.BOUNDS) if known.endswith(f".{law}"))
        every = [bound for bound in (*_BOUNDS, *outside) if bound is not None]
        fitting = (bound.name for bound in every if bound.law == law and _speaks_of(bound, place))
        there = ", ".join(dict.fromkeys([BEST, *fitting]))
        raise ConfigError(
            f"there is no such bound for {noise}" if name in bound_names() else "there is no such bound",
            where="bound",
            got=name,
            wanted=f"one of: {there}",
            fix=where_to_get(name) or "best is never shorter than the other sound ones",
        )
    return found


def _from_outside(name: str) -> RobustnessBound | None:
    """One instance of a registered class; None where there is none, or it is another kind of thing."""
    made: RobustnessBound | None = find(Group.BOUNDS, name, RobustnessBound)
    return made if made is None or f"{made.name}.{made.law}" == name else None


def bound_plugin(bound: RobustnessBound) -> Plugin | None:
    """Where a bound comes from; None for the library's own."""
    found = None if any(bound is own for own in _BOUNDS) else plugin_of(Group.BOUNDS, f"{bound.name}.{bound.law}")
    return None if found is None else replace(found, name=bound.name)  # the law stands in the certificates


def status_of(bound: RobustnessBound) -> Status:
    """The status of radii by this bound: what it claims, but ``proven`` for the library's own alone.

    Guarantees
        It is where the bound was registered that decides, never what its class says about itself.
    """
    ours = any(bound is own for own in _BOUNDS)
    return bound.status if ours else permitted(bound.status)


def _speaks_of(bound: RobustnessBound, place: str | None) -> bool:
    return None in (bound.place, place) or bound.place == place
