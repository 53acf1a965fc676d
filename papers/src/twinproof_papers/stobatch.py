"""StoBatch on MNIST (Phan et al. 2020), as published and sound: Figure 6, and the table of both variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twinproof.guarantee import Status
from twinproof_papers import gather
from twinproof_papers.catalogue.stobatch import PRINTED_TABLE
from twinproof_papers.cell import Cell, Measured
from twinproof_papers.comparison import (
    ANSWERS,
    ATTACK_NAMES,
    REFUTED_LINES,
    SIZE_AXIS,
    difference_text,
    estimate_text,
    published_text,
)
from twinproof_papers.conventional import Lineup, accuracy_panel
from twinproof_papers.experiment import Options
from twinproof_papers.findings import Findings, Line, Panel, Table, over_repetitions
from twinproof_papers.methods import METHODS, MNIST, MNIST_NOT_PRIVATE, cells_of, check_bounds, check_promises, promised
from twinproof_papers.under_attack import COMPOSITION, PIXELDP, PUBLISHED, TIGHT

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
_PROVEN_BOUND = {TIGHT: Status.PROVEN}
_OTHERS = ("securesgd", "securesgd-agm", "pixeldp")
_LINEUP = Lineup(
    lines=tuple(_OWN), pairs=tuple((ours, other) for ours in ("stobatch", "stobatch-published") for other in _OTHERS)
)


class StoBatchCertified:
    """StoBatch in both variants, Secure-SGD with both mechanisms, and PixelDP, which is not private."""

    def cells(self, options: Options) -> list[Cell]:
        """Shared with the other figures where settings agree; PixelDP with Figure 3 of Phan et al. 2019."""
        private = [
            cell for method in _OWN if METHODS[method].private for cell in cells_of(method, MNIST, options, epsilon=_EPSILON)
        ]
        return [*private, *cells_of("pixeldp", MNIST_NOT_PRIVATE, options)]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each attack, one for the certified lines, the printed numbers, and the tests of what each is worth."""
        check_promises(done)
        check_bounds(done, {method: _PROVEN_BOUND | {own.bound: own.status} for method, own in _OWN.items()})
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
                *_LINEUP.tests(lambda method: _as_published(done, method), "as its paper certifies"),
                *_LINEUP.tests(lambda method: _soundly(done, method), "certified soundly"),
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
            names="above",
        )


def _own_words() -> str:
    return ", ".join(f"{METHODS[method].label}: {own.words}" for method, own in _OWN.items())


def _averaged(method: str, size: float, largest: float, attacks: Sequence[str]) -> Sequence[str]:
    return [attack for attack in attacks if attack != _FGSM] if method == "pixeldp" and size == largest else attacks


def _there(method: str, attacks: Sequence[str], size: float) -> gather.Reading:
    return gather.mean_of([gather.certified_there(_OWN[method].bound, attack, size) for attack in attacks])


def _budget(method: str) -> float | None:
    return _EPSILON if METHODS[method].private else None


def _values(done: Sequence[Measured], method: str, read: gather.Reading) -> tuple[float, ...]:
    return gather.values(done, method, read, _budget(method))


def _as_published(done: Sequence[Measured], method: str) -> gather.Samples:
    attacks, sizes = gather.attacks_of(done), gather.sizes_of(done)
    return tuple(_values(done, method, _there(method, (attack,), size)) for attack in attacks for size in sizes)


def _soundly(done: Sequence[Measured], method: str) -> gather.Samples:
    return tuple(_values(done, method, gather.certified_line(TIGHT, size)) for size in gather.sizes_of(done))


def _look(method: str, words: str, kind: str) -> gather.Look:
    return f"{METHODS[method].label}, {words}", kind, _LINEUP.colour(method)


def _attack_panel(done: Sequence[Measured], attack: str) -> Panel:
    def line(method: str, own: OwnBound) -> Line:
        look = _look(method, own.words, "plain" if own.status is Status.PROVEN else "paper")
        return gather.certified_there_line(done, method, own.bound, (attack,), look, _budget(method))

    lines = tuple(line(method, own) for method, own in _OWN.items())
    return Panel(f"certified at the input attacked by {ATTACK_NAMES[attack]}", SIZE_AXIS, lines)


