"""A cell: one model trained once and measured in one way. Figures share the cells whose settings agree."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from twinproof.files import canonical_json
from twinproof.papers.effort import in_input_units
from twinproof.recipes.config import parse_train_config

ATTACKS = ("fgsm", "ifgsm", "mim", "pgd")
"""The four attacks of the papers; ``pgd`` is their "MadryEtAl"."""
PAPER_SIZES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
_LARGEST, _STEPS = 0.6, 120


@dataclass(frozen=True)
class Measurement:
    """How a model is measured: linf attacks by the papers' protocol, certificates of its own noise. Sizes in input units.

    ``n0``, ``n`` and ``alpha`` are those of the certificates; at an attacked input the class is chosen by the same n0 draws and
    certified by ``judging`` draws. ``certified`` is False for networks without noise of their own, which have no certificate of
    this kind. ``adaptive_*`` belong to PGD in expectation over the noise.
    """

    limit: int = 1000
    sizes: tuple[float, ...] = tuple(in_input_units(size) for size in PAPER_SIZES)
    attacks: tuple[str, ...] = ATTACKS
    steps: int = 10
    n0: int = 100
    n: int = 10_000
    judging: int = 1000
    alpha: float = 0.001
    norm: str = "linf"
    certified: bool = True
    adaptive_sizes: tuple[float, ...] = (in_input_units(0.2),)
    adaptive_steps: int = 20
    adaptive_draws: int = 16
    adaptive_restarts: int = 2

    @property
    def line(self) -> tuple[float, ...]:
        """Where the certified line is read: in small steps, as sound radii are short, up to the papers' largest size."""
        return tuple(in_input_units(_LARGEST * step / _STEPS) for step in range(_STEPS + 1))


@dataclass(frozen=True)
class Cell:
    """One repetition of one model. ``training`` is what ``train`` is given, apart from what only changes speed."""

    method: str
    repetition: int
    training: dict[str, Any] = field(hash=False)
    measurement: Measurement

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that its numbers depend on, as plain JSON values; what the recipe decides is written out."""
        measured: dict[str, Any] = asdict(self.measurement)
        measured |= {name: list(measured[name]) for name in ("sizes", "attacks", "adaptive_sizes")}
        training = parse_train_config(self.training).model_dump(mode="json", exclude={"performance"})
        return {"method": self.method, "repetition": self.repetition, "training": training, "measurement": measured}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the settings."""
        return hashlib.sha256(canonical_json(self.settings).encode()).hexdigest()

    @property
    def name(self) -> str:
        """The name of its folder: readable first, then the digest that makes it unique."""
        epsilon = self.training.get("epsilon")
        middle = "" if epsilon is None else f"-epsilon-{epsilon:g}"
        return f"{self.method}{middle}-{self.repetition}-{self.digest[:12]}"
