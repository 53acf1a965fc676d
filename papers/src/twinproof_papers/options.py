"""What a person chooses about a reproduction: how often, how much, where; and the scale of the papers' sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinproof.errors import ConfigError

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
        for name in ("seeds", "limit", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} cannot be used", where=name, got=value, wanted="at least 1")
        if self.epochs is not None and not self.epochs > 0:
            raise ConfigError("epochs cannot be used", where="epochs", got=self.epochs, wanted="above 0")

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
    """A size as the papers print it, in input units ([0, 1])."""
    return float(format(size / PAPER_SCALE, ".12g"))
