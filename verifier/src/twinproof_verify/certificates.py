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
from twinproof_verify.bounds import (
    BEST,
    BOUNDS,
    CLOPPER_PEARSON,
    COMPLEMENT,
    CONFIDENCES,
    GAUSSIAN,
    LAPLACE,
    MOST_COORDINATES,
    PUBLISHED,
    Moved,
    Rule,
    Way,
)
from twinproof_verify.evidence import format_down, shown
from twinproof_verify.findings import Problem
from twinproof_verify.models import ROUNDING_UNIT, Record, block, read
from twinproof_verify.run_json import PublicData

NORMS = ("l2", "linf", "l1")
INPUT, FIRST_LAYER, BOTH = "input", "first-layer", "input-and-first-layer"
# At the input, with a scale of its own for each coordinate.
UNEQUAL_INPUT = "unequal-input"
# Where noise is added to numbers that are divided by its scales first, and rounded to a grid in their units.
WHITENED = (FIRST_LAYER, UNEQUAL_INPUT)
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


class Made(Record):
    """Where and when a record was made."""

    device: models.Text
    versions: dict[str, str]
    created: models.UtcTime
    seconds: models.NotNegative


class Network(Record):
    """The network as it was run."""

    model_sha256: models.Digest
    form: models.Text
    arithmetic: Literal["float32", "tf32"]
    classes: models.PositiveCount


class Method(Record):
    """What each draw counts, and what is proven from the counts."""

    norm: NormName
    bound: models.Text
    statistic: Literal["votes", "scores"]
    confidence: Literal["clopper-pearson", "hoeffding", "empirical-bernstein"]
    runner_up: Literal["complement", "union"]

    @property
    def is_plain(self) -> bool:
        """Whether lines hold nothing but votes: the others are bounded by the complement."""
        return (self.statistic, self.runner_up) == (VOTES, COMPLEMENT)


class Sampling(Record):
    """How many draws, at which failure probability."""

    n0: models.PositiveCount
    n: models.Draws
    alpha: models.OpenProbability
    target_radius: models.Positive | None
    shared_noise: bool


class Movement(Record):
    """How far what gets Laplace noise moves in l2 when the input moves by one."""

    operator_norm: models.Positive
    operator_norm_method: models.Text
    slack: models.NotNegative
    slackless_norm: models.Positive | None


class NoiseRecord(Record):
    """The noise, and how far what gets it moves when the input does."""

    law: Literal["gaussian", "laplace"]
    place: Literal["input", "unequal-input", "first-layer", "input-and-first-layer"]
    sigma: models.Positive
    grid: models.Grid
    levels: models.PositiveCount
    dimension: models.PositiveCount
    tau: models.NotNegative
    operator_norm: models.Positive
    operator_norm_method: models.Text
    slack: models.NotNegative
    # Of noise at two places: the norm that needs no slack.
    slackless_norm: models.Positive | None
    # With the bound ``best`` of Laplace noise.
    in_l2: Movement | None = None


class Look(Record):
    """After how many draws the votes are looked at, and with which share of alpha."""

    draws: models.Draws
    alpha: models.OpenProbability


class Work(Record):
    """What certificates, attacks and audits say alike."""

    state: Literal["complete"]
    key: models.KeyText
    network: Network
    made: Made


class Smoothed(Work):
    """What records say of a smoothed classifier and of how it was asked, whatever they are about."""

    format: models.Format
    method: Method
    sampling: Sampling
    noise: NoiseRecord

    @property
    def flat(self) -> dict[str, Any]:
        """Every value under its own name, without the sections."""
        record = self.model_dump()
        return {**record, **record["network"], **record["made"], **record["sampling"], **record["noise"], **record["method"]}


class CertificateSettings(Smoothed):
    """certificates.json."""

    inputs: models.Count
    looks: Annotated[list[Look], Field(min_length=1, max_length=1000)]
    resolution: models.PositiveCount
    largest_radius: models.NotNegative


# The keys that name the method; the certificates of the first version had none of them.
METHOD = ("statistic", "confidence", "runner_up", "law", "place", "bound", "resolution", "operator_norm", "slack")


