"""What radii are called and how they came about: ``certified`` only where their promise stands.

A radius of a bound that is known to be false is a claim. Wherever a page shows one, it says so in the same breath.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinproof.certification.record import CertificateSettings
from twinproof.guarantee import Status

REFUTED_CLAIM, UNPROVEN_CLAIM = "claimed, refuted", "claimed, not proven"
_CLAIMS = {Status.REFUTED: REFUTED_CLAIM, Status.PUBLISHED: UNPROVEN_CLAIM, Status.ASSUMED: UNPROVEN_CLAIM}
_LAWS = {"gaussian": "Gaussian", "laplace": "Laplace"}
_PLACES = {
    "input": "at the input",
    "first-layer": "after the first layer",
    "input-and-first-layer": "at the input and after the first layer",
}
_BOUNDS = {
    "tight": "tight (Neyman and Pearson)",
    "hgm": "HGM-PixelDP, corrected",
    "hgm-complement": "HGM-PixelDP, corrected, with the complement",
    "pixeldp": "PixelDP",
    "composition": "StoBatch's composition over all noises",
    "published": "HGM-PixelDP as published, which is false",
}
_APPENDIX_N = "StoBatch's composition for more noise than is drawn (Appendix N), which is refuted"


@dataclass(frozen=True)
class RadiusWords:
    """The words for radii in one norm; ``claim`` is empty where they are a proven promise."""

    norm: str
    claim: str = ""

    @classmethod
    def of(cls, status: Status, settings: CertificateSettings | None) -> RadiusWords:
        """The words for a run's radii, by the status of its promise of robustness."""
        return cls(settings.method.norm if settings else "l2", _CLAIMS.get(status, ""))

    @property
    def suffix(self) -> str:
        """What follows a heading or a name: nothing, or the claim in brackets."""
        return f" ({self.claim})" if self.claim else ""

    @property
    def certified(self) -> str:
        """``certified``, or ``claimed`` where that would say too much."""
        return "claimed" if self.claim else "certified"

    @property
    def axis(self) -> str:
        """The label of an axis of radii: ``certified l2 radius``, ``claimed l2 radius, refuted``."""
        return f"{self.certified} {self.norm} radius{self._verdict}"

    @property
    def accuracy(self) -> str:
        """The name of the share of inputs with a radius, as a heading has it."""
        return f"{self.certified.capitalize()} accuracy{self._verdict}"

    @property
    def second_layer(self) -> str:
        """What lies below the intervals over test inputs: how often single radii are wrong."""
        if self.claim:
            return f"Radii that are {self.claim} may be wrong for any share of the inputs."
        return "Below them lies a second layer of confidence: each certificate is wrong with probability at most alpha."

    @property
    def _verdict(self) -> str:
        """The claim without its first word, where ``certified`` already said that."""
        return self.claim.removeprefix("claimed")


def noise_text(settings: CertificateSettings) -> str:
    """Law and place of the noise: ``Gaussian, after the first layer``."""
    return f"{_LAWS.get(settings.noise.law, settings.noise.law)}, {_PLACES.get(settings.noise.place, settings.noise.place)}"


def voting_text(settings: CertificateSettings | None) -> str:
    """How the smoothed classifier comes to its answer."""
    scores = settings is not None and settings.method.statistic == "scores"
    return "averages its scores over noisy copies" if scores else "votes over noisy copies"


def bound_text(settings: CertificateSettings) -> str:
    """The bound that turned draws into radii, and what it rests on where that is not the usual."""
    of_laplace = (settings.method.bound, settings.noise.law) == ("published", "laplace")
    named = _APPENDIX_N if of_laplace else _BOUNDS.get(settings.method.bound, settings.method.bound)
    how = [settings.method.statistic, settings.method.confidence] + (
        [settings.method.runner_up] if settings.method.runner_up != "complement" else []
    )
    return named if how == ["votes", "clopper-pearson"] else f"{named}; {', '.join(how)}"
