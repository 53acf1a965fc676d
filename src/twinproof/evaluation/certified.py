"""What a list of certificates says about a test set: smoothed accuracy, certified accuracy, average certified radius.

Two layers of confidence lie on top of each other and must not be mixed up:

1. each certificate is wrong with probability at most ``alpha``, over the noise drawn for that input (not jointly for all);
2. each interval here holds with 95 % (or the confidence asked for), over the draw of the test inputs: it says how far the
   share or mean of these certificates may lie from the one that all inputs of that kind would give, certified in the same way.
   Inputs that shared their noise are independent of each other only given that noise: then the interval is for inputs
   certified with this very noise, and says nothing about other noise (``CertifiedSummary.intervals_over``).

A reader who wants the share of inputs that are truly robust takes the lower end of layer 2 and subtracts alpha.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from twinproof.errors import ConfigError, DataError
from twinproof.evaluation.intervals import Interval, binomial_interval, mean_interval
from twinproof.rounding import round_down
from twinproof.runs.certificates import ABSTAIN, Certificate, CertificateSettings

RADIUS_STEP = 0.25
OVER_INPUTS = "test inputs drawn like these, each certified with noise of its own"
OVER_INPUTS_GIVEN_NOISE = (
    "test inputs drawn like these, given the noise that all of them shared; other noise may give other numbers"
)


def answered_correctly(certificate: Certificate) -> bool:
    """Whether the smoothed classifier gave an answer at all, and the true one: an abstention is never correct."""
    return certificate.prediction != ABSTAIN and certificate.correct


def smoothed_accuracy(certificates: Sequence[Certificate], confidence: float = 0.95) -> Interval:
    """Share of inputs that the smoothed classifier answers correctly, whatever the radius; abstentions count as wrong."""
    return binomial_interval(sum(map(answered_correctly, certificates)), _count(certificates), confidence)


def certified_accuracy(certificates: Sequence[Certificate], radius: float, confidence: float = 0.95) -> Interval:
    """Share of inputs answered correctly with a certified radius of at least ``radius``.

    Cohen et al.'s theorem speaks of perturbations strictly smaller than the certified radius, so this is a statement about
    all changes of l2 size below ``radius``, not of exactly that size.

    Guarantees
        Never grows with ``radius``; abstentions and wrong answers never count. The interval is the second layer of
        confidence (over test inputs, at this one radius); each counted certificate fails with probability at most its alpha.
    """
    return certified_curve(certificates, [radius], confidence)[0][1]


def certified_curve(
    certificates: Sequence[Certificate], radii: Sequence[float], confidence: float = 0.95
) -> list[tuple[float, Interval]]:
    """Certified accuracy at each of ``radii``; the band of intervals holds point by point, not for all radii at once."""
    total = _count(certificates)
    held = sorted(certificate.radius for certificate in certificates if answered_correctly(certificate))
    counts = [len(held) - bisect_left(held, radius) for radius in radii]  # those with radius >= the one asked for
    return [(radius, binomial_interval(count, total, confidence)) for radius, count in zip(radii, counts, strict=True)]


def average_certified_radius(certificates: Sequence[Certificate], largest_radius: float, confidence: float = 0.95) -> Interval:
    """Mean of radius times correctness (ACR); abstentions and wrong answers count as 0. ``value`` is rounded down.

    Guarantees
        At least ``confidence`` over the draw of the test inputs, as no radius exceeds ``largest_radius`` (the radius that
        unanimous votes give); a certificate that claims more is refused.
    """
    _count(certificates)
    radii = [certificate.radius if answered_correctly(certificate) else 0.0 for certificate in certificates]
    if largest_radius == 0 and not any(radii):
        return Interval(0.0, 0.0, 0.0, confidence)  # too few draws to certify anything: every input abstains, with certainty
    interval = mean_interval(radii, largest_radius, confidence)
    return replace(interval, value=round_down(interval.value))


def abstained(certificates: Sequence[Certificate], confidence: float = 0.95) -> Interval:
    """Share of inputs on which the smoothed classifier gave no answer."""
    silent = sum(certificate.prediction == ABSTAIN for certificate in certificates)
    return binomial_interval(silent, _count(certificates), confidence)


def radius_at_accuracy(certificates: Sequence[Certificate], share: float) -> float | None:
    """The largest radius at which certified accuracy is still at least ``share``; None where even radius 0 falls short."""
    if not 0 < share <= 1:
        raise ConfigError("the share of inputs is not usable", where="share", got=share, wanted="above 0 and at most 1")
    needed = math.ceil(round(share * _count(certificates), 9))  # 0.07 * 100 is above 7 in binary
    radii = sorted((certificate.radius for certificate in certificates if answered_correctly(certificate)), reverse=True)
    return radii[needed - 1] if needed <= len(radii) else None


def default_radii(largest: float) -> list[float]:
    """0, 0.25, 0.5 and so on, up to and including ``largest``: the radii of the field's tables."""
    return [step * RADIUS_STEP for step in range(int(max(largest, 0.0) / RADIUS_STEP) + 1)]


def radius_name(radius: float) -> str:
    """A radius as the text that keys tables and JSON: ``0``, ``0.25``, ``0.5``, ``1``."""
    return format(radius, ".6g")


@dataclass(frozen=True)
class CertifiedSummary:
    """The numbers of a certified test set, each with its interval over test inputs; see the module for the layers."""

    acr: Interval
    certified: tuple[tuple[float, Interval], ...]
    smoothed: Interval
    abstained: Interval
    n: int
    alpha: float
    norm: str
    shared_noise: bool = False

    @property
    def intervals_over(self) -> str:
        """What the intervals are about, in words."""
        return OVER_INPUTS_GIVEN_NOISE if self.shared_noise else OVER_INPUTS

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; ``n`` is the number of noise draws behind each certificate, shares are fractions of inputs."""
        return {
            "acr": self.acr.value,
            "certified_accuracy": {radius_name(radius): interval.value for radius, interval in self.certified},
            "smoothed_accuracy": self.smoothed.value,
            "abstained": self.abstained.value,
            "n": self.n,
            "alpha": self.alpha,
            "norm": self.norm,
            "intervals_over": self.intervals_over,
            "intervals": {
                "acr": self.acr.as_dict(),
                "certified_accuracy": {radius_name(radius): interval.as_dict() for radius, interval in self.certified},
                "smoothed_accuracy": self.smoothed.as_dict(),
                "abstained": self.abstained.as_dict(),
            },
        }


def summarize(
    certificates: Sequence[Certificate],
    settings: CertificateSettings,
    *,
    radii: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> CertifiedSummary:
    """All numbers at once; ``radii`` defaults to the multiples of 0.25 that the number of draws can reach."""
    wanted = default_radii(settings.largest_radius) if radii is None else radii
    return CertifiedSummary(
        acr=average_certified_radius(certificates, settings.largest_radius, confidence),
        certified=tuple(certified_curve(certificates, wanted, confidence)),
        smoothed=smoothed_accuracy(certificates, confidence),
        abstained=abstained(certificates, confidence),
        n=settings.n,
        alpha=settings.alpha,
        norm=settings.norm,
        shared_noise=settings.shared_noise,
    )


def _count(certificates: Sequence[Certificate]) -> int:
    if not certificates:
        raise DataError(
            "there are no certificates to summarise",
            got=0,
            wanted="at least one",
            fix="certify the run first: twinproof certify RUN",
        )
    return len(certificates)
