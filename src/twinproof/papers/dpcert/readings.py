"""Picking numbers out of the cells of DP-CERT: shares in per cent, radii in l2 with inputs in [0, 1]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinproof.errors import DataError
from twinproof.papers.cell_store import Measured
from twinproof.papers.dpcert.methods import METHODS
from twinproof.papers.smoothing import FGSM_SIZES, radii_of, sigma_name

Reading = Callable[[Measured], float]
PUBLISHED_RADIUS = 0.25
"""At which Table 2 gives certified accuracy."""


@dataclass(frozen=True)
class Model:
    """Which of the cells: a method on a data set under a sigma, with ``settings`` of its training where those vary."""

    method: str
    source: str
    sigma: float
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


def sources_of(done: Sequence[Measured]) -> tuple[str, ...]:
    """The data sets, in the order of their cells."""
    return tuple(dict.fromkeys(_source(one) for one in done))


def sigmas_of(done: Sequence[Measured]) -> tuple[float, ...]:
    """The sigmas that models were trained for, in order."""
    return tuple(sorted({float(one.cell.training["sigma"]) for one in done if "sigma" in one.cell.training}))


def repetitions(done: Sequence[Measured], model: Model) -> list[Measured]:
    """The repetitions of one model, in order; DataError where there are none, or where several models answer to the name."""
    wanted = dict(model.settings) | ({"sigma": model.sigma} if METHODS[model.method].augmented else {})
    found = [
        one
        for one in done
        if one.cell.method == model.method
        and _source(one) == model.source
        and all(one.cell.training.get(name) == value for name, value in wanted.items())
    ]
    numbers = sorted(one.cell.repetition for one in found)
    if numbers != list(range(len(numbers))) or not numbers:
        raise DataError(
            "a model was not measured, or several were",
            where=f"{model.source}, {model.method}, sigma {model.sigma:g}",
            got=f"repetitions {numbers}",
            wanted="each repetition once",
        )
    return sorted(found, key=lambda one: one.cell.repetition)


def values(done: Sequence[Measured], model: Model, read: Reading) -> tuple[float, ...]:
    """One number for each repetition."""
    return tuple(read(one) for one in repetitions(done, model))


def accuracy(one: Measured) -> float:
    """Accuracy of the network without noise, on all test images."""
    return 100 * float(one.numbers["clean"])


def mean_radius(sigma: float) -> Reading:
    """The average certified radius under noise ``sigma``."""
    return lambda one: float(one.numbers["smoothed"][sigma_name(sigma)]["acr"])


def certified_at(sigma: float, radius: float) -> Reading:
    """Certified accuracy under noise ``sigma`` at one of ``radii_of(sigma)``."""
    place = _place(radii_of(sigma), radius)
    return lambda one: 100 * float(one.numbers["smoothed"][sigma_name(sigma)]["certified"][place])


def fgsm_at(size: float) -> Reading:
    """Accuracy of the network without noise under one linf step of ``size``."""
    place = _place(FGSM_SIZES, size)
    return lambda one: 100 * float(one.numbers["fgsm"][place])


def _source(one: Measured) -> str:
    return str(one.cell.training["data"]["source"])


def _place(places: tuple[float, ...], wanted: float) -> int:
    if wanted not in places:
        raise DataError("nothing was measured there", where="radius or size", got=wanted, wanted=", ".join(map(str, places)))
    return places.index(wanted)