@dataclass(frozen=True)
class Distance:
    """What a record says of how far apart inputs are where noise of ``law`` hides a shift; its keys begin with ``name``."""

    name: str
    law: str
    operator_norm: float
    slack: float
    slackless_norm: float | None


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
    in_l2: Movement | None = None

    @classmethod
    def of(cls, file: str, settings: Smoothed) -> Noise:
        numbers = settings.noise.model_dump(exclude={"operator_norm_method", "in_l2"})
        return cls(file=file, norm=settings.method.norm, bound=settings.method.bound, in_l2=settings.noise.in_l2, **numbers)

    def distances(self) -> Iterator[Distance]:
        """In the norm of the law, and in l2 where that is recorded too."""
        yield Distance("", self.law, self.operator_norm, self.slack, self.slackless_norm)
        if self.in_l2 is not None:
            two = self.in_l2
            yield Distance("in_l2.", GAUSSIAN, two.operator_norm, two.slack, two.slackless_norm)

    @property
    def steps(self) -> float:
        """Steps of the grid within one deviation; of what is divided by scales the grid is in its own units."""
        return self.sigma * (1 if self.place in WHITENED else self.levels) / self.grid


def smallest_tau(law: str, steps: float, dimension: int) -> float:
    """The least distance between noise on a grid and the law itself that can be stated, with ``steps`` in a deviation.

    Each of a coordinate's cells is rounded to a multiple of 2^-64; docs/decisions/0002-noise-on-a-grid.md.
    """
    return dimension * (2 * TABLE_ENDS[law] * steps * 2.0**-64 + 2.0**-49) + 2.0**-36


def smallest_slack(noise: Noise, law: str) -> float:
    """What rounding to the grid costs: two inputs' rounding errors, each at most half a step in every coordinate.

    At the input stored levels lie on the grid already; with noise at both places only the layer is rounded.
    """
    if noise.place not in WHITENED:
        return 0.0
    return noise.grid * (math.sqrt(noise.dimension) if law == GAUSSIAN else noise.dimension)


def identity_norm(norm: str, law: str, dimension: int) -> float:
    """The longest a change of length 1 in ``norm`` can be in the norm of the noise: l2 for Gaussian, l1 for Laplace."""
    target, source = (2.0 if law == GAUSSIAN else 1.0), {"l1": 1.0, "l2": 2.0, "linf": math.inf}[norm]
    return math.pow(dimension, max(0.0, 1 / target - 1 / source))


def noise_problems(noise: Noise) -> Iterator[Problem]:
    if noise.place not in WHITENED and noise.grid > 1:
        yield Problem(noise.file, "the noise grid is coarser than stored levels", repr(noise.grid), "at most 1")
    if not noise.steps >= FEWEST_STEPS * (1 - FLOAT_SLACK):
        got = f"{noise.steps!r} steps for sigma"
        yield Problem(noise.file, "the noise grid is too coarse", got, f"at least {FEWEST_STEPS}")
    least = smallest_tau(noise.law, noise.steps, noise.dimension)
    if not noise.tau >= least * (1 - FLOAT_SLACK):
        yield Problem(noise.file, "tau is understated", repr(noise.tau), f"at least {least!r}")
    if (noise.in_l2 is not None) != (noise.bound == BEST):
        what = "in_l2 belongs to the bound best, and to no other"
        yield Problem(
            noise.file, what, "nothing" if noise.in_l2 is None else "norm and slack in l2", f"bound {shown(noise.bound)}"
        )
    for one in noise.distances():
        paid = smallest_slack(noise, one.law)
        if not one.slack >= paid * (1 - FLOAT_SLACK):
            what = f"{one.name}slack is understated: rounding to the grid costs more"
            yield Problem(noise.file, what, repr(one.slack), f"at least {paid!r}")
        if noise.place != BOTH and one.slackless_norm is not None:
            what = "only noise at two places can be charged without slack"
            yield Problem(noise.file, what, repr(one.slackless_norm), "null")
        truth = identity_norm(noise.norm, one.law, noise.dimension)
        same = abs(one.operator_norm - truth) <= FLOAT_SLACK * truth and one.operator_norm >= truth * (1 - _LAST_BITS)
        if noise.place == INPUT and not same:
            what = f"{one.name}operator_norm is not that of the input itself"
            yield Problem(noise.file, what, repr(one.operator_norm), repr(truth))
    if noise.place == INPUT:
        yield from exactness_problems(noise, float(noise.levels))


