"""The settings that certificates share: sound, naming one proof, not understating the noise, and the rules they give.

Settings without problems name one proof: a bound that is known for the law of the noise, a confidence bound that holds for the
statistic (Clopper and Pearson's is for votes alone), and looks or shared noise only where their own proofs apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field

from twinproof_verify import models
from twinproof_verify.bounds import BOUNDS, CLOPPER_PEARSON, COMPLEMENT, CONFIDENCES, GAUSSIAN, LAPLACE, PUBLISHED, Rule, Way
from twinproof_verify.evidence import format_down, shown
from twinproof_verify.findings import Problem
from twinproof_verify.models import ROUNDING_UNIT, Origin, Record, read
from twinproof_verify.run_json import PublicData

NORMS = ("l2", "linf", "l1")
INPUT, FIRST_LAYER, BOTH = "input", "first-layer", "input-and-first-layer"
VOTES, SCORES = "votes", "scores"
# Units in which the score of one draw is counted.
RESOLUTIONS = {VOTES: 1, SCORES: 2**20}
FLOAT32 = "float32"
# Steps of the grid within one deviation for which tau is proven.
FEWEST_STEPS = 64
# Two float64 computations of one product.
FLOAT_SLACK = 1e-9
_LAST_BITS = 1e-12
# Deviations at which the tables of the noise end: no draw goes further.
TABLE_ENDS = {GAUSSIAN: 8.5, LAPLACE: 36.0}
# Whole numbers that float32 holds.
FLOAT32_EXACT = 2**24

NormName = Literal["l2", "linf", "l1"]
Arithmetic = Literal["float32", "tf32"]


class Smoothed(Origin):
    """What records say of a smoothed classifier and of how it was asked, whatever they are about."""

    format: models.Format
    state: Literal["complete"]
    model_sha256: models.Digest
    norm: NormName
    sigma: models.Positive
    grid: models.Grid
    levels: models.PositiveCount
    dimension: models.PositiveCount
    tau: models.NotNegative
    n0: models.PositiveCount
    n: models.Draws
    alpha: models.OpenProbability
    key: models.KeyText
    form: models.Text
    law: Literal["gaussian", "laplace"]
    place: Literal["input", "first-layer", "input-and-first-layer"]
    bound: models.Text
    operator_norm: models.Positive
    slack: models.NotNegative
    # Of noise at two places: the norm that needs no slack.
    slackless_norm: models.Positive | None = None


class Look(Record):
    """After how many draws the votes are looked at, and with which share of alpha."""

    draws: models.Draws
    alpha: models.OpenProbability


class CertificateSettings(Smoothed):
    """certificates.json."""

    largest_radius: models.NotNegative
    inputs: models.Count
    target_radius: models.Positive | None
    arithmetic: Arithmetic
    shared_noise: bool
    looks: Annotated[list[Look], Field(min_length=1, max_length=1000)]
    statistic: Literal["votes", "scores"]
    confidence: Literal["clopper-pearson", "hoeffding", "empirical-bernstein"]
    runner_up: Literal["complement", "union"]
    classes: models.PositiveCount
    resolution: models.PositiveCount
    operator_norm_method: models.Text

    @property
    def is_plain(self) -> bool:
        """Whether lines hold nothing but votes: the others are bounded by the complement."""
        return (self.statistic, self.runner_up) == (VOTES, COMPLEMENT)


# The keys that name the method; the certificates of the first version had none of them.
METHOD = (
    *("law", "place", "bound", "statistic", "confidence", "runner_up", "classes", "resolution", "operator_norm"),
    *("operator_norm_method", "slack"),
)


@dataclass(frozen=True)
class Noise:
    """What ``file`` says about the noise; ``dimension`` is the number of its coordinates."""

    file: str
    norm: str
    law: str
    place: str
    bound: str
    sigma: float
    grid: float
    levels: int
    dimension: int
    tau: float
    operator_norm: float
    slack: float
    slackless_norm: float | None = None

    @classmethod
    def of(cls, file: str, settings: Smoothed, *, norm: str = "norm", dimension: str = "dimension") -> Noise:
        """``norm`` and ``dimension`` are the keys that hold the radii's norm and the number of coordinates."""
        names = ("law", "place", "bound", "sigma", "grid", "levels", "tau", "operator_norm", "slack", "slackless_norm")
        same = {name: getattr(settings, name) for name in names}
        return cls(file=file, norm=getattr(settings, norm), dimension=getattr(settings, dimension), **same)

    @property
    def steps(self) -> float:
        """Steps of the grid within one deviation; behind a layer the grid is in units of its outputs."""
        return self.sigma * (1 if self.place == FIRST_LAYER else self.levels) / self.grid


def smallest_tau(law: str, steps: float, dimension: int) -> float:
    """The least distance between noise on a grid and the law itself that can be stated, with ``steps`` in a deviation.

    Each of a coordinate's cells is rounded to a multiple of 2^-64; docs/decisions/0002-noise-on-a-grid.md.
    """
    return dimension * (2 * TABLE_ENDS[law] * steps * 2.0**-64 + 2.0**-49) + 2.0**-36


