"""The rows as text: numbers a person can compare, and the reason where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from speed.certification import CertificationRow
from speed.private_step import Row

_STEP_HEADER = ("method", "records/s", "x Opacus", "of SGD", "of limit", "step MB", "note")
_CERTIFY_HEADER = ("method", "images/s", "x paper", "of limit", "same answer", "note")


def step_table(rows: Sequence[Row]) -> str:
    """The rows of one task."""
    first = rows[0]
    passes = "" if first.records_per_pass == first.records else f", passes of {first.records_per_pass}"
    title = f"{first.workload}, batch {first.records}, copies {first.copies}{passes}"
    lines = [
        (
            row.method,
            _shown(row.records_per_second, _rate),
            _shown(row.ratio_to_opacus, _ratio),
            _shown(row.ratio_to_sgd, _ratio),
            _shown(row.fraction_of_limit, _percent),
            _shown(row.step_bytes, lambda value: f"{value / 1e6:.0f}"),
            row.note,
        )
        for row in rows
    ]
    return _text(title, _STEP_HEADER, lines)


def certification_table(rows: Sequence[CertificationRow]) -> str:
    """The rows of the certification."""
    lines = [
        (
            row.method,
            _shown(row.images_per_second, lambda value: f"{value:.3g}"),
            _shown(row.ratio_to_paper, _ratio),
            _shown(row.fraction_of_limit, _percent),
            _shown(row.same_prediction, _percent),
            row.note,
        )
        for row in rows
    ]
    return _text(f"certification, {rows[0].images} images, {rows[0].draws} draws each", _CERTIFY_HEADER, lines)


def _text(title: str, header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    table = [tuple(header), *map(tuple, lines)]
    widths = [max(len(line[column]) for line in table) for column in range(len(header))]
    shown = [
        "  ".join(
            cell.ljust(width) if column in (0, len(header) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in table
    ]
    return "\n".join([title, *(f"  {line}" for line in shown)])


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"