def _line_panel(done: Sequence[Measured]) -> Panel:
    def line(method: str, bound: str, words: str, kind: str) -> Line:
        return gather.certified_at_images(done, method, bound, _look(method, words, kind), _budget(method))

    lines = (
        line("stobatch", TIGHT, "single pass", "sound"),
        line("stobatch", COMPOSITION, "composition", "weaker"),
        line("stobatch-published", TIGHT, "single pass", "sound"),
        line("stobatch-published", PUBLISHED, "Appendix N (refuted)", "paper"),
        *(line(method, TIGHT, "tight", "sound") for method in _OTHERS),
    )
    return Panel("certified at the test images themselves", SIZE_AXIS, lines, cropped=True)


_PAPER, _SOUND = "stobatch-published", "stobatch"
_METHODS = (_PAPER, _SOUND)
_SIZE = 0.2
_BUDGETS = (0.2, 2.0)
_CERTIFIED_BUDGET = 1.0
# The smallest of the certified line: at the printed ones no certificate of this noise reaches.
_SHORT_SIZES = (0.0, 0.005, 0.01)
_NAMES = {TIGHT: "single pass", COMPOSITION: "composition", PUBLISHED: "Appendix N"}
_BOUNDS: Mapping[str, Mapping[str, Status]] = {
    _PAPER: {PUBLISHED: Status.REFUTED, COMPOSITION: Status.PROVEN, TIGHT: Status.PROVEN},
    _SOUND: {COMPOSITION: Status.PROVEN, TIGHT: Status.PROVEN},
}


@dataclass(frozen=True)
class Measure:
    """A row's measure: what it is called, how far what it claims may be trusted, and how it is read at a size.

    ``certified`` ones are read at two sizes, the others at two budgets.
    """

    words: str
    status: Status
    certified: bool
    bound: str = ""
    there: bool = False

    def read(self, done: Sequence[Measured], size: float) -> gather.Reading:
        """The number of one cell."""
        attacks = gather.attacks_of(done)
        if self.certified and self.there:
            return gather.mean_of([gather.certified_there(self.bound, attack, size) for attack in attacks])
        if self.certified:
            return gather.certified_line(self.bound, size)
        if self.there:
            return gather.mean_of([gather.conventional(attack, size) for attack in attacks])
        return gather.adaptive(size)


def measures_of(method: str) -> tuple[Measure, ...]:
    """The rows of one kind of model: two accuracies, the paper's certificates at attacked inputs, sound ones at test images."""
    own = PUBLISHED if PUBLISHED in _BOUNDS[method] else COMPOSITION
    certificates = tuple(
        Measure(f"certified at the test images: {_NAMES[bound]}", status, certified=True, bound=bound)
        for bound, status in _BOUNDS[method].items()
    )
    return (
        Measure("accuracy under the papers' four attacks", Status.NONE, certified=False, there=True),
        Measure("accuracy under PGD that sees the noise", Status.NONE, certified=False),
        Measure(
            f"certified at the attacked inputs: {_NAMES[own]}", _BOUNDS[method][own], certified=True, bound=own, there=True
        ),
        *certificates,
    )


class StoBatchMnist:
    """Both variants at three budgets; all cells are those of the figures."""

    def cells(self, options: Options) -> list[Cell]:
        """Shared with Figures 2, 4 and 6."""
        budgets = sorted({*_BUDGETS, _CERTIFIED_BUDGET})
        return [
            cell for epsilon in budgets for method in _METHODS for cell in cells_of(method, MNIST, options, epsilon=epsilon)
        ]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """The table, and for each printed number ours by the paper's measure and a sound one beside it."""
        check_promises(done)
        check_bounds(done, _BOUNDS)
        ours: dict[str, Sequence[float]] = {}
        sound: dict[str, Sequence[float]] = {}
        for method in _METHODS:
            attacked, adaptive, there, *_, single = measures_of(method)
            for budget in _BUDGETS:
                key = f"{method} conventional epsilon {budget:g}"
                ours[key] = gather.values(done, method, attacked.read(done, _SIZE), budget)
                sound[key] = gather.values(done, method, adaptive.read(done, _SIZE), budget)
            for size in _certified_sizes(done):
                key = f"{method} certified size {size:g}"
                ours[key] = gather.values(done, method, there.read(done, size), _CERTIFIED_BUDGET)
                sound[key] = gather.values(done, method, single.read(done, size), _CERTIFIED_BUDGET)
        return Findings(
            panels=(
                *(accuracy_panel(done, method, _SIZE, METHODS[method].label) for method in _METHODS),
                _certified_panel(done),
            ),
            ours=ours,
            sound=sound,
            notes=(
                "a number is followed by its 95 % interval and, after the semicolon, by its difference from the printed one",
                "composition: Lemma 5 and Corollary 1 of the paper; Appendix N: the same with the scale that the paper states; "
                "single pass: the least cost over all splits of a change between the two noises",
                "a certificate that is refuted proves nothing, whatever its number; at psi = 2 the single pass proves at least "
                "as much for the same votes. Accuracy promises nothing",
                "all bounds read the same votes, under the noise that is drawn at inference; Appendix N alone computes with "
                "psi times that noise",
                ANSWERS,
                REFUTED_LINES,
            ),
            tables=(_table(done), _reach_table(done)),
            names="below",
        )


