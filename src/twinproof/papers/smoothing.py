"""Measuring a model as DP-CERT does: l2 certificates by CERTIFY, clean accuracy, and accuracy under one linf step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.papers.measurement import Numbers
from twinproof.runs.run import Run

KIND = "smoothing"
FGSM_SIZES = (0.0005, 0.01, 0.1, 0.5, 1.0)
"""linf, inputs in [0, 1]: those of Figure 16."""
_STEPS_PER_UNIT = 20
_LONGEST = 4  # in sigmas: beyond what 100,000 draws can certify at alpha 0.001


def radii_of(sigma: float) -> tuple[float, ...]:
    """Where certified accuracy is read: every 0.05 from 0 to four sigmas, so that 0.25 is always among them."""
    return tuple(step / _STEPS_PER_UNIT for step in range(round(_LONGEST * sigma * _STEPS_PER_UNIT) + 1))


@dataclass(frozen=True)
class Smoothing:
    """Certificates of the first ``limit`` test inputs (None: all) under Gaussian noise of each of ``sigmas``, in input units.

    A model that never saw noise is trained once and certified at all of them.
    """

    sigmas: tuple[float, ...]
    limit: int | None = None
    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    fgsm_sizes: tuple[float, ...] = FGSM_SIZES

    def __post_init__(self) -> None:
        names = [sigma_name(sigma) for sigma in self.sigmas]
        if not names or len(set(names)) < len(names):
            raise ConfigError("sigmas cannot be used", where="sigmas", got=self.sigmas, wanted="at least one, each once")

    @property
    def after(self) -> None:
        """It has a run of its own."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``kind`` tells them from other measurements."""
        return {"kind": KIND, **asdict(self), "sigmas": list(self.sigmas), "fgsm_sizes": list(self.fgsm_sizes)}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        """Certifies ``run`` at every sigma, attacks it without noise, and counts."""
        from twinproof.papers.smoothing_numbers import smoothing_numbers

        return smoothing_numbers(self, run, dataset, device=device)

    def is_whole(self, folder: Path) -> bool:
        """Whether the run and its copies have the certificates of every sigma."""
        from twinproof.papers.certified_copies import has_certificates

        return has_certificates(self, folder)

    def words(self) -> str:
        """Images and the settings of CERTIFY."""
        images = "all test images" if self.limit is None else f"{self.limit} test images"
        return f"{images}, n0 = {self.n0}, n = {self.n}, alpha {self.alpha:g} for each certificate (l2)"


def sigma_name(sigma: float) -> str:
    """A sigma as the text that keys numbers and folders."""
    return f"{sigma:.12g}"
