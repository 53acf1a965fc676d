"""Finished cells with numbers that are known in advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twinproof_papers.cell import Cell, Measured
from twinproof_papers.experiment import in_paper_scale
from twinproof_papers.methods import METHODS, MethodOfPaper, promised
from twinproof_papers.under_attack import PUBLISHED, UnderAttack, bounds_for

MADE = {"device": "cpu: test", "versions": {"torch": "2"}, "date": "2026-01-01T00:00:00Z", "seconds": 1.0}
# (cell, attack, size in the papers' scale) -> share of test images; the attack is "" where there is none.
Share = Callable[[Cell, str, str, float], float]


def measured(cells: Sequence[Cell], share: Share) -> list[Measured]:
    """Each cell with ``share(cell, measure, attack, size)`` in every place; measures are "conventional" and the bounds."""
    return [Measured(cell, _numbers(cell, share), MADE) for cell in cells]


def _numbers(cell: Cell, share: Share) -> dict[str, Any]:
    plan = attacked_by(cell)
    sizes = [in_paper_scale(size) for size in plan.sizes]

    def by_attack(measure: str) -> dict[str, list[float]]:
        return {attack: [share(cell, measure, attack, size) for size in sizes] for attack in plan.attacks}

    known = METHODS[cell.method]
    numbers: dict[str, Any] = {"clean": share(cell, "conventional", "", 0.0), "conventional": by_attack("conventional")}
    numbers["privacy_status"] = str(promised(known))
    numbers["epsilon"] = cell.training["epsilon"] if numbers["privacy_status"] == "proven" else None
    numbers["adaptive"] = {f"{size:.12g}": share(cell, "adaptive", "", in_paper_scale(size)) for size in plan.adaptive_sizes}
    if plan.certified:
        bounds = bounds_of(known)
        numbers["bound_status"] = {bound: "refuted" if bound == PUBLISHED else "proven" for bound in bounds}
        numbers["certified_there"] = {bound: by_attack(bound) for bound in bounds}
        places = [in_paper_scale(place) for place in plan.line]
        numbers["certified"] = {bound: [share(cell, bound, "", place) for place in places] for bound in bounds}
    return numbers


def bounds_of(method: MethodOfPaper) -> tuple[str, ...]:
    """The bounds by which the votes of such a model are read."""
    if method.recipe == "stobatch":
        return bounds_for("input-and-first-layer", "laplace", fixed_draws=method.published)
    return bounds_for("first-layer", "laplace" if method.recipe == "adlm" else "gaussian", fixed_draws=False)


def attacked_by(cell: Cell) -> UnderAttack:
    """The measurement of a cell that is one under attack."""
    assert isinstance(cell.measurement, UnderAttack)
    return cell.measurement
