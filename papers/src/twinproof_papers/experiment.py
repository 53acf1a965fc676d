"""One table or figure of a paper, as data: what it shows, what it prints, and whether it can be made again here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from twinproof.data.sources import ROOT_VARIABLE, describe_sources


class Paper(StrEnum):
    """The papers by the names that experiments begin with."""

    PIXELDP = "Lecuyer et al. 2019, PixelDP (readme of an implementation)"
    HGM = "Phan et al. 2019, Heterogeneous Gaussian Mechanism"
    STOBATCH = "Phan et al. 2020, Scalable differential privacy with certified robustness (StoBatch)"
    DPCERT = "Wu et al. 2023, Augment then Smooth (DP-CERT)"


@dataclass(frozen=True)
class Published:
    """One number as printed in text or a table; never one that was read off a plot.

    ``key`` is the name under which a reproduction reports its own value of the same thing. ``unit`` is ``%`` (a share of test
    images), ``points`` (a difference of such shares) or ``radius`` (l2, pixels in [0, 1]).
    """

    key: str
    what: str
    value: float
    where: str
    unit: str = "%"
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Availability:
    """Whether an experiment can run here and now, and why."""

    runs: bool
    reason: str


@dataclass(frozen=True)
class Experiment:
    """A table or figure. ``settings`` are the paper's own, as printed; ``obstacle`` says why nothing here makes it.

    ``data`` are the data sets that it needs beside what is embedded.
    """

    name: str
    paper: Paper
    item: str
    shows: str
    published: tuple[Published, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    data: tuple[str, ...] = ()
    obstacle: str = ""

    def availability(self, data_root: Path | None = None) -> Availability:
        """Whether ``twinproof reproduce`` can run it with the data that are found."""
        if self.obstacle:
            return Availability(False, self.obstacle)
        if not self.data:
            return Availability(True, "needs no data")
        found = {source.name for source in describe_sources(data_root) if source.available}
        missing = [name for name in self.data if name not in found]
        if not missing:
            return Availability(True, f"found: {', '.join(self.data)}")
        fix = f"give --data-root or set {ROOT_VARIABLE}; --quick runs a first look on embedded data"
        absent = " and ".join(f"the data set {name} is not there" for name in missing)
        return Availability(False, f"{absent}: {fix}")

    def as_dict(self, data_root: Path | None = None) -> dict[str, Any]:
        """The entry of ``reproduce --list --json``."""
        available = self.availability(data_root)
        return {
            "name": self.name,
            "paper": str(self.paper),
            "item": self.item,
            "shows": self.shows,
            "runs_here": available.runs,
            "reason": available.reason,
            "data": list(self.data),
            "settings": dict(self.settings),
            "published": [number.as_dict() for number in self.published],
        }
