"""Certified accuracy, average certified radius, and attacks that cross the certified line.

Two layers of confidence lie on top of each other and must not be mixed up:

1. each certificate is wrong with probability at most ``alpha``, over the noise drawn for that input (not jointly for all);
2. each interval here holds with 95 % (or the confidence asked for), over the draw of the test inputs: it says how far the
   share or mean of these certificates may lie from the one that all inputs of that kind would give, certified in the same way.
   Inputs that shared their noise are independent of each other only given that noise: then the interval is for inputs
   certified with this very noise, and says nothing about other noise (``CertifiedSummary.intervals_over``).

A reader who wants the share of inputs that are truly robust takes the lower end of layer 2 and subtracts alpha.

A certificate and an attack that contradict each other mean that one of the two is broken, unless chance explains it: each
certificate fails with probability at most its alpha, and each answer at an attacked input with at most the judge's alpha.
An abstention contradicts nothing: at the edge of its radius an input's votes may be even.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from scipy.special import bdtrc

from twinproof.certification.catalogue import find_bound, status_of
from twinproof.certification.interval_run import IntervalSettings
from twinproof.certification.method import CertificateSettings
from twinproof.errors import ConfigError, DataError
from twinproof.evaluation.accuracy import Interval, binomial_interval, mean_interval
from twinproof.evaluation.attack_record import AttackLine, AttackSettings
from twinproof.guarantee import RADIUS_DIGITS, Status, round_down
from twinproof.layers.noise import Law
from twinproof.runs.layout import COMPLETE
from twinproof.runs.records import ABSTAIN, Certificate

# Twice the inverse of each norm's order: the longest change of one norm, seen in another, differs by sqrt(d) for each step.
_STEPS = {"l1": 2, "l2": 1, "linf": 0}


def reach(attack_norm: str, size: float, certificate_norm: str, dimension: int) -> float:
    """The largest length in ``certificate_norm`` of a change of ``size`` in ``attack_norm``, rounded up as radii are down.

    The largest ||x||_p over ||x||_q = 1 in d dimensions is d^(1/p - 1/q), and 1 where that is negative:

    | certified in | l1 attack | l2 attack | linf attack |
    | --- | --- | --- | --- |
    | l1 | 1 | sqrt(d) | d |
    | l2 | 1 | 1 | sqrt(d) |
    | linf | 1 | 1 | 1 |

    All of them are attained (one coordinate, or all of them equal), so that nothing smaller would do: an l2 radius of r says
    nothing about all linf changes of size r, most of which are longer than r. ``dimension`` is that of the inputs, wherever
    the noise is added.

    Never below the true value: the size is the decimal that it prints as, and the root is taken in integers, rounded up.
    """
    for name, norm in (("attack_norm", attack_norm), ("certificate_norm", certificate_norm)):
        if norm not in _STEPS:
            raise ConfigError("unknown norm", where=name, got=norm, wanted=", ".join(_STEPS))
    factor = dimension ** max(0, _STEPS[certificate_norm] - _STEPS[attack_norm])
    square = Fraction(repr(float(size))) ** 2 * factor * 100**RADIUS_DIGITS
    whole = math.ceil(square)
    root = math.isqrt(whole - 1) + 1 if whole > 0 else 0
    return float(Fraction(root, 10**RADIUS_DIGITS))


def already_refuted(settings: CertificateSettings | AttackSettings) -> bool:
    """Whether radii made with these settings were refuted before anybody attacked them.

    It is the bound that decides, and not the status in ``run.json``: that may be refuted by an audit, which is a surprise.
    """
    try:
        return status_of(find_bound(settings.method.bound, Law(settings.noise.law))) is Status.REFUTED
    except (ConfigError, ValueError):
        return False  # a law that nobody knows: `verify` names it, and nothing is expected of it


RADIUS_STEP = 0.25
LINF_RADII = (0.0, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3)
"""Those of the field's tables in linf, for inputs in [0, 1]."""
OVER_INPUTS_ALONE = "test inputs drawn like these"
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

    No radius may exceed ``largest_radius``, which unanimous votes give; a certificate that claims more is refused.
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
    """The numbers of a certified test set, each with its interval over test inputs; see the module for the layers.

    Of deterministic certificates ``n`` and ``alpha`` are None, and ``smoothed`` is the accuracy of the network itself.
    """

    acr: Interval
    certified: tuple[tuple[float, Interval], ...]
    smoothed: Interval
    abstained: Interval
    n: int | None
    alpha: float | None
    norm: str
    shared_noise: bool = False

    @property
    def intervals_over(self) -> str:
        if self.n is None:
            return OVER_INPUTS_ALONE
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
    settings: CertificateSettings | IntervalSettings,
    *,
    radii: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> CertifiedSummary:
    """All numbers at once; ``radii`` defaults to the multiples of 0.25 that the number of draws can reach.

    Those of deterministic certificates, which are in linf, default to the radii of the tables in that norm.
    """
    sampling = None if isinstance(settings, IntervalSettings) else settings.sampling
    usual = LINF_RADII if sampling is None else default_radii(settings.largest_radius)
    wanted = usual if radii is None else radii
    return CertifiedSummary(
        acr=average_certified_radius(certificates, settings.largest_radius, confidence),
        certified=tuple(certified_curve(certificates, wanted, confidence)),
        smoothed=smoothed_accuracy(certificates, confidence),
        abstained=abstained(certificates, confidence),
        n=None if sampling is None else sampling.n,
        alpha=None if sampling is None else sampling.alpha,
        norm=settings.method.norm,
        shared_noise=sampling is not None and sampling.shared_noise,
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


FALSE_ALARM = 1e-6
VOTES = "votes"


@dataclass(frozen=True)
class CertifiedLine:
    """The certificates that attacks are held against: those of the run, or those made of the same inputs before attacking.

    ``independent`` is false where certificates share their noise and may fail together.
    """

    certificates: Sequence[Certificate]
    alpha: float
    source: str
    independent: bool = True


def line_of(settings: CertificateSettings, certificates: Sequence[Certificate], model_sha256: str) -> CertifiedLine | None:
    """A run's certificates as the line, or None where answers under attack, which are votes, cannot contradict them.

    That needs a complete certification of these weights, and by votes: the class of the highest mean score may be another
    one than that of most votes, and then both are right.
    """
    same = settings.state == COMPLETE and settings.network.model_sha256 == model_sha256
    if not (same and settings.method.statistic == VOTES):
        return None
    sampling = settings.sampling
    return CertifiedLine(certificates, sampling.alpha, "certificates.csv", independent=not sampling.shared_noise)


@dataclass(frozen=True)
class Crossing:
    """At one size: the certified share of the inputs that have both, and how many of the certified ones were misled.

    ``probability`` bounds the chance of so many where certificates and answers keep their promise; ``crossing`` says that it
    is too small to be believed.
    """

    certified: Interval
    inputs: int
    flips: int
    probability: float

    @property
    def crossing(self) -> bool:
        """Whether chance does not explain the flips."""
        return self.flips > 0 and self.probability < FALSE_ALARM

    def as_dict(self) -> dict[str, Any]:
        shares = {"certified": {**self.certified.as_dict(), "inputs": self.inputs}}
        return {**shares, "flips": self.flips, "flips_probability": self.probability, "crossing": self.crossing}


def held_against(
    line: CertifiedLine, entries: Sequence[Mapping[int, AttackLine]], reach: float, judge_alpha: float
) -> Crossing:
    """Compares the certificates with all attacks of one size, by the input's number; ``reach`` is what a radius must cover.

    Guarantees
        Where every certificate and every answer keeps its promise, ``crossing`` is true with probability at most 1e-6.
        Proof: an input is flipped only if its certificate failed or one of its k answers did, so with probability at most
        p = alpha + k * judge_alpha; inputs are independent, so the flips are dominated by a binomial count over all inputs
        that have both. Not over those with a certificate of this size: alpha bounds how often CERTIFY answers and is wrong,
        and where an input's true radius lies just below the size, each certificate of that size fails. Certificates that
        share noise are not independent: then Markov's inequality on the mean number is all that is used.
    """
    attacked = set().union(*entries)
    shared = [one for one in line.certificates if one.index in attacked]
    covered = [one.index for one in shared if answered_correctly(one) and one.radius >= reach]
    flips = sum(any(entry[index].misled for entry in entries) for index in covered)
    chance = min(1.0, line.alpha + len(entries) * judge_alpha)
    return Crossing(
        binomial_interval(len(covered), len(shared)),
        len(shared),
        flips,
        chance_of(flips, len(shared), chance, independent=line.independent),
    )


def chance_of(flips: int, inputs: int, chance: float, *, independent: bool) -> float:
    """Bounds the probability of so many flips or more among ``inputs``, each flipped with probability ``chance`` at most."""
    if flips == 0 or chance >= 1:
        return 1.0
    if not independent:
        return min(1.0, inputs * chance / flips)
    return float(bdtrc(flips - 1, inputs, chance))
