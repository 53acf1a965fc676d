"""Measuring a model as the papers of Phan et al. do: linf attacks of several sizes, certificates of its own noise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from twinproof.data.record import Dataset
from twinproof.papers.effort import in_input_units
from twinproof.papers.measurement import Numbers
from twinproof.runs.run import Run

ATTACKS = ("fgsm", "ifgsm", "mim", "pgd")
"""The four attacks of the papers; ``pgd`` is their "MadryEtAl"."""
PAPER_SIZES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
_LARGEST, _STEPS = 0.6, 120


@dataclass(frozen=True)
class UnderAttack:
    """linf attacks by the papers' protocol, and certificates of the model's own noise. Sizes in input units.

    ``n0``, ``n`` and ``alpha`` are those of the certificates; at an attacked input the class is chosen by the same n0 draws and
    certified by ``judging`` draws. ``certified`` is False for models that answer without noise, and so have no certificate of
    this kind: networks that have none, or whose noise was drawn once. ``adaptive_*`` belong to PGD in expectation over the
    noise.
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

    @property
    def after(self) -> None:
        """It has a run of its own."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {name: list(getattr(self, name)) for name in ("sizes", "attacks", "adaptive_sizes")}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        """Certifies and attacks ``run``, and counts."""
        from twinproof.papers.attacked_numbers import attacked_numbers

        return attacked_numbers(self, run, dataset, device=device)

    def words(self) -> str:
        """Images, attack steps and alpha."""
        return f"{self.limit} test images, {self.steps} attack steps, alpha {self.alpha:g} for each certificate"