def exactness_problems(noise: Noise, largest: float, room: float = 1.0) -> Iterator[Problem]:
    """Whether numbers of up to ``largest`` (levels, or units of the layer) and the noise add up exactly in float32.

    ``room`` is the share of float32's whole numbers that they may take.
    """
    steps = largest / noise.grid + TABLE_ENDS[noise.law] * noise.steps
    if not steps < room * FLOAT32_EXACT:
        what = "the noise grid is too fine: what the noise is added to is not exact in float32"
        yield Problem(noise.file, what, f"{steps!r} steps", f"fewer than {int(room * FLOAT32_EXACT)}")


def known_bounds(settings: Smoothed) -> tuple[str, ...]:
    """The bounds for the law of the noise; what is published of Laplace noise speaks of two places, of Gaussian of one."""
    law, alone = settings.noise.law, settings.noise.place != BOTH
    return tuple(one for one in BOUNDS[law] if one != PUBLISHED or alone == (law == GAUSSIAN))


def bound_problems(file: str, settings: Smoothed, plugins: tuple[str, ...] = ()) -> Iterator[Problem]:
    """A bound that is not known for the law and place of the noise; one whose name is known here is no plug-in's."""
    known, bound = known_bounds(settings), settings.method.bound
    if bound not in (*known, *(name for name in plugins if name not in BOUNDS[settings.noise.law])):
        got = f"{shown(bound)} with {settings.noise.law}"
        yield Problem(file, "this bound is not proven for this noise", got, ", ".join(known))


def rules_of(settings: CertificateSettings | None) -> tuple[Rule, ...]:
    """The rule of each look; none where the choices have no theorem together, or none that is known here."""
    if settings is None or settings.resolution not in RESOLUTIONS.values():
        return ()
    return tuple(
        one for look in settings.looks if (one := rule_of(settings, look.draws, look.alpha, settings.resolution)) is not None
    )


def rule_of(settings: Smoothed, n: int, alpha: float, resolution: int = 1) -> Rule | None:
    """How the counts of ``n`` draws become a radius; None for a bound that is not known here."""
    noise, method = settings.noise, settings.method
    if method.bound not in known_bounds(settings):
        return None
    classes = settings.network.classes
    way = Way(noise.law, method.bound, method.confidence, method.runner_up, classes, resolution)
    two = None if method.bound != BEST else noise.in_l2
    in_l2 = None if two is None else Moved(two.operator_norm, two.slack, two.slackless_norm)
    equal = in_l2 is not None and (method.norm, noise.place) == ("linf", INPUT) and noise.dimension <= MOST_COORDINATES
    return Rule(
        noise.sigma,
        noise.tau,
        n,
        alpha,
        way,
        noise.operator_norm,
        noise.slack,
        noise.slackless_norm,
        in_l2,
        noise.dimension if equal else 0,
    )


def read_settings(
    file: str, record: dict[str, Any], data: PublicData, plugins: tuple[str, ...] = ()
) -> tuple[CertificateSettings | None, list[Problem]]:
    """Sound settings (else None), and what is wrong with them: by themselves, against the data set, and what follows."""
    settings, problems = read(CertificateSettings, record, file)
    present = {*record, *block(record, "method"), *block(record, "noise")}
    if not present & set(METHOD):
        what = "these certificates do not say how they were made, as those of the first version did not"
        first = Problem(file, what, f"no {', '.join(METHOD)}", "certificates of this version; certify again with --overwrite")
        problems = [first, *(one for one in problems if not one.what.endswith("is missing"))]
    problems += size_problems(file, record, data)
    if settings is None:
        return None, problems
    problems += network_problems(file, settings, data.classes)
    problems += method_problems(file, settings, plugins)
    problems += noise_problems(Noise.of(file, settings))
    problems += look_problems(file, settings)
    if rules := rules_of(settings):
        problems += _largest_problems(file, settings.largest_radius, rules[-1])
    return settings, problems


