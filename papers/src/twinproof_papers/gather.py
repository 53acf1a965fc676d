"""Picking numbers and lines out of cells that were attacked, in per cent; sizes are those of the papers ([-1, 1])."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from twinproof.errors import DataError
from twinproof_papers.cell import Measured
from twinproof_papers.experiment import in_input_units, in_paper_scale
from twinproof_papers.findings import Line
from twinproof_papers.under_attack import UnderAttack

Reading = Callable[[Measured], float]
Samples = tuple[tuple[float, ...], ...]
"""For each place or setting (attack, size, budget) one number for each repetition."""
Look = tuple[str, str, int]
"""Label, kind and colour of a line."""


def repetitions(done: Sequence[Measured], method: str, epsilon: float | None = None) -> list[Measured]:
    """The repetitions of one model, in order."""
    found = [one for one in done if one.cell.method == method and one.cell.training.get("epsilon") == epsilon]
    if not found:
        raise DataError("a model was not measured", where=method, got="no cells", wanted=f"epsilon {epsilon}")
    return sorted(found, key=lambda one: one.cell.repetition)


def values(done: Sequence[Measured], method: str, read: Reading, epsilon: float | None = None) -> tuple[float, ...]:
    return tuple(read(one) for one in repetitions(done, method, epsilon))


def samples(
    done: Sequence[Measured], method: str, readings: Sequence[Reading], budgets: Sequence[float | None] = (None,)
) -> Samples:
    return tuple(values(done, method, read, epsilon) for epsilon in budgets for read in readings)


def budgets_of(done: Sequence[Measured]) -> tuple[float, ...]:
    """The privacy budgets, from small to large; of published variants, what they claim."""
    given = {one.cell.training.get("epsilon") for one in done}
    return tuple(sorted(float(epsilon) for epsilon in given if epsilon is not None))


def attacks_of(done: Sequence[Measured]) -> tuple[str, ...]:
    return _plan(done[0]).attacks


def sizes_of(done: Sequence[Measured]) -> tuple[float, ...]:
    return tuple(in_paper_scale(size) for size in _plan(done[0]).sizes)


def line_places(done: Sequence[Measured]) -> tuple[float, ...]:
    return tuple(in_paper_scale(size) for size in _plan(done[0]).line)


def conventional(attack: str, size: float) -> Reading:
    return lambda one: 100 * float(one.numbers["conventional"][attack][_place(_plan(one).sizes, size)])


def adaptive(size: float) -> Reading:
    return lambda one: 100 * float(one.numbers["adaptive"][f"{in_input_units(size):.12g}"])


def has_adaptive(done: Sequence[Measured], size: float) -> bool:
    return all(in_input_units(size) in _plan(one).adaptive_sizes for one in done)


def certified_there(bound: str, attack: str, size: float) -> Reading:
    """The papers' certified accuracy: at the attacked inputs."""
    return lambda one: 100 * float(one.numbers["certified_there"][bound][attack][_place(_plan(one).sizes, size)])


def certified_line(bound: str, size: float) -> Reading:
    """Certified accuracy at the test images themselves."""
    return lambda one: 100 * float(one.numbers["certified"][bound][_place(_plan(one).line, size)])


def certified_there_line(
    done: Sequence[Measured], method: str, bound: str, attacks: Sequence[str], look: Look, epsilon: float | None = None
) -> Line:
    """Certified accuracy at the attacked inputs against the size, a mean over ``attacks``."""
    sizes = sizes_of(done)
    readings = [mean_of([certified_there(bound, attack, size) for attack in attacks]) for size in sizes]
    return Line(*look, sizes, samples(done, method, readings, (epsilon,)))


def certified_at_images(done: Sequence[Measured], method: str, bound: str, look: Look, epsilon: float | None = None) -> Line:
    """The certified line: certified accuracy at the test images themselves against the size."""
    places = line_places(done)
    readings = [certified_line(bound, place) for place in places]
    return Line(*look, places, samples(done, method, readings, (epsilon,)), marked=False)


def clean(one: Measured) -> float:
    return 100 * float(one.numbers["clean"])


def mean_of(readings: Sequence[Reading]) -> Reading:
    return lambda one: fmean(read(one) for read in readings)


def _plan(one: Measured) -> UnderAttack:
    measurement = one.cell.measurement
    if not isinstance(measurement, UnderAttack):
        raise DataError(
            "this cell was not attacked", where=one.cell.name, got=type(measurement).__name__, wanted="a cell under attack"
        )
    return measurement


def _place(places: tuple[float, ...], size: float) -> int:
    wanted = in_input_units(size)
    if wanted not in places:
        raise DataError("no cell was measured at this size", where="size", got=size, wanted=", ".join(map(str, places)))
    return places.index(wanted)
