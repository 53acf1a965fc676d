"""How long it took to make cells: a line for each, in a file beside them, as soon as it is ready.

A killed call keeps what it had written, and a call that made nothing writes nothing.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from twinproof.files import append_line, canonical_json
from twinproof.papers.cell import Cell
from twinproof.runs.layout import utc_now

FILE = "timings.jsonl"


class Call:
    """One call that makes cells of ``experiment`` in ``root``, ``processes`` at a time; its clock runs from now on."""

    def __init__(self, root: Path, experiment: str, processes: int) -> None:
        self._path = root / FILE
        self._known = {"call": secrets.token_hex(8), "experiment": experiment, "began": utc_now(), "processes": processes}
        self._start = time.monotonic()

    def made(self, cell: Cell) -> None:
        """Notes that ``cell`` is ready."""
        line = canonical_json({**self._known, "cell": cell.name, "after": round(time.monotonic() - self._start, 1)})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self._path, line)


def made_in(root: Path, cells: Collection[Cell]) -> list[dict[str, Any]]:
    """The calls that made ``cells``, in order: wall-clock seconds up to the last cell of each, and how many it made.

    Guarantees
        Each cell counts in ``cells_here`` of one call at most: the last that made it. Calls that made none of them are not
        listed. ``seconds`` and ``cells`` speak of the whole call, other experiments' cells included.
    """
    lines = list(_lines(root / FILE))
    last = {line["cell"]: line["call"] for line in lines}
    here = [last[cell.name] for cell in cells if cell.name in last]
    calls: dict[str, dict[str, Any]] = {}
    for line in lines:
        entry = calls.setdefault(line["call"], {key: line[key] for key in ("experiment", "began", "processes")})
        entry["seconds"] = max(entry.get("seconds", 0.0), line["after"])
        entry["cells"] = entry.get("cells", 0) + 1
    return [{**entry, "cells_here": here.count(call)} for call, entry in calls.items() if call in here]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(text)
        except ValueError:
            continue  # cut off by a kill: a time that is not known is not told