def size_problems(file: str, record: dict[str, Any], data: PublicData) -> Iterator[Problem]:
    noise = block(record, "noise")
    said = {"levels": (noise.get("levels"), data.levels), "dimension": (record.get("dimension"), data.dimension)}
    if noise.get("place") in (INPUT, UNEQUAL_INPUT):
        said["noise.dimension"] = noise.get("dimension"), data.dimension
    for name, (stated, truth) in said.items():
        if truth is not None and isinstance(stated, int) and stated != truth:
            yield Problem(file, f"{name} is not the one of the data in run.json", shown(stated), str(truth))
    inputs = record.get("inputs")
    if isinstance(inputs, int) and data.test_records is not None and inputs > data.test_records:
        yield Problem(file, "inputs is more than the test set has", shown(inputs), f"at most {data.test_records}")


def network_problems(file: str, work: Work, classes: int | None) -> Iterator[Problem]:
    """A precision that the device does not have, and another number of classes than the data have."""
    arithmetic, said = work.network.arithmetic, work.network.classes
    if arithmetic != FLOAT32 and work.made.device.partition(":")[0] == "cpu":
        yield Problem(file, "a CPU has no such arithmetic", arithmetic, FLOAT32)
    if classes is not None and said != classes:
        yield Problem(file, "classes is not the number of classes in run.json", str(said), str(classes))


def method_problems(file: str, settings: CertificateSettings, plugins: tuple[str, ...] = ()) -> Iterator[Problem]:
    method, sampling = settings.method, settings.sampling
    statistic, confidence = method.statistic, method.confidence
    yield from bound_problems(file, settings, plugins)
    if confidence == CLOPPER_PEARSON and statistic != VOTES:
        what = "this confidence bound is for votes, not for means of scores"
        yield Problem(file, what, f"{confidence} with {statistic}", ", ".join(CONFIDENCES[1:]))
    if settings.resolution != RESOLUTIONS[statistic]:
        what, wanted = "resolution is not that of the statistic", f"{RESOLUTIONS[statistic]} for {statistic}"
        yield Problem(file, what, str(settings.resolution), wanted)
    # Several looks, a target and shared noise have proofs for plain votes alone; shared noise at the input alone.
    plain = method.is_plain and confidence == CLOPPER_PEARSON
    several = sampling.target_radius is not None or len(settings.looks) > 1
    for used, name in ((several, "a target radius or several looks"), (sampling.shared_noise, "shared noise")):
        if used and not plain:
            got, wanted = f"{statistic}, {confidence}, {method.runner_up}", f"{VOTES}, {CLOPPER_PEARSON}, {COMPLEMENT}"
            yield Problem(file, f"{name} cannot be had with this method", got, wanted)
    if sampling.shared_noise and settings.noise.place != INPUT:
        yield Problem(file, "noise is shared at the input alone", settings.noise.place, INPUT)


def look_problems(file: str, settings: CertificateSettings) -> Iterator[Problem]:
    """Looks at growing numbers of draws up to n that spend no more than alpha in all.

    The union bound needs this, and that the looks were fixed before the draws, which no file can show.
    """
    draws = [look.draws for look in settings.looks]
    if any(later <= earlier for earlier, later in pairwise(draws)):
        yield Problem(file, "the looks do not grow", shown(draws), "growing numbers of draws")
    if draws[-1] != settings.sampling.n:
        yield Problem(file, "the last look is not at n draws", str(draws[-1]), str(settings.sampling.n))
    spent = math.fsum(look.alpha for look in settings.looks)
    if not spent <= settings.sampling.alpha * (1 + FLOAT_SLACK):
        yield Problem(file, "the looks spend more than alpha", repr(spent), f"at most {settings.sampling.alpha!r}")
    if settings.sampling.target_radius is None and len(draws) > 1:
        yield Problem(file, "several looks without a target radius", str(len(draws)), "one look, at n draws")


def _largest_problems(file: str, printed: float, rule: Rule) -> Iterator[Problem]:
    most = rule.answers(rule.unanimous())
    largest, slack = float(most.radius[0]), float(most.slack[0])
    if not printed <= largest + slack + FLOAT_SLACK:
        yield Problem(file, "largest_radius is above what n unanimous votes give", repr(printed), format_down(largest))
    elif printed < largest - slack - 2 * ROUNDING_UNIT:
        yield Problem(file, "largest_radius is below what n unanimous votes give", repr(printed), format_down(largest))
