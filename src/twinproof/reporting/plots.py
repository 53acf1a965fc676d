"""The plots of a report: certified accuracy, radii, progress, attacks, audits, and several runs in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.certified import radius_name
from twinproof.evaluation.protocols import Protocol
from twinproof.reporting.attacks import AttackFacts, AuditFacts
from twinproof.reporting.canvas import BAD, GOOD, INK, MUTED, SERIES, SHEET, SILENT, Frame, plot, stacked_bars, style_axes
from twinproof.reporting.evidence import Certification, Curve
from twinproof.reporting.facts import Progress
from twinproof.reporting.words import RadiusWords

DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (1.5, 1.5), (6, 2, 1.5, 2), (3, 1.5), (8, 2, 2, 2, 2, 2))
PROTOCOL_NAMES = {str(Protocol.ADAPTIVE): "adaptive", str(Protocol.PAPER): "papers'"}
_MOST_BANDS = 3
_DASHED = (0, (4, 3))
_DOTTED = (0, (1, 2))
# Marks of one size stand this share of the axis apart, so that their intervals can be told from each other; all of them
# together take no more than the second share, or the curves would seem to belong to other sizes.
_APART, _SPREAD = 0.011, 0.05
_PANELS = (("smoothed", "smoothed classifier: share correct"), ("network", "network itself: share correct"))
# The name that matplotlib has for the mark of an attack, and its outline in the legend, around (17, 6).
_MARKS = {
    "fgsm": ("o", "M13.5 6a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z"),
    "ifgsm": ("s", "M13.9 2.9h6.2v6.2h-6.2Z"),
    "mim": ("^", "M17 2l4 7.4h-8Z"),
    "pgd": ("D", "M17 1.6l4.4 4.4l-4.4 4.4l-4.4 -4.4Z"),
}
_CROSS = "M13.5 3.9l1.6 -1.6l1.9 1.9l1.9 -1.9l1.6 1.6l-1.9 2.1l1.9 2.1l-1.6 1.6l-1.9 -1.9l-1.9 1.9l-1.6 -1.6l1.9 -2.1Z"


@dataclass(frozen=True)
class Mark:
    """The look of an attack's curve: methods by colour and marker, protocols by dashes and filling.

    Colour is never the only cue: in black and white the markers, the dashes and the filling remain.
    """

    marker: str
    outline: str
    colour: str
    dashes: tuple[float, ...]
    filled: bool
    width: float

    @property
    def face(self) -> str:
        return self.colour if self.filled else SHEET

    @property
    def legend_dashes(self) -> list[float]:
        return [1.5 * length for length in self.dashes]


WORST = Mark("X", _CROSS, INK, (), filled=True, width=2.2)


@dataclass(frozen=True)
class AttackCurve:
    """The share that an attack leaves correct at each size, for ``smoothed`` and ``network``."""

    name: str
    mark: Mark
    shares: dict[str, list[Interval]]


def claim_colour(words: RadiusWords) -> str:
    return BAD if words.claim else GOOD


def curve_plot(name: str, certification: Certification, clean: Interval | None) -> Markup:
    """Certified accuracy against radius with its band, and the network's own accuracy as a dashed line."""
    words, curve = certification.words, certification.curve()

    def draw(figure: Figure, frame: Frame) -> None:
        axes = figure.subplots()
        _draw_curve(axes, curve, claim_colour(words), (), band=True)
        if clean is not None:
            axes.axhline(clean.value, color=INK, linewidth=1.1, linestyle=_DASHED)
        _share_axes(axes, frame, words.axis, "share of test inputs", curve[-1][0])

    return plot(name, f"{words.accuracy} against radius, falling from the left", draw)


def comparison_plot(name: str, curves: Sequence[Curve], radius: str) -> Markup:
    """Certified accuracy of several runs, all in one norm, told apart by colour and by dashes."""
    right = max(curve[-1][0] for curve in curves)

    def draw(figure: Figure, frame: Frame) -> None:
        axes = figure.subplots()
        for index, curve in enumerate(curves):
            colour, dashes = series_look(index)
            _draw_curve(axes, curve, colour, dashes, band=len(curves) <= _MOST_BANDS)
        _share_axes(axes, frame, radius, "share of test inputs", right)

    return plot(name, f"Share of test inputs against {radius} of {len(curves)} runs", draw)


def series_look(index: int) -> tuple[str, tuple[float, ...]]:
    """Colour and dashes of one of several runs."""
    return SERIES[index % len(SERIES)], DASHES[index % len(DASHES)]


