"""Writing pictures: one look for all of them, text that stays text, and the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinproof.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, RULE = "#222222", "#5f5f5f", "#dddddd"
# Hues of Okabe and Ito, dark enough for thin lines; dashes and marks tell lines apart without them.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6b6b6b", "#8c6d00", "#3E9BCB", "#111111", "#7A3E9D")
BROKEN, BROKEN_TOO = "#CC0033", "#6B0019"  # what is refuted, and a second method of which it is
_SETTINGS: Mapping[Any, Any] = {
    "font.size": 8.5,
    "svg.hashsalt": "twinproof",
    "svg.fonttype": "none",  # text stays text: small, and searchable
    "axes.edgecolor": MUTED,
    "text.color": INK,
}
_DOTS = 110


def write_picture(make: Callable[[], Figure], path: Path) -> None:
    """Draws and saves in one step; the kind of file follows from the name (``.svg`` or ``.png``)."""
    import matplotlib as mpl

    with mpl.rc_context(dict(_SETTINGS)):
        path.parent.mkdir(parents=True, exist_ok=True)
        content, kind = BytesIO(), path.suffix.removeprefix(".")
        make().savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None, dpi=_DOTS)
    write_atomic(path, content.getvalue())
