"""Figure 1 of Phan et al. 2019 (noise against epsilon) with the heterogeneous analytic mechanism added.

Sensitivity 1, delta 1e-5 and equal shares, as in the paper. Nothing is measured: the numbers are the calibrations of
``twinproof sigma``, so that the picture is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from twinproof.privacy.mechanisms import LARGEST_EPSILON, calibrate, gaussian_delta
from twinproof.privacy.redistribution import Redistribution
from twinproof_papers.cell import Cell, Measured
from twinproof_papers.drawing import BROKEN, RULE
from twinproof_papers.experiment import Options
from twinproof_papers.findings import Findings, Line, Panel
from twinproof_papers.published.formulas import paper_classic_sigma

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DELTA = 1e-5
EPSILONS = tuple(float(epsilon) for epsilon in np.geomspace(0.1, 20.0, 241))
_EQUAL = Redistribution.uniform(10)
_CLASSIC, _PAPER, _OURS = "#6b6b6b", "#D55E00", "#0072B2"


@dataclass(frozen=True)
class Curve:
    """One line: a calibration on a range of epsilon."""

    label: str
    colour: str
    style: str
    epsilons: tuple[float, ...]
    sigmas: tuple[float, ...]


def analytic_sigma(epsilon: float) -> float:
    """The least noise for any r: that of the heterogeneous analytic mechanism."""
    return calibrate("heterogeneous-analytic", epsilon, DELTA, redistribution=_EQUAL).sigma


def paper_sigma(epsilon: float) -> float:
    """The noise of the paper's Theorem 3."""
    return calibrate("heterogeneous", epsilon, DELTA, redistribution=_EQUAL).sigma


def classic_sigma(epsilon: float) -> float:
    """The textbook formula, beyond its range too: the picture shows where it breaks."""
    return paper_classic_sigma(epsilon, DELTA)


def curves() -> list[Curve]:
    """The lines of both panels; the classic one in three pieces, by what is known about it."""

    def curve(label: str, colour: str, style: str, sigma: Callable[[float], float], chosen: Sequence[float]) -> Curve:
        return Curve(label, colour, style, tuple(chosen), tuple(sigma(epsilon) for epsilon in chosen))

    private = [gaussian_delta(epsilon, classic_sigma(epsilon)) <= DELTA for epsilon in EPSILONS]
    last = private.index(False)  # the profile crosses delta once
    inside = sum(epsilon <= LARGEST_EPSILON for epsilon in EPSILONS)
    return [
        curve("classic Gaussian (proven for ε ≤ 1)", _CLASSIC, "-", classic_sigma, EPSILONS[:inside]),
        curve("the same formula beyond", _CLASSIC, ":", classic_sigma, EPSILONS[inside - 1 : last]),
        curve("the same formula, not private", BROKEN, ":", classic_sigma, EPSILONS[last - 1 :]),
        curve("heterogeneous / extended (Theorems 2, 3)", _PAPER, "--", paper_sigma, EPSILONS),
        curve("heterogeneous analytic, any r (ours); analytic", _OURS, "-", analytic_sigma, EPSILONS),
    ]


class SigmaCurves:
    """The figure as a reproduction without cells."""

    def cells(self, options: Options) -> list[Cell]:
        """None: everything is computed."""
        return []

    def findings(self, done: Sequence[Measured]) -> Findings:
        """The noise of each mechanism; exact, so that there is one value at each epsilon."""
        lines = tuple(
            Line(one.label, "plain", place, one.epsilons, tuple((sigma,) for sigma in one.sigmas), marked=False)
            for place, one in enumerate(curves())
        )
        return Findings((Panel("noise for sensitivity 1, delta 1e-5", "epsilon", lines),), notes=("computed, not measured",))

    def figure(self, findings: Findings, caption: str) -> Figure:
        """Left the paper's figure, right the same noise over the least that is private; it says nothing of any machine."""
        return sigma_figure()


def sigma_figure() -> Figure:
    drawn = Figure(figsize=(9.0, 3.7), layout="constrained")
    left, right = drawn.subplots(1, 2)
    for curve in curves():
        least = [analytic_sigma(epsilon) for epsilon in curve.epsilons]
        ratios = [sigma / smallest for sigma, smallest in zip(curve.sigmas, least, strict=True)]
        left.plot(curve.epsilons, curve.sigmas, curve.style, color=curve.colour, linewidth=1.6, label=curve.label)
        right.plot(curve.epsilons, ratios, curve.style, color=curve.colour, linewidth=1.6)
    _decorate(left, "noise σ for sensitivity 1, δ = 1e-5")
    left.set_yscale("log")
    left.set_yticks([0.2, 0.5, 1, 2, 5, 10, 20, 50])
    left.yaxis.set_minor_locator(NullLocator())
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    left.legend(frameon=False, fontsize=7.5, loc="upper right")
    _decorate(right, "the same, over the least noise that is private")
    right.set_ylim(0.84, 1.62)
    right.axhspan(0.84, 1.0, color=BROKEN, alpha=0.08, linewidth=0)
    right.text(0.11, 0.91, "below the line: not (ε, δ)-private", color=BROKEN, fontsize=7.5, va="center")
    return drawn


def _decorate(axes: Axes, title: str) -> None:
    axes.set_xscale("log")
    axes.set_xlim(EPSILONS[0], EPSILONS[-1])
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("ε")
    axes.set_title(title, loc="left", fontsize=9)
    axes.grid(color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