def histogram_plot(name: str, certification: Certification) -> Markup:
    """Radii of correct and wrong answers, stacked; abstentions, which have no radius, stand apart on the left."""
    counts, words = certification.radius_counts(), certification.words
    lefts, width, right = counts.edges[:-1], counts.edges[1] - counts.edges[0], counts.edges[-1]

    def draw(figure: Figure, frame: Frame) -> None:
        apart = 3.4 if frame.narrow else 1.8  # bins, so that the label of the abstentions does not touch the zero
        axes = figure.subplots()
        stacked_bars(axes, lefts, width, counts.correct, counts.wrong)
        axes.bar([-apart * width], [counts.abstained], width=0.88 * width, align="edge", color=SILENT)
        style_axes(axes, frame, words.axis, "test inputs")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        ticks = [tick for tick in MaxNLocator(3 if frame.narrow else 7).tick_values(0, right) if 0 <= tick <= right]
        axes.set_xticks([(0.44 - apart) * width, *ticks], ["none", *map(radius_name, ticks)])
        axes.set_xlim(-(apart + 0.5) * width, right)
        axes.axvline((0.44 - apart / 2) * width, color=MUTED, linewidth=0.8, linestyle=_DOTTED)

    return plot(name, f"Number of test inputs by {words.axis}", draw)


def progress_plot(name: str, progress: Sequence[Progress]) -> Markup:
    """Test accuracy and epsilon spent against training steps, in two panels; only the first where nothing was spent."""
    accuracy = [(line.step, line.accuracy) for line in progress if line.accuracy is not None]
    epsilon = [(line.step, line.epsilon) for line in progress if line.epsilon is not None]
    panels = [panel for panel in ((accuracy, "accuracy on the test set", GOOD), (epsilon, "epsilon spent", BAD)) if panel[0]]

    def draw(figure: Figure, frame: Frame) -> None:
        for axes, (points, title, colour) in zip(_panels(figure, frame, len(panels)), panels, strict=True):
            _draw_progress(axes, frame, points, title, colour)

    description = f"{' and '.join(title for _, title, _ in panels)} against training steps"
    return plot(name, description.capitalize(), draw, taller=1.6 if len(panels) > 1 else 1.0)


def mark_of(protocol: str, attack: str) -> Mark:
    """The look of one method under one protocol; methods without a marker of their own share the last one."""
    names = list(_MARKS)
    place = names.index(attack) if attack in _MARKS else len(names) - 1
    marker, outline = _MARKS[names[place]]
    paper = protocol == Protocol.PAPER
    return Mark(marker, outline, SERIES[1 + place], (4.0, 2.0) if paper else (), not paper, 1.3)


def attack_curves(attacks: AttackFacts) -> list[AttackCurve]:
    """One curve for each attack and protocol (the lowest over what was attacked), and the worst case of the adaptive ones."""
    curves = []
    for protocol in (Protocol.PAPER, Protocol.ADAPTIVE):
        for attack in attacks.settings.plan.attacks:
            found = {
                measure: [one.lowest(protocol, measure, attack) for one in attacks.results.sizes] for measure, _ in _PANELS
            }
            shares = {measure: [share for share in lowest if share is not None] for measure, lowest in found.items()}
            if all(len(lowest) == len(attacks.results.sizes) for lowest in shares.values()):
                curves.append(AttackCurve(f"{attack}, {PROTOCOL_NAMES[protocol]}", mark_of(protocol, attack), shares))
    worst = [one.worst for one in attacks.results.sizes if one.worst is not None]
    if worst and len(worst) == len(attacks.results.sizes):
        shares = {measure: [getattr(scores, measure) for scores in worst] for measure, _ in _PANELS}
        curves.append(AttackCurve("worst case for each input, adaptive", WORST, shares))
    return curves


def attack_plot(name: str, attacks: AttackFacts, words: RadiusWords) -> Markup:
    """Accuracy against attack size; the certified line belongs to the panel of the smoothed classifier alone."""
    curves = attack_curves(attacks)

    def draw(figure: Figure, frame: Frame) -> None:
        for axes, (measure, title) in zip(_panels(figure, frame, len(_PANELS)), _PANELS, strict=True):
            _draw_attacks(axes, frame, attacks, curves, measure, title)
            if measure == "smoothed":
                _draw_certified(axes, attacks, claim_colour(words))

    return plot(name, f"Accuracy against attack size for each attack, and the {words.certified} share", draw, taller=1.75)


def ratio_plot(name: str, found: AuditFacts, words: RadiusWords) -> Markup:
    """How far the closest change of each answer is, in radii; certificates without a change stand apart on the right."""
    counts = found.ratios()
    lefts, width, right = counts.edges[:-1], counts.edges[1] - counts.edges[0], counts.edges[-1]

    def draw(figure: Figure, frame: Frame) -> None:
        axes = figure.subplots()
        stacked_bars(axes, lefts, width, counts.beyond, counts.inside)
        axes.bar([right + 1.5 * width], [counts.not_found], width=0.88 * width, align="edge", color=SILENT)
        axes.axvline(1.0, color=INK, linewidth=1.4, linestyle=_DASHED)
        style_axes(axes, frame, f"closest change of the answer, in {words.certified} {words.norm} radii", "certificates")
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        whole = range(int(right) + 1)
        axes.set_xticks([*whole, right + 1.94 * width], [*map(str, whole), "none"])
        axes.set_xlim(0, right + 2.9 * width)
        axes.axvline(right + 0.75 * width, color=MUTED, linewidth=0.8, linestyle=_DOTTED)

    return plot(name, "Number of certificates by the distance of the closest change of their answer, in radii", draw)


