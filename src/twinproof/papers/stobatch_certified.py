"""Figure 6 of Phan et al. 2020 (StoBatch): certified accuracy under attacks, against their size.

As in Figures 2 and 3 of Phan et al. 2019 the paper asks at the attacked inputs (``certified_under_attack``). Each method is
read there by the bound of its own paper, true or not; beside it stand the certified lines at the test images by sound bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinproof.guarantee import Status
from twinproof.papers import gather
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.contest import Contest, Sampled
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel
from twinproof.papers.methods import METHODS, MNIST, MNIST_NOT_PRIVATE, cells_of
from twinproof.papers.promises import check_bounds, check_promises
from twinproof.papers.rereading import COMPOSITION, PIXELDP, PUBLISHED, TIGHT
from twinproof.papers.words import ATTACK_NAMES, REFUTED_LINES, SIZE_AXIS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EPSILON = 1.0
_FGSM = "fgsm"


@dataclass(frozen=True)
class OwnBound:
    """The bound by which a method's own paper certifies, what a label says of it, and how far that may be trusted."""

    bound: str
    words: str
    status: Status


_OWN: Mapping[str, OwnBound] = {
    "stobatch": OwnBound(COMPOSITION, "composition", Status.PROVEN),
    "stobatch-published": OwnBound(PUBLISHED, "Appendix N (refuted)", Status.REFUTED),
    "pixeldp": OwnBound(PIXELDP, "its own bound", Status.PROVEN),
    "securesgd": OwnBound(PUBLISHED, "Eq. 10 as printed (refuted)", Status.REFUTED),
    # The analytic mechanism is exact for Gaussian noise, and so is this bound.
    "securesgd-agm": OwnBound(TIGHT, "tight", Status.PROVEN),
}
# By which certified lines and tests called sound are read; composition where there are two noises.
_SOUND = {TIGHT: Status.PROVEN}
_OTHERS = ("securesgd", "securesgd-agm", "pixeldp")
_CONTEST = Contest(
    lines=tuple(_OWN), pairs=tuple((ours, other) for ours in ("stobatch", "stobatch-published") for other in _OTHERS)
)


class StoBatchCertified:
    """StoBatch in both variants, Secure-SGD with both mechanisms, and PixelDP, which is not private."""

    def cells(self, effort: Effort) -> list[Cell]:
        """Shared with the other figures where settings agree; PixelDP with Figure 3 of Phan et al. 2019."""
        private = [
            cell for method in _OWN if METHODS[method].private for cell in cells_of(method, MNIST, effort, epsilon=_EPSILON)
        ]
        return [*private, *cells_of("pixeldp", MNIST_NOT_PRIVATE, effort)]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each attack, one for the certified lines, the printed numbers, and the tests of what each is worth."""
        check_promises(done)
        check_bounds(done, {method: _SOUND | {own.bound: own.status} for method, own in _OWN.items()})
        sizes, attacks = gather.sizes_of(done), gather.attacks_of(done)
        ours: dict[str, Sequence[float]] = {}
        sound: dict[str, Sequence[float]] = {}
        for method in _OWN:
            for size in sizes:
                key = f"{method} certified size {size:g}"
                ours[key] = _values(done, method, _there(method, _averaged(method, size, sizes[-1], attacks), size))
                sound[key] = _values(done, method, gather.certified_line(TIGHT, size))
        fgsm = f"pixeldp certified size {sizes[-1]:g} FGSM"
        ours[fgsm] = _values(done, "pixeldp", _there("pixeldp", (_FGSM,), sizes[-1]))
        return Findings(
            panels=(*(_attack_panel(done, attack) for attack in attacks), _line_panel(done)),
            tests=(
                *_CONTEST.tests(lambda method: _as_published(done, method), "as its paper certifies"),
                *_CONTEST.tests(lambda method: _soundly(done, method), "certified soundly"),
            ),
            ours=ours,
            sound=sound,
            notes=(
                f"epsilon {_EPSILON:g}, PixelDP without privacy; ours is the papers' measure, mean over the attacks: right and "
                "with a radius of at least the size at the attacked inputs, by " + _own_words(),
                "sound measure: the certified line at the test images by the tight bound; for StoBatch the single pass, for "
                "the noise that is drawn",
                f"PixelDP at size {sizes[-1]:g}: mean over I-FGSM, MIM and PGD, as printed",
                REFUTED_LINES,
            ),
        )

    def figure(self, findings: Findings, caption: str) -> Figure:
        """Lines with bands."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=3, names_above=True)


def _own_words() -> str:
    return ", ".join(f"{METHODS[method].label}: {own.words}" for method, own in _OWN.items())


def _averaged(method: str, size: float, largest: float, attacks: Sequence[str]) -> Sequence[str]:
    """The attacks over which the paper's number is a mean."""
    return [attack for attack in attacks if attack != _FGSM] if method == "pixeldp" and size == largest else attacks


def _there(method: str, attacks: Sequence[str], size: float) -> gather.Reading:
    return gather.mean_of([gather.certified_there(_OWN[method].bound, attack, size) for attack in attacks])


def _values(done: Sequence[Measured], method: str, read: gather.Reading) -> tuple[float, ...]:
    return gather.values(done, method, read, _EPSILON if METHODS[method].private else None)


def _as_published(done: Sequence[Measured], method: str) -> Sampled:
    attacks = gather.attacks_of(done)
    return [_values(done, method, _there(method, (attack,), size)) for attack in attacks for size in gather.sizes_of(done)]


def _soundly(done: Sequence[Measured], method: str) -> Sampled:
    return [_values(done, method, gather.certified_line(TIGHT, size)) for size in gather.sizes_of(done)]


def _attack_panel(done: Sequence[Measured], attack: str) -> Panel:
    sizes = gather.sizes_of(done)

    def line(method: str) -> Line:
        own, known = _OWN[method], METHODS[method]
        samples = tuple(_values(done, method, _there(method, (attack,), size)) for size in sizes)
        kind = "plain" if own.status is Status.PROVEN else "paper"
        return Line(f"{known.label}, {own.words}", kind, _CONTEST.colour(method), sizes, samples)

    return Panel(f"certified at the input attacked by {ATTACK_NAMES[attack]}", SIZE_AXIS, tuple(line(name) for name in _OWN))


def _line_panel(done: Sequence[Measured]) -> Panel:
    places = gather.line_places(done)

    def line(method: str, bound: str, words: str, kind: str) -> Line:
        samples = tuple(_values(done, method, gather.certified_line(bound, place)) for place in places)
        label = f"{METHODS[method].label}, {words}"
        return Line(label, kind, _CONTEST.colour(method), places, samples, marked=False)

    lines = (
        line("stobatch", TIGHT, "single pass", "sound"),
        line("stobatch", COMPOSITION, "composition", "weaker"),
        line("stobatch-published", TIGHT, "single pass", "sound"),
        line("stobatch-published", PUBLISHED, "Appendix N (refuted)", "paper"),
        *(line(method, TIGHT, "tight", "sound") for method in _OTHERS),
    )
    return Panel("certified at the test images themselves", SIZE_AXIS, lines, cropped=True)
