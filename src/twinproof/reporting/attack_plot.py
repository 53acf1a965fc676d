"""Accuracy against attack size: every attack and protocol with its interval, and the certified line under them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinproof.evaluation.accuracy import Interval
from twinproof.evaluation.protocols import Protocol
from twinproof.reporting.attack_facts import AttackFacts
from twinproof.reporting.attack_marks import PROTOCOL_NAMES, WORST, Mark, mark_of
from twinproof.reporting.canvas import INK, Frame, plot
from twinproof.reporting.markup import Markup
from twinproof.reporting.plots import claim_colour, share_axes
from twinproof.reporting.radius_words import RadiusWords

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = (("smoothed", "smoothed classifier: share correct"), ("network", "network itself: share correct"))
# Marks of one size stand this share of the axis apart, so that their intervals can be told from each other; all of them
# together take no more than the second share, or the curves would seem to belong to other sizes.
_APART, _SPREAD = 0.011, 0.05


@dataclass(frozen=True)
class AttackCurve:
    """The share that an attack leaves correct at each size, for ``smoothed`` and ``network``."""

    name: str
    mark: Mark
    shares: dict[str, list[Interval]]


def attack_curves(attacks: AttackFacts) -> list[AttackCurve]:
    """One curve for each attack and protocol (the lowest over what was attacked), and the worst case of the adaptive ones."""
    curves = []
    for protocol in (Protocol.PAPER, Protocol.ADAPTIVE):
        for attack in attacks.settings.plan.attacks:
            shares = {measure: _lowest(attacks, protocol, attack, measure) for measure, _ in _PANELS}
            if all(len(found) == len(attacks.sizes) for found in shares.values()):
                curves.append(AttackCurve(f"{attack}, {PROTOCOL_NAMES[protocol]}", mark_of(protocol, attack), shares))
    worst = [one.worst for one in attacks.sizes if one.worst is not None]
    if worst and len(worst) == len(attacks.sizes):
        shares = {measure: [getattr(scores, measure) for scores in worst] for measure, _ in _PANELS}
        curves.append(AttackCurve("worst case for each input, adaptive", WORST, shares))
    return curves


def attack_plot(name: str, attacks: AttackFacts, words: RadiusWords) -> Markup:
    """Both panels; the certified line belongs to the smoothed classifier alone."""
    curves = attack_curves(attacks)

    def draw(figure: Figure, frame: Frame) -> None:
        figure.set_layout_engine("constrained", wspace=0.08, hspace=0.08)
        rows, columns = (2, 1) if frame.narrow else (1, 2)
        panels = figure.subplots(rows, columns, squeeze=False)
        for axes, (measure, title) in zip(panels.flat, _PANELS, strict=True):
            _draw_panel(axes, frame, attacks, curves, measure, title)
            if measure == "smoothed":
                _draw_certified(axes, attacks, claim_colour(words))

    return plot(name, f"Accuracy against attack size for each attack, and the {words.certified} share", draw, taller=1.75)


def _draw_panel(
    axes: Axes, frame: Frame, attacks: AttackFacts, curves: Sequence[AttackCurve], measure: str, title: str
) -> None:
    largest = attacks.settings.plan.sizes[-1]
    share_axes(axes, frame, f"attack size ({attacks.settings.plan.norm})", title, 1.05 * largest)
    axes.set_xlim(-0.03 * largest, 1.05 * largest)
    axes.locator_params(axis="x", nbins=4 if frame.narrow else 5)
    axes.set_ylim(0, 1.03)
    clean: Interval = getattr(attacks.clean, measure)
    for place, curve in enumerate(curves):
        shift = (place - (len(curves) - 1) / 2) * min(_APART, _SPREAD / len(curves)) * largest
        _draw_attack(axes, [one.size + shift for one in attacks.sizes], clean, curve, measure)
    axes.errorbar([0], [clean.value], yerr=_ends([clean]), color=INK, marker="_", markersize=8, linewidth=0, elinewidth=0.9)


def _draw_attack(axes: Axes, places: list[float], clean: Interval, curve: AttackCurve, measure: str) -> None:
    mark, shares = curve.mark, curve.shares[measure]
    values = [share.value for share in shares]
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


def _draw_certified(axes: Axes, attacks: AttackFacts, colour: str) -> None:
    """The area that no attack can reach into, where certificates tell it between the sizes too; and the recorded points."""
    sizes, shares = [one.size for one in attacks.sizes], [one.certified for one in attacks.sizes]
    line = attacks.certified_line() or list(zip([0.0, *sizes], [shares[0], *shares], strict=True))
    places, values = [size for size, _ in line], [share.value for _, share in line]
    # Steps that drop to the value at the right end of each stretch, so that no more is shown than is certified.
    axes.fill_between(places, values, step="pre", color=colour, alpha=0.16, linewidth=0)
    axes.step(places, values, where="pre", color=colour, linewidth=1.8, zorder=2)
    values = [share.value for share in shares]
    axes.errorbar(
        sizes, values, yerr=_ends(shares), color=colour, marker="|", markersize=7, linewidth=0, elinewidth=0.8, zorder=2
    )


def _lowest(attacks: AttackFacts, protocol: str, attack: str, measure: str) -> list[Interval]:
    """The share at each size; shorter than the sizes where the protocol or the attack was not run."""
    found = (one.lowest(protocol, measure, attack) for one in attacks.sizes)
    return [share for share in found if share is not None]


def _ends(shares: Sequence[Interval]) -> list[list[float]]:
    """Distances from the values down and up to the ends of their intervals; a record that lies may have the value outside."""
    downwards = [max(0.0, share.value - share.low) for share in shares]
    return [downwards, [max(0.0, share.high - share.value) for share in shares]]
