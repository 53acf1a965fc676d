"""What radii are called: ``certified`` only where their promise holds, otherwise ``claimed`` and why.

The names of bounds, laws and places of the noise are here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from twinproof.certification.method import CertificateSettings
from twinproof.guarantee import Status

_LAWS = {"gaussian": "Gaussian", "laplace": "Laplace"}
_PLACES = {
    "input": "at the input",
    "unequal-input": "at the input, with a scale for each coordinate",
    "first-layer": "after the first layer",
    "input-and-first-layer": "at the input and after the first layer",
}
_BOUNDS = {
    "best": "the longest of three proofs for Laplace noise",
    "tight": "tight (Neyman and Pearson)",
    "pure-epsilon": "pure differential privacy over the l1 length",
    "hgm": "HGM-PixelDP, corrected",
    "hgm-complement": "HGM-PixelDP, corrected, with the complement",
    "pixeldp": "PixelDP",
    "composition": "StoBatch's composition over all noises",
    "published": "HGM-PixelDP as published, which is false",
}
_APPENDIX_N = "StoBatch's composition for more noise than is drawn (Appendix N), which is refuted"


class Undone(StrEnum):
    """Why a recorded promise is not shown as one, whatever its status."""

    CHECK_FAILED = "check failed"
    CONTRADICTED = "contradicted"
    MISSING = "evidence missing"


_CLAIMS = {Status.REFUTED: "refuted", Status.PUBLISHED: "not proven", Status.ASSUMED: "not proven"}


@dataclass(frozen=True)
class RadiusWords:
    """The words for radii in one norm; ``claim`` (``claimed, refuted``) is empty where they are a proven promise.

    They are ``certain`` where no draw stands behind them.
    """

    norm: str
    claim: str = ""
    certain: bool = False

    @classmethod
    def of(cls, norm: str, status: Status, undone: Undone | None = None, *, certain: bool = False) -> RadiusWords:
        doubt = None if status is Status.REFUTED else undone
        verdict = str(doubt) if doubt else _CLAIMS.get(status, "")
        return cls(norm, f"claimed, {verdict}" if verdict else "", certain)

    @property
    def suffix(self) -> str:
        return f" ({self.claim})" if self.claim else ""

    @property
    def certified(self) -> str:
        """``certified`` or ``claimed``."""
        return "claimed" if self.claim else "certified"

    @property
    def axis(self) -> str:
        return f"{self.certified} {self.norm} radius{self.claim.removeprefix('claimed')}"

    @property
    def accuracy(self) -> str:
        """The name of the share of inputs with a radius: ``Certified accuracy``, ``Claimed accuracy, refuted``."""
        return f"{self.certified.capitalize()} accuracy{self.claim.removeprefix('claimed')}"

    @property
    def confidence(self) -> str:
        """How often single radii are wrong; the intervals over test inputs do not include that."""
        if self.claim:
            return f"Radii marked “{self.claim}” may be wrong for any share of the inputs."
        if self.certain:
            return "The radii of interval bounds hold with certainty."
        return "Below them lies a second layer of confidence: each certificate is wrong with probability at most alpha."


def noise_text(settings: CertificateSettings) -> str:
    return f"{_LAWS.get(settings.noise.law, settings.noise.law)}, {_PLACES.get(settings.noise.place, settings.noise.place)}"


def voting_text(settings: CertificateSettings | None) -> str:
    scores = settings is not None and settings.method.statistic == "scores"
    return "averages its scores over noisy copies" if scores else "votes over noisy copies"


def bound_text(settings: CertificateSettings) -> str:
    """The bound that turned draws into radii, and the statistic and confidence bound where they are not the usual ones."""
    method = settings.method
    of_laplace = (method.bound, settings.noise.law) == ("published", "laplace")
    named = _APPENDIX_N if of_laplace else _BOUNDS.get(method.bound, method.bound)
    how = [str(method.statistic), method.confidence] + ([str(method.runner_up)] if method.runner_up != "complement" else [])
    return named if how == ["votes", "clopper-pearson"] else f"{named}; {', '.join(how)}"