def smallest_slack(noise: Noise) -> float:
    """What rounding to the grid costs: two inputs' rounding errors, each at most half a step in every coordinate.

    At the input stored levels lie on the grid already; with noise at both places only the layer is rounded.
    """
    if noise.place != FIRST_LAYER:
        return 0.0
    return noise.grid * (math.sqrt(noise.dimension) if noise.law == GAUSSIAN else noise.dimension)


def identity_norm(norm: str, law: str, dimension: int) -> float:
    """The longest a change of length 1 in ``norm`` can be in the norm of the noise: l2 for Gaussian, l1 for Laplace."""
    target, source = (2.0 if law == GAUSSIAN else 1.0), {"l1": 1.0, "l2": 2.0, "linf": math.inf}[norm]
    return math.pow(dimension, max(0.0, 1 / target - 1 / source))


def noise_problems(noise: Noise) -> Iterator[Problem]:
    """What the numbers of sound settings say about each other."""
    if noise.place != FIRST_LAYER and noise.grid > 1:
        yield Problem(noise.file, "the noise grid is coarser than stored levels", repr(noise.grid), "at most 1")
    if not noise.steps >= FEWEST_STEPS * (1 - FLOAT_SLACK):
        got = f"{noise.steps!r} steps for sigma"
        yield Problem(noise.file, "the noise grid is too coarse", got, f"at least {FEWEST_STEPS}")
    least = smallest_tau(noise.law, noise.steps, noise.dimension)
    if not noise.tau >= least * (1 - FLOAT_SLACK):
        yield Problem(noise.file, "tau is understated", repr(noise.tau), f"at least {least!r}")
    paid = smallest_slack(noise)
    if not noise.slack >= paid * (1 - FLOAT_SLACK):
        what = "slack is understated: rounding to the grid costs more"
        yield Problem(noise.file, what, repr(noise.slack), f"at least {paid!r}")
    if noise.place != BOTH and noise.slackless_norm is not None:
        what = "only noise at two places can be charged without slack"
        yield Problem(noise.file, what, repr(noise.slackless_norm), "null")
    if noise.place == INPUT:
        yield from exactness_problems(noise, float(noise.levels))
        truth = identity_norm(noise.norm, noise.law, noise.dimension)
        if not abs(noise.operator_norm - truth) <= FLOAT_SLACK * truth or noise.operator_norm < truth * (1 - _LAST_BITS):
            what = "operator_norm is not that of the input itself"
            yield Problem(noise.file, what, repr(noise.operator_norm), repr(truth))


def exactness_problems(noise: Noise, largest: float, room: float = 1.0) -> Iterator[Problem]:
    """Whether numbers of up to ``largest`` (levels, or units of the layer) and the noise add up exactly in float32.

    ``room`` is the share of float32's whole numbers that they may take.
    """
    steps = largest / noise.grid + TABLE_ENDS[noise.law] * noise.steps
    if not steps < room * FLOAT32_EXACT:
        what = "the noise grid is too fine: what the noise is added to is not exact in float32"
        yield Problem(noise.file, what, f"{steps!r} steps", f"fewer than {int(room * FLOAT32_EXACT)}")


def known_bounds(settings: Smoothed) -> tuple[str, ...]:
    """The bounds for the law of the noise; what is published of Laplace noise speaks of two places at once."""
    alone = settings.place != BOTH
    return tuple(one for one in BOUNDS[settings.law] if not (alone and (settings.law, one) == (LAPLACE, PUBLISHED)))


def bound_problems(file: str, settings: Smoothed, plugins: tuple[str, ...] = ()) -> Iterator[Problem]:
    """A bound that is not known for the law of the noise, and is not one of the run's plug-ins."""
    known = known_bounds(settings)
    if settings.bound not in (*known, *plugins):
        got = f"{shown(settings.bound)} with {settings.law}"
        yield Problem(file, "this bound is not proven for this noise", got, ", ".join(known))


def rules_of(settings: CertificateSettings | None) -> tuple[Rule, ...]:
    """The rule of each look; none where the choices have no theorem together, or none that is known here."""
    if settings is None or settings.bound not in known_bounds(settings) or settings.resolution not in RESOLUTIONS.values():
        return ()
    way = Way(settings.law, settings.bound, settings.confidence, settings.runner_up, settings.classes, settings.resolution)
    norms = (settings.operator_norm, settings.slack, settings.slackless_norm)
    return tuple(Rule(settings.sigma, settings.tau, look.draws, look.alpha, way, *norms) for look in settings.looks)


