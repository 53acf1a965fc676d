"""How certificates are made (norm, bound, statistic, draws, looks), and the ``certificates.json`` that says so.

Stopping as soon as a plain bound says "certified" breaks the bound: it gets many chances to fail. Here the looks are fixed
before the first draw, each has a share of alpha, and the shares add up to alpha: by the union bound all bounds hold at once
with probability 1 - alpha, so that it does not matter at which of them, or why, one stops.
docs/decisions/0006-sequential-certification.md
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

from twinproof.certification.confidence import CONFIDENCE_NAMES, RunnerUp, check_alpha, find_confidence
from twinproof.certification.noise_site import Movement
from twinproof.errors import ConfigError, RunError
from twinproof.privacy.linear_maps import Norm
from twinproof.runs.layout import COMPLETE
from twinproof.runs.reading import Count, Length, Radius, read_json
from twinproof.runs.records import (
    CERTIFICATES,
    Certificate,
    Look,
    WorkSettings,
    evidence,
    read_certificates,
    read_settings,
    same_names,
)
from twinproof.runs.run import Run


class Statistic(StrEnum):
    """What a draw of the network counts."""

    VOTES = "votes"  # 1 for the class with the largest output
    SCORES = "scores"  # the softmax of the outputs, floored to multiples of 2^-20


BEST = "best"
"""Asks for the longest radii that are proven for the noise (``catalogue.best_bound``)."""


@dataclass(frozen=True)
class Method:
    """How radii are made; the default is CERTIFY of Cohen et al. 2019.

    The ``norm`` of the radii, the ``bound`` on robustness, the ``statistic`` that is averaged, its ``confidence`` bound, and
    how the other classes are bounded (``runner_up``). Only combinations that have a proof can be made; whether there is such a
    bound for the noise is decided with the noise.
    """

    norm: str = Norm.L2
    bound: str = BEST
    statistic: str = Statistic.VOTES
    confidence: str = "clopper-pearson"
    runner_up: str = RunnerUp.COMPLEMENT

    def __post_init__(self) -> None:
        for name, allowed in (
            ("norm", tuple(map(str, Norm))),
            ("statistic", tuple(map(str, Statistic))),
            ("confidence", CONFIDENCE_NAMES),
            ("runner_up", tuple(map(str, RunnerUp))),
        ):
            if getattr(self, name) not in allowed:
                what, wanted = f"there is no such {name.replace('_', '-')}", f"one of: {', '.join(allowed)}"
                raise ConfigError(what, where=name, got=getattr(self, name), wanted=wanted)
        if self.statistic == Statistic.SCORES and find_confidence(self.confidence).votes_only:
            others = ", ".join(name for name in CONFIDENCE_NAMES if not find_confidence(name).votes_only)
            raise ConfigError(
                f"{self.confidence} bounds are for votes: the mean of scores is not binomial",
                where="confidence",
                got=f"{self.confidence} with scores",
                wanted=f"one of: {others}",
                fix="empirical-bernstein is the better one where scores vary little",
            )

    @property
    def is_plain(self) -> bool:
        """Whether one number of votes is all the evidence, bounded by Clopper-Pearson: what looks and shared noise are for."""
        plain = (Statistic.VOTES, "clopper-pearson", RunnerUp.COMPLEMENT)
        return (self.statistic, self.confidence, self.runner_up) == plain


PLAIN = Method()
"""CERTIFY of Cohen et al."""


def default_confidence(statistic: str) -> str:
    """The best confidence bound for what is averaged: the exact one for votes, empirical Bernstein for scores."""
    return "empirical-bernstein" if statistic == Statistic.SCORES else PLAIN.confidence


# Enough draws for a plain case at a usual alpha; fewer would only be one more look to share alpha with.
FIRST_LOOK = 125
# Shares like alpha / 7 add up to alpha only up to float64; far below what a bound's own arithmetic errs.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Schedule:
    """The looks at the votes of one input; the last one is the end.

    Guarantees
        Looks come at growing numbers of draws and their failure probabilities add up to at most ``alpha``; anything else is
        refused when the record is made.
    """

    looks: tuple[Look, ...]
    alpha: float

    def __post_init__(self) -> None:
        draws = [look.draws for look in self.looks]
        if not draws or draws[0] < 1 or any(later <= earlier for earlier, later in pairwise(draws)):
            raise ConfigError("the looks are in no order", where="looks", got=draws, wanted="growing numbers of draws, from 1")
        spent = math.fsum(look.alpha for look in self.looks)
        if not (all(look.alpha > 0 for look in self.looks) and spent <= self.alpha * (1 + _ROUNDING)):
            raise ConfigError(
                "the looks spend more than the failure probability",
                where="looks",
                got=f"{spent!r} in all",
                wanted=f"shares above 0 that add up to at most {self.alpha!r}",
                fix="every look is a chance to be wrong: share alpha among them",
            )

    @property
    def last(self) -> Look:
        return self.looks[-1]

    @classmethod
    def single(cls, n: int, alpha: float) -> Schedule:
        """One look at all n draws: without a target a radius grows until the last draw."""
        return cls((Look(n, alpha),), alpha)

    @classmethod
    def doubling(cls, n: int, alpha: float) -> Schedule:
        """Looks at 125, 250, 500 draws and so on, and at ``n``.

        The last look gets half of alpha, so that what a fixed number of draws would certify is seldom lost at the end; the
        others share the rest, because for them a smaller alpha only costs a few more draws.
        """
        early: list[int] = []
        while FIRST_LOOK << len(early) < n:
            early.append(FIRST_LOOK << len(early))
        if not early:
            return cls.single(n, alpha)
        share = alpha / 2 / len(early)
        return cls((*(Look(draws, share) for draws in early), Look(n, alpha / 2)), alpha)


MOST_DRAWS = 10**12
"""More than anybody can draw; sums of scores of so many still fit into 63 bits."""


@dataclass(frozen=True)
class Sampling:
    """How many draws and how sure: n0 to choose the class, n to bound its probability, alpha the failure per input.

    With ``target_radius`` the question is whether the certified radius is at least that: n is then the most draws that an
    input can get, and it gets no more once the answer is known. With ``shared_noise`` the inputs of a batch meet the same
    noise, which makes the first layer of the network nearly free. What is promised for each input stays the same; failures of
    different certificates are then no longer independent.
    """

    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    target_radius: float | None = None
    shared_noise: bool = False

    def __post_init__(self) -> None:
        for name in ("n0", "n"):
            if not 1 <= (draws := getattr(self, name)) <= MOST_DRAWS:
                wanted = "at least 1 draw" if draws < 1 else f"at most {MOST_DRAWS}"
                raise ConfigError(f"{name} cannot be used", where=name, got=draws, wanted=wanted)
        check_alpha(self.alpha)
        if self.target_radius is not None and not (self.target_radius > 0 and math.isfinite(self.target_radius)):
            raise ConfigError(
                "the target radius cannot be used", where="target_radius", got=self.target_radius, wanted="a finite number > 0"
            )

    @property
    def schedule(self) -> Schedule:
        """When the votes are looked at: once at the end, or more often with a target."""
        make = Schedule.single if self.target_radius is None else Schedule.doubling
        return make(self.n, self.alpha)

    def refuse_other_methods(self, method: Method) -> None:
        """A target radius and shared noise rest on votes and one Clopper-Pearson bound; other methods are refused."""
        asked = [name for name in ("target_radius", "shared_noise") if getattr(self, name)]
        if asked and not method.is_plain:
            raise ConfigError(
                f"{' and '.join(asked).replace('_', ' ')} can be had with plain votes only",
                where=", ".join(asked),
                got=f"{method.statistic}, {method.confidence}, {method.runner_up}",
                wanted="votes, clopper-pearson, complement",
                fix="leave it out, or the other statistic, confidence bound or runner-up",
            )


CSV = "certificates.csv"
METHOD = same_names("norm", "bound", "statistic", "confidence", "runner_up")
SAMPLING = same_names("n0", "n", "alpha", "target_radius", "shared_noise")
NOISE = same_names("law", "place", "sigma", "grid", "levels", "dimension", "tau", "operator_norm", "operator_norm_method") | (
    same_names("slack", "slackless_norm", "in_l2")
)
NETWORK = same_names("model_sha256", "form", "arithmetic", "classes")
MADE = same_names("device", "versions", "created", "seconds")


@dataclass(frozen=True)
class NoiseRecord:
    """The noise that was drawn, and how far the layer that gets it moves when the input does."""

    law: str
    place: str
    sigma: Length
    grid: Length
    levels: Count
    dimension: Count
    tau: Length
    operator_norm: Length
    operator_norm_method: str
    slack: Length
    slackless_norm: Length | None
    in_l2: Movement | None = None  # with the bound ``best`` of Laplace noise


@dataclass(frozen=True, kw_only=True)
class CertificateSettings(WorkSettings):
    """What all certificates of one certification share."""

    method: Method
    sampling: Sampling
    looks: tuple[Look, ...]
    noise: NoiseRecord
    resolution: Count
    largest_radius: Radius

    @property
    def needs_more(self) -> bool:
        """Whether the number of votes is not all the evidence, so that the lines have more columns."""
        return (self.method.statistic, self.method.runner_up) != ("votes", "complement")

    @property
    def decided_radius(self) -> float:
        """The largest radius at which certified accuracy means something: with a target, nobody drew for more.

        At the target itself it is decided; below it is a lower bound, as inputs that miss the target were given up early.
        """
        target = self.sampling.target_radius
        return self.largest_radius if target is None else min(target, self.largest_radius)


INTERVAL = "interval"
"""The bound of certificates that need no draws, and the name of the recipe that trains for it."""


def is_interval(path: Path) -> bool:
    """Whether a ``certificates.json`` is one of interval bounds."""
    method = read_json(path).record.get("method")
    return isinstance(method, dict) and method.get("bound") == INTERVAL


def read_certificate_settings(path: Path) -> CertificateSettings:
    """The content of a ``certificates.json`` of any format."""
    nested = {"method": METHOD, "sampling": SAMPLING, "noise": NOISE, "network": NETWORK, "made": MADE}
    fix = "restore the file, or certify again with --overwrite"
    return read_settings(path, CertificateSettings, nested, fix=fix, slackless_norm=None, in_l2=None)[0]


AnySettings = TypeVar("AnySettings", bound=WorkSettings)


@dataclass(frozen=True)
class KeptCertification(Generic[AnySettings]):
    """A certification of a run, by its name; ``path`` is its ``certificates.json``."""

    name: str
    path: Path
    settings: AnySettings

    @property
    def csv(self) -> Path:
        return self.path.with_name(CSV)

    @property
    def certificates(self) -> list[Certificate]:
        """Its lines, read from the disk."""
        return read_certificates(self.csv)

    def is_of(self, run: Run) -> bool:
        """Whether it is complete and about the weights that the run has now."""
        return self.settings.state == COMPLETE and self.settings.network.model_sha256 == run.model_sha256


class Certification(KeptCertification[CertificateSettings]):
    """One by randomized smoothing; ``interval_run`` has the deterministic ones."""


def certifications(root: str | Path) -> dict[str, Certification]:
    """Those of a run, by name."""
    found = {name: path for name, path in evidence(Path(root), CERTIFICATES).items() if not is_interval(path)}
    return {name: Certification(name, path, read_certificate_settings(path)) for name, path in found.items()}


def find_certification(root: str | Path, *, name: str | None = None, norm: str | None = None) -> Certification | None:
    """The certification called ``name``; without one that of ``norm``, or the only one there is; None where there is none."""
    found = certifications(root)
    if name is not None:
        if name not in found and name in evidence(Path(root), CERTIFICATES):
            raise RunError(
                "certificates by interval bounds are about the network itself, not about its smoothed classifier",
                where=str(root),
                got=name,
                wanted=", ".join(found) or "certificates by randomized smoothing",
                fix=f"twinproof audit {root} --certificates {name}, which attacks the network at every radius",
            )
        if name not in found:
            raise RunError(
                "this run has no certificates of that name",
                where=str(root),
                got=name,
                wanted=", ".join(found) or "a certified run",
                fix=f"twinproof certify {root} --name {name}",
            )
        return found[name]
    fitting = {key: one for key, one in found.items() if one.settings.method.norm == norm} or found
    if len(fitting) > 1 and norm not in fitting:
        names = ", ".join(fitting)
        raise ConfigError(
            "this run has several certifications",
            where="certificates",
            got="no name",
            wanted=f"one of: {names}",
            fix="name one",
        )
    return fitting.get(norm or "") or next(iter(fitting.values()), None)
