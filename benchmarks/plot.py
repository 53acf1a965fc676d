"""Draws what ``run.py --out`` wrote: speed against batch for every method, and certification.

    python benchmarks/plot.py results/cpu.json results/gpu.json --out docs/images --format svg

Each file gives pictures of its own, named after it: only numbers of one run on one machine may stand beside each other. Rows
that were not run are left out; the JSON file says why they were not.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullLocator

from twinproof.errors import DataError, UserError

FORMAT = "twinproof-benchmark/1"
BASELINE = "Opacus hooks"
_INK, _MUTED, _RULE = "#222222", "#5f5f5f", "#dddddd"
# Hues of Okabe and Ito, which people with any colour vision can tell apart; inside a family dashes and markers differ.
_FAMILIES: Mapping[str, str] = {
    "twinproof": "#0072B2",
    "plain SGD": "#6b6b6b",
    "Opacus": "#D55E00",
    "torch vmap": "#009E73",
    "JAX": "#AA4499",
}
_STYLES: tuple[tuple[str, str], ...] = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
_PANEL = (5.6, 3.5)  # inches, names beside the lines included
_LABEL_POINTS = 7.5
_NOTE_LETTERS = 90  # what fits under one panel
_IN_TURNS = "median of the ratios inside each turn"
_SETTINGS: Mapping[Any, Any] = {"font.size": 8.5, "svg.hashsalt": "twinproof", "axes.edgecolor": _MUTED, "text.color": _INK}


@dataclass(frozen=True)
class Line:
    """One method in one panel: (batch, records per second) by rising batch, and its speed over that of Opacus."""

    method: str
    points: tuple[tuple[int, float], ...]
    ratio: float | None

    @property
    def label(self) -> str:
        """What stands at the end of the line."""
        return self.method if self.ratio is None else f"{self.method}  {_ratio(self.ratio)}"


@dataclass(frozen=True)
class Panel:
    """The methods that were measured on one network with one number of copies."""

    workload: str
    copies: int
    lines: tuple[Line, ...]


def read_result(path: Path) -> dict[str, Any]:
    """The content of a file of ``run.py``; DataError for anything else."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError("the result cannot be read", where=str(path), got=error, wanted="a JSON file") from error
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        got = result.get("format") if isinstance(result, dict) else type(result).__name__
        raise DataError(
            "this is no result of a benchmark",
            where=str(path),
            got=got,
            wanted=FORMAT,
            fix=f"python benchmarks/run.py --out {path}",
        )
    return result


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """One panel for each network and number of copies, in the order of the file; without what was not run."""
    grouped: dict[tuple[str, int], dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        if row["records_per_second"] is not None:
            grouped.setdefault((row["workload"], row["copies"]), {}).setdefault(row["method"], []).append(row)
    return [
        Panel(workload, copies, tuple(_line(method, found) for method, found in methods.items()))
        for (workload, copies), methods in grouped.items()
    ]


def _line(method: str, rows: Sequence[Mapping[str, Any]]) -> Line:
    ordered = sorted(rows, key=lambda row: int(row["records"]))
    points = tuple((int(row["records"]), float(row["records_per_second"])) for row in ordered)
    ratios = [float(row["ratio_to_opacus"]) for row in ordered if row["ratio_to_opacus"] is not None]
    return Line(method, points, ratios[-1] if ratios else None)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places in [0, 1] that keep the order of ``wanted``, at least ``gap`` apart (less where there is no room for it).

    Neighbours that would overlap form a block around the mean of what they wanted, so that none moves farther than it must.
    """
    gap = min(gap, 1.0 / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[list[float]] = []  # places less the gaps below them: inside a block these are equal
    for rank, index in enumerate(order):
        blocks.append([wanted[index] - rank * gap])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    room = 1.0 - (len(wanted) - 1) * gap
    levels = [min(max(fmean(block), 0.0), room) for block in blocks for _ in block]
    places = dict(zip(order, (level + rank * gap for rank, level in enumerate(levels)), strict=True))
    return [places[index] for index in range(len(wanted))]


def step_figure(found: Sequence[Panel], caption: str) -> Figure:
    """Records per second against batch: a row for each network, a column for each number of copies."""
    workloads = list(dict.fromkeys(panel.workload for panel in found))
    copies = sorted({panel.copies for panel in found})
    size = (_PANEL[0] * len(copies), _PANEL[1] * len(workloads) + 0.5)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    grid = figure.subplots(len(workloads), len(copies), squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for panel in found:
        _draw_panel(grid[workloads.index(panel.workload)][copies.index(panel.copies)], panel)
    figure.suptitle("Private step: records per second", x=0.01, ha="left", fontsize=11, fontweight="bold")
    told = f"Higher is better. ×: against {BASELINE}, at the largest batch that both ran, {_IN_TURNS}."
    note = "\n".join([*textwrap.wrap(told, _NOTE_LETTERS * len(copies)), caption])
    figure.supxlabel(note, x=0.01, ha="left", fontsize=7, color=_MUTED)
    return figure


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_visible(True)
    counted: dict[str, int] = {}
    looks = []
    for line in panel.lines:
        family = _family(line.method)
        dashes, marker = _STYLES[counted.setdefault(family, 0) % len(_STYLES)]
        counted[family] += 1
        ours = family == "twinproof"
        looks.append((_FAMILIES.get(family, _INK), "bold" if ours else "normal"))
        axes.plot(
            *zip(*line.points, strict=True),
            color=looks[-1][0],
            linestyle=dashes,
            marker=marker,
            markersize=5 if ours else 4,
            linewidth=2.4 if ours else 1.2,
            zorder=3 if ours else 2,
        )
    _set_scales(axes, panel)
    copies = "1 copy" if panel.copies == 1 else f"{panel.copies} copies"
    axes.set_title(f"{panel.workload}, {copies} of each record", loc="left", fontsize=9)
    axes.set_xlabel("records of a step")
    _label_ends(axes, panel.lines, looks)


def _set_scales(axes: Axes, panel: Panel) -> None:
    """Logarithmic both ways, so that equal ratios are equal distances; a tick for each batch that was measured."""
    batches = sorted({batch for line in panel.lines for batch, _ in line.points})
    speeds = [speed for line in panel.lines for _, speed in line.points]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(batches[0] / 1.3, batches[-1] * 1.15)
    axes.set_ylim(min(speeds) / 1.4, max(speeds) * 1.4)
    axes.set_xticks(batches, [f"{batch:,}" for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = _speed_ticks(*axes.get_ylim())
    axes.set_yticks(ticks, [_short(tick) for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=_RULE, linewidth=0.7)
    _plain_frame(axes)


def _speed_ticks(low: float, high: float) -> list[float]:
    """Round numbers in between; fewer of each decade where there are many decades."""
    steps = (1, 2, 5) if high / low < 200 else (1,)
    every = [step * 10.0**power for power in range(-3, 12) for step in steps]
    return [tick for tick in every if low <= tick <= high]


def _label_ends(axes: Axes, lines: Sequence[Line], looks: Sequence[tuple[str, str]]) -> None:
    """Each line's name to the right of its end, moved up or down where two would overlap, and tied to its end."""
    to_axes = axes.transScale + axes.transLimits
    ends = [float(to_axes.transform(line.points[-1])[1]) for line in lines]
    gap = 1.35 * _LABEL_POINTS / (72 * 0.72 * _PANEL[1])
    for line, (colour, weight), place in zip(lines, looks, spread(ends, gap), strict=True):
        axes.annotate(
            line.label,
            xy=line.points[-1],
            xytext=(1.06, place),
            textcoords="axes fraction",
            va="center",
            fontsize=_LABEL_POINTS,
            fontweight=weight,
            color=colour,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5), "shrinkA": 2, "shrinkB": 4},
        )


