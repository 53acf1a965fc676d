"""One table or figure of a paper, as data, and what a person chooses about making it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinproof import checks
from twinproof.data.load import ROOT_VARIABLE, describe_sources

if TYPE_CHECKING:
    from twinproof_papers.reproduce import Reproduction


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


@dataclass(frozen=True)
class Availability:
    """Whether an experiment can run here and now, and why."""

    runs: bool
    reason: str


@dataclass(frozen=True)
class Experiment:
    """A table or figure. ``settings`` are the paper's own, as printed; ``obstacle`` says why nothing here makes it.

    ``data`` are the data sets that it needs beside what is embedded. ``reproduction`` makes it again, where it is from another
    package (entry point ``twinproof.experiments``); our own are in ``reproduce``.
    """

    name: str
    paper: str
    item: str
    shows: str
    published: tuple[Published, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    data: tuple[str, ...] = ()
    obstacle: str = ""
    reproduction: Callable[[], Reproduction] | None = None

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
            "published": [asdict(number) for number in self.published],
        }


def numbered(paper: Paper, prefix: str, item: str, number: int, shows: str, **more: Any) -> Experiment:
    kind = "fig" if item == "Figure" else item.lower()
    return Experiment(f"{prefix}-{kind}{number}", paper, f"{item} {number}", shows, **more)


PAPER_SCALE = 2.0
"""The papers' inputs lie in [-1, 1], ours in [0, 1]: their sizes are twice ours."""


@dataclass(frozen=True)
class Options:
    """How much work a reproduction does. None means: what the experiment itself says.

    ``seeds`` is the number of repetitions: trainings from scratch, each with fresh secret randomness, so that a private run
    stays private. ``quick`` takes embedded data and small settings: a first look and a test, no reproduction. ``processes``
    models are made at a time, which changes their speed and nothing else. ``methods`` are the only rows of a table that are
    made; none means all.
    """

    seeds: int = 3
    limit: int | None = None
    epochs: float | None = None
    quick: bool = False
    device: str = "auto"
    data_root: Path | None = None
    processes: int = 1
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.whole(1, seeds=self.seeds, limit=1 if self.limit is None else self.limit, processes=self.processes)
        if self.epochs is not None:
            checks.positive(epochs=self.epochs)

    def command(self, name: str, *, computed: bool = False) -> str:
        """The command that asks for the same work; without paths, which mean nothing on another machine."""
        if computed:
            return f"twinproof reproduce {name}"
        words = ["twinproof", "reproduce", name, "--seeds", str(self.seeds)]
        words += ["--limit", str(self.limit)] if self.limit is not None else []
        words += ["--epochs", f"{self.epochs:g}"] if self.epochs is not None else []
        words += ["--quick"] if self.quick else []
        words += ["--methods", ",".join(self.methods)] if self.methods else []
        return " ".join(words)


def in_paper_scale(size: float) -> float:
    """A size in input units ([0, 1]) as the papers print it."""
    return float(format(size * PAPER_SCALE, ".12g"))


def in_input_units(size: float) -> float:
    return float(format(size / PAPER_SCALE, ".12g"))