def read_settings(
    file: str, record: dict[str, Any], data: PublicData, plugins: tuple[str, ...] = ()
) -> tuple[CertificateSettings | None, list[Problem]]:
    """Sound settings (else None), and what is wrong with them: by themselves, against the data set, and what follows."""
    settings, problems = read(CertificateSettings, record, file)
    if not any(name in record for name in METHOD):
        what = "these certificates do not say how they were made, as those of the first version did not"
        wanted = "certificates of this version; certify again with --overwrite"
        missing = {f"{name} is missing" for name in METHOD}
        first = Problem(file, what, f"no {', '.join(METHOD)}", wanted)
        problems = [first, *(problem for problem in problems if problem.what not in missing)]
    problems += size_problems(file, record, data, dimension="dimension")
    if settings is None:
        return None, problems
    if settings.arithmetic != FLOAT32 and settings.device.partition(":")[0] == "cpu":
        problems.append(Problem(file, "a CPU has no such arithmetic", settings.arithmetic, FLOAT32))
    problems += method_problems(file, settings, data.classes, plugins)
    problems += noise_problems(Noise.of(file, settings))
    problems += look_problems(file, settings)
    if rules := rules_of(settings):
        problems += _largest_problems(file, settings.largest_radius, rules[-1])
    return settings, problems


def size_problems(file: str, record: dict[str, Any], data: PublicData, *, dimension: str) -> Iterator[Problem]:
    """Levels, coordinates and inputs against the data set; ``dimension`` is the key of the coordinates that get noise."""
    here = record.get("place") == INPUT
    truths = {"levels": data.levels, "dimension": data.dimension, dimension: data.dimension if here else None}
    for name, truth in truths.items():
        if truth is not None and isinstance(record.get(name), int) and record[name] != truth:
            what = f"{name} is not the one of the data in run.json"
            yield Problem(file, what, shown(record[name]), str(truth))
    inputs = record.get("inputs")
    if isinstance(inputs, int) and data.test_records is not None and inputs > data.test_records:
        yield Problem(file, "inputs is more than the test set has", shown(inputs), f"at most {data.test_records}")


def method_problems(
    file: str, settings: CertificateSettings, classes: int | None, plugins: tuple[str, ...] = ()
) -> Iterator[Problem]:
    """Choices that have no theorem together; ``classes`` is how many the data have."""
    statistic, confidence = settings.statistic, settings.confidence
    yield from bound_problems(file, settings, plugins)
    if confidence == CLOPPER_PEARSON and statistic != VOTES:
        what = "this confidence bound is for votes, not for means of scores"
        yield Problem(file, what, f"{confidence} with {statistic}", ", ".join(CONFIDENCES[1:]))
    if settings.resolution != RESOLUTIONS[statistic]:
        what, wanted = "resolution is not that of the statistic", f"{RESOLUTIONS[statistic]} for {statistic}"
        yield Problem(file, what, str(settings.resolution), wanted)
    if classes is not None and settings.classes != classes:
        yield Problem(file, "classes is not the number of classes in run.json", str(settings.classes), str(classes))
    # Several looks, a target and shared noise have proofs for plain votes alone; shared noise at the input alone.
    plain = settings.is_plain and confidence == CLOPPER_PEARSON
    several = settings.target_radius is not None or len(settings.looks) > 1
    for used, name in ((several, "a target radius or several looks"), (settings.shared_noise, "shared noise")):
        if used and not plain:
            got, wanted = f"{statistic}, {confidence}, {settings.runner_up}", f"{VOTES}, {CLOPPER_PEARSON}, {COMPLEMENT}"
            yield Problem(file, f"{name} cannot be had with this method", got, wanted)
    if settings.shared_noise and settings.place != INPUT:
        yield Problem(file, "noise is shared at the input alone", settings.place, INPUT)


def look_problems(file: str, settings: CertificateSettings) -> Iterator[Problem]:
    """Looks at growing numbers of draws up to n that spend no more than alpha in all.

    The union bound needs this, and that the looks were fixed before the draws, which no file can show.
    """
    draws = [look.draws for look in settings.looks]
    if any(later <= earlier for earlier, later in pairwise(draws)):
        yield Problem(file, "the looks do not grow", shown(draws), "growing numbers of draws")
    if draws[-1] != settings.n:
        yield Problem(file, "the last look is not at n draws", str(draws[-1]), str(settings.n))
    spent = math.fsum(look.alpha for look in settings.looks)
    if not spent <= settings.alpha * (1 + FLOAT_SLACK):
        yield Problem(file, "the looks spend more than alpha", repr(spent), f"at most {settings.alpha!r}")
    if settings.target_radius is None and len(draws) > 1:
        yield Problem(file, "several looks without a target radius", str(len(draws)), "one look, at n draws")


def _largest_problems(file: str, printed: float, rule: Rule) -> Iterator[Problem]:
    """The largest radius against what unanimous draws give; ``rule`` is that of the last look."""
    most = rule.answers(rule.unanimous())
    largest, slack = float(most.radius[0]), float(most.slack[0])
    if not printed <= largest + slack + FLOAT_SLACK:
        yield Problem(file, "largest_radius is above what n unanimous votes give", repr(printed), format_down(largest))
    elif printed < largest - slack - 2 * ROUNDING_UNIT:
        yield Problem(file, "largest_radius is below what n unanimous votes give", repr(printed), format_down(largest))