def certification_figure(rows: Sequence[Mapping[str, Any]], caption: str) -> Figure:
    """Certified images per second as bars from zero, with the ratio to the paper's loop and how often the answers agree."""
    figure = Figure(figsize=(7.2, 1.5 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    speeds = [float(row["images_per_second"]) for row in rows]
    colours = [_FAMILIES.get(_family(row["method"]), _FAMILIES["plain SGD"]) for row in rows]
    axes.barh(range(len(rows)), speeds, height=0.6, color=colours)
    for index, row in enumerate(rows):
        axes.text(speeds[index] + 0.01 * max(speeds), index, _bar_label(row), va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(speeds))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    _plain_frame(axes)
    axes.tick_params(axis="y", length=0)
    draws, images = rows[0]["draws"], rows[0]["images"]
    title = f"Certification: images per second, {draws:,} draws each"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    note = f"Higher is better. The same {images:,} images for each method. ×: {_IN_TURNS}.\n{caption}"
    figure.supxlabel(note, x=0.01, ha="left", fontsize=7, color=_MUTED)
    return figure


def _bar_label(row: Mapping[str, Any]) -> str:
    speed = float(row["images_per_second"])
    parts = [f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"]
    if row["ratio_to_paper"] is not None:
        parts.append(_ratio(row["ratio_to_paper"]))
    if row["same_prediction"] is not None:
        # Rounded down: 99.96 % is not all of them.
        parts.append(f"same answer {math.floor(1000 * row['same_prediction']) / 10:g} %")
    return "   ".join(parts)


def _family(method: str) -> str:
    return next((family for family in _FAMILIES if method.startswith(family)), method)


def _ratio(value: float) -> str:
    return f"{value:.2f}×" if value < 10 else f"{value:,.0f}×"


def _short(value: float) -> str:
    """10,000 as 10k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _plain_frame(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_MUTED, labelcolor=_INK)
    axes.set_axisbelow(True)


def caption_of(result: Mapping[str, Any]) -> str:
    """Machine, software and date, so that a picture never stands without them."""
    versions = ", ".join(f"{name} {result['versions'][name]}" for name in ("torch", "opacus") if name in result["versions"])
    return f"{result['device']}; {versions}; median of {result['turns']} turns; {result['date'][:10]}"


def draw(path: Path, folder: Path, suffix: str) -> list[Path]:
    """The pictures of one result, named after its file; DataError where nothing in it was measured."""
    result = read_result(path)
    figures: dict[str, Figure] = {}
    with mpl.rc_context(dict(_SETTINGS)):
        found = panels(result["private_step"])
        if found:
            figures["private-step"] = step_figure(found, caption_of(result))
        certified = [row for row in result["certification"] if row["images_per_second"] is not None]
        if certified:
            figures["certification"] = certification_figure(certified, caption_of(result))
        if not figures:
            raise DataError("nothing was measured in this result", where=str(path), got="rows without numbers", wanted="one")
        folder.mkdir(parents=True, exist_ok=True)
        written = [folder / f"{path.stem}-{name}.{suffix}" for name in figures]
        for target, figure in zip(written, figures.values(), strict=True):
            # No date and a fixed salt: the same numbers give the same file.
            figure.savefig(target, dpi=160, metadata={"Date": None} if suffix == "svg" else {"Software": None})
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="JSON files of run.py")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder of the pictures; default: docs/images")
    parser.add_argument("--format", choices=["png", "svg"], default="svg")
    given = parser.parse_args(arguments)
    try:
        for path in given.results:
            for target in draw(path, given.out, given.format):
                print(target)
    except UserError as error:
        print(error.message(), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
