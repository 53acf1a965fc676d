"""Figures 2 and 3 of Phan et al. 2019: certified accuracy of PixelDP and HGM-PixelDP under attacks, against their size.

The papers count an *attacked* input as certified where the answer there is right and its radius covers the attack's size. That
speaks of the attacked input's neighbours. Beside it stands the certified line: the same question at the test images themselves,
by a sound bound, which no attack of that size can undercut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinproof.guarantee import Status
from twinproof.papers import gather
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.contest import Contest, Sampled, sampled_under
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel
from twinproof.papers.methods import METHODS, Ground, cells_of
from twinproof.papers.promises import check_bounds, check_promises
from twinproof.papers.rereading import HGM, PIXELDP, PUBLISHED, TIGHT
from twinproof.papers.words import ATTACK_NAMES, SIZE_AXIS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIRST, _SECOND = "hgm-pixeldp", "pixeldp"
# Each method with the bound of its paper; PixelDP's holds, Eq. 10 as printed does not.
_OF_PAPER = {_FIRST: PUBLISHED, _SECOND: PIXELDP}
_CONTEST = Contest((_FIRST, _SECOND), ((_FIRST, _SECOND),))
_NO_BUDGET = (None,)
_PROVEN = Status.PROVEN
_BOUNDS = {
    _FIRST: {PUBLISHED: Status.REFUTED, TIGHT: _PROVEN, HGM: _PROVEN},
    _SECOND: {PIXELDP: _PROVEN, TIGHT: _PROVEN},
}


@dataclass(frozen=True)
class CertifiedUnderAttack:
    """One of the two figures; the published gain is a mean over sizes up to ``largest`` (the papers' scale)."""

    ground: Ground
    largest: float

    def cells(self, effort: Effort) -> list[Cell]:
        """Both methods; neither is private."""
        return [cell for method in _OF_PAPER for cell in cells_of(method, self.ground, effort)]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each attack, one for the certified line, the paper's gain and its tests."""
        check_promises(done)
        check_bounds(done, _BOUNDS)
        attacks, sizes = gather.attacks_of(done), [size for size in gather.sizes_of(done) if size <= self.largest]

        def as_paper(method: str) -> Sampled:
            reads = [gather.certified_there(_OF_PAPER[method], attack, size) for attack in attacks for size in sizes]
            return sampled_under(done, method, reads, _NO_BUDGET)

        def sound(method: str) -> Sampled:
            return sampled_under(done, method, [gather.certified_line(TIGHT, size) for size in sizes], _NO_BUDGET)

        return Findings(
            panels=(*(_attack_panel(done, attack) for attack in attacks), _line_panel(done)),
            tests=(*_CONTEST.tests(as_paper, "as published"), *_CONTEST.tests(sound, "sound line")),
            ours=_CONTEST.gains(as_paper),
            sound=_CONTEST.gains(sound),
            notes=(
                f"gains and tests: mean over the attacks and the sizes up to {self.largest:g}",
                "as published: certified at the attacked input, HGM-PixelDP by Eq. 10 as printed (refuted)",
                "sound: the certified line at the test images, tight bound",
            ),
        )

    def figure(self, findings: Findings, caption: str) -> Figure:
        """Lines with bands."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=3)


def _attack_panel(done: Sequence[Measured], attack: str) -> Panel:
    sizes = gather.sizes_of(done)

    def line(method: str, bound: str, words: str, kind: str) -> Line:
        samples = tuple(gather.values(done, method, gather.certified_there(bound, attack, size)) for size in sizes)
        return Line(f"{METHODS[method].label}, {words}", kind, _CONTEST.colour(method), sizes, samples)

    lines = (
        line(_FIRST, PUBLISHED, "Eq. 10 as printed", "paper"),
        line(_FIRST, TIGHT, "tight", "sound"),
        line(_SECOND, PIXELDP, "its own bound", "weaker"),
        line(_SECOND, TIGHT, "tight", "sound"),
    )
    return Panel(f"certified at the input attacked by {ATTACK_NAMES[attack]}", SIZE_AXIS, lines)


def _line_panel(done: Sequence[Measured]) -> Panel:
    places = gather.line_places(done)

    def line(method: str, bound: str, words: str, kind: str) -> Line:
        samples = tuple(gather.values(done, method, gather.certified_line(bound, place)) for place in places)
        return Line(f"{METHODS[method].label}, {words}", kind, _CONTEST.colour(method), places, samples, marked=False)

    lines = (
        line(_FIRST, PUBLISHED, "Eq. 10 as printed", "paper"),
        line(_FIRST, TIGHT, "tight", "sound"),
        line(_FIRST, HGM, "HGM, Theorem 3", "weaker"),
        line(_SECOND, PIXELDP, "its own bound", "weaker"),
        line(_SECOND, TIGHT, "tight", "sound"),
    )
    return Panel("certified at the test images themselves", SIZE_AXIS, lines, cropped=True)