def _table(done: Sequence[Measured]) -> Table:
    sizes = _certified_sizes(done)
    columns = (
        *(f"conventional epsilon {budget:g}" for budget in _BUDGETS),
        *(f"certified size {size:g}" for size in sizes),
    )
    header = (
        "model",
        "privacy",
        "measure",
        "certificate",
        *(f"accuracy, size {_SIZE:g}, epsilon {budget:g} (%)" for budget in _BUDGETS),
        *(f"certified, size {size:g}, epsilon {_CERTIFIED_BUDGET:g} (%)" for size in sizes),
    )
    printed = (
        "the paper",
        "claimed, refuted",
        "as printed",
        "claimed, refuted",
        *(published_text(PRINTED_TABLE.get(key)) for key in columns),
    )
    rows = [_row(done, method, measure, columns) for method in _METHODS for measure in measures_of(method)]
    return Table("StoBatch, published and sound", header, (printed, *rows))


def _reach_table(done: Sequence[Measured]) -> Table:
    """How far the certificates of each kind of model do reach, by every reading of the same votes."""
    header = ("model", "reading", "certificate", *(f"certified, size {size:g} (%)" for size in _SHORT_SIZES))

    def row(method: str, bound: str, status: Status) -> tuple[str, ...]:
        read = [gather.values(done, method, gather.certified_line(bound, size), _CERTIFIED_BUDGET) for size in _SHORT_SIZES]
        numbers = (estimate_text(over_repetitions(values)) for values in read)
        return (METHODS[method].label, _NAMES[bound], str(status), *numbers)

    rows = tuple(row(method, bound, status) for method in _METHODS for bound, status in _BOUNDS[method].items())
    return Table(f"At the test images, epsilon {_CERTIFIED_BUDGET:g}, small sizes", header, rows)


def _row(done: Sequence[Measured], method: str, measure: Measure, columns: Sequence[str]) -> tuple[str, ...]:
    """One measure of one kind of model, in the columns that it speaks of."""
    places = [(_SIZE, budget) for budget in _BUDGETS] + [(size, _CERTIFIED_BUDGET) for size in _certified_sizes(done)]
    numbers = []
    for number, (key, (size, budget)) in enumerate(zip(columns, places, strict=True)):
        if (number >= len(_BUDGETS)) is not measure.certified:
            numbers.append("-")
            continue
        estimate = over_repetitions(gather.values(done, method, measure.read(done, size), budget))
        gap = difference_text(estimate, PRINTED_TABLE.get(key))
        numbers.append(f"{estimate_text(estimate)}; {gap}")
    worth = str(measure.status) if measure.certified else "-"
    return (METHODS[method].label, _privacy_words(method), measure.words, worth, *numbers)


def _privacy_words(method: str) -> str:
    status = promised(METHODS[method])
    return "proven, at the epsilon of the column" if status is Status.PROVEN else f"{status}: no epsilon is promised"


def _certified_sizes(done: Sequence[Measured]) -> tuple[float, float]:
    sizes = gather.sizes_of(done)
    return sizes[0], sizes[-1]


def _certified_panel(done: Sequence[Measured]) -> Panel:
    def line(method: str, bound: str, status: Status) -> Line:
        kind = "paper" if status is Status.REFUTED else "sound" if bound == TIGHT else "weaker"
        look = (f"{METHODS[method].label}, {_NAMES[bound]}, {status}", kind, _METHODS.index(method))
        return gather.certified_at_images(done, method, bound, look, _CERTIFIED_BUDGET)

    lines = tuple(line(method, bound, status) for method in _METHODS for bound, status in _BOUNDS[method].items())
    return Panel(f"certified at the test images, epsilon {_CERTIFIED_BUDGET:g}", SIZE_AXIS, lines, cropped=True)