def _panels(figure: Figure, frame: Frame, count: int) -> list[Axes]:
    """Panels beside each other, or below each other where the screen is narrow."""
    figure.set_layout_engine("constrained", wspace=0.08, hspace=0.08)
    rows, columns = (count, 1) if frame.narrow else (1, count)
    return list(figure.subplots(rows, columns, squeeze=False).flat)


def _draw_curve(axes: Axes, curve: Curve, colour: str, dashes: tuple[float, ...], *, band: bool) -> None:
    """Steps that drop to the value at the right end of each stretch: between two radii the drawing never shows too much."""
    radii = [radius for radius, _ in curve]
    if band:
        lows, highs = [interval.low for _, interval in curve], [interval.high for _, interval in curve]
        axes.fill_between(radii, lows, highs, step="pre", color=colour, alpha=0.18, linewidth=0)
    line = axes.step(radii, [interval.value for _, interval in curve], where="pre", color=colour, linewidth=1.8)[0]
    if dashes:
        line.set_dashes(dashes)


def _draw_progress(axes: Axes, frame: Frame, points: Sequence[tuple[int, float]], title: str, colour: str) -> None:
    steps, values = [step for step, _ in points], [value for _, value in points]
    style_axes(axes, frame, "training steps", title)
    axes.plot(steps, values, color=colour, linewidth=1.6, marker="o", markersize=3)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    if colour == GOOD:
        _percent_ticks(axes)


def _draw_attacks(
    axes: Axes, frame: Frame, attacks: AttackFacts, curves: Sequence[AttackCurve], measure: str, title: str
) -> None:
    largest = attacks.settings.plan.sizes[-1]
    _share_axes(axes, frame, f"attack size ({attacks.settings.plan.norm})", title, 1.05 * largest)
    axes.set_xlim(-0.03 * largest, 1.05 * largest)
    axes.locator_params(axis="x", nbins=4 if frame.narrow else 5)
    axes.set_ylim(0, 1.03)
    clean: Interval = getattr(attacks.results.clean, measure)
    for place, curve in enumerate(curves):
        mark, shares = curve.mark, curve.shares[measure]
        shift = (place - (len(curves) - 1) / 2) * min(_APART, _SPREAD / len(curves)) * largest
        places, values = [one.size + shift for one in attacks.results.sizes], [share.value for share in shares]
        line = axes.plot([0, *places], [clean.value, *values], color=mark.colour, linewidth=mark.width, zorder=2.5)[0]
        if mark.dashes:
            line.set_dashes(mark.dashes)
        axes.errorbar(
            places,
            values,
            yerr=_ends(shares),
            color=mark.colour,
            marker=mark.marker,
            markersize=5,
            markerfacecolor=mark.face,
            markeredgewidth=1.1,
            linewidth=0,
            elinewidth=0.8,
            zorder=3,
        )
    axes.errorbar([0], [clean.value], yerr=_ends([clean]), color=INK, marker="_", markersize=8, linewidth=0, elinewidth=0.9)


def _draw_certified(axes: Axes, attacks: AttackFacts, colour: str) -> None:
    """The area that no attack can reach into, where certificates tell it between the sizes too; and the recorded points."""
    sizes, shares = [one.size for one in attacks.results.sizes], [one.certified for one in attacks.results.sizes]
    line = attacks.certified_line() or list(zip([0.0, *sizes], [shares[0], *shares], strict=True))
    places, values = [size for size, _ in line], [share.value for _, share in line]
    # Steps that drop to the value at the right end of each stretch, so that no more is shown than is certified.
    axes.fill_between(places, values, step="pre", color=colour, alpha=0.16, linewidth=0)
    axes.step(places, values, where="pre", color=colour, linewidth=1.8, zorder=2)
    values = [share.value for share in shares]
    axes.errorbar(
        sizes, values, yerr=_ends(shares), color=colour, marker="|", markersize=7, linewidth=0, elinewidth=0.8, zorder=2
    )


def _ends(shares: Sequence[Interval]) -> list[list[float]]:
    """Distances from the values down and up to the ends of their intervals; a record that lies may have the value outside."""
    downwards = [max(0.0, share.value - share.low) for share in shares]
    return [downwards, [max(0.0, share.high - share.value) for share in shares]]


def _share_axes(axes: Axes, frame: Frame, x_label: str, y_label: str, right: float) -> None:
    """Axes for shares of inputs, from 0 to 100 %, against something that goes from 0 to ``right``."""
    style_axes(axes, frame, x_label, y_label)
    axes.set_xlim(0, right)
    _percent_ticks(axes)
    axes.locator_params(axis="x", nbins=4 if frame.narrow else 8)


def _percent_ticks(axes: Axes) -> None:
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
