"""The line under which no attack may push: inputs that are certified for a size and yet were misled by an attack of it.

A certificate and an attack that contradict each other mean that one of the two is broken, unless chance explains it: each
certificate fails with probability at most its alpha, and each answer at an attacked input with at most the judge's alpha.
An abstention contradicts nothing: at the edge of its radius an input's votes may be even.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import bdtrc

from twinproof.evaluation.certified import answered_correctly
from twinproof.evaluation.intervals import Interval, binomial_interval
from twinproof.runs.attacks import AttackLine
from twinproof.runs.certificates import Certificate, CertificateSettings
from twinproof.runs.record import COMPLETE

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
    usable = settings.state == COMPLETE and settings.model_sha256 == model_sha256 and settings.statistic == VOTES
    if not usable:
        return None
    return CertifiedLine(certificates, settings.alpha, "certificates.csv", independent=not settings.shared_noise)


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
        """Plain JSON values."""
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
