"""How certificates were made: every choice out of a closed list, and only choices that have a theorem together.

Guarantees
    Settings without problems name one proof: a bound of the law's own list, a confidence bound that holds for the statistic
    (Clopper and Pearson's is for votes alone), and looks or shared noise only where their own proofs apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import Field, field_problems, is_not_negative, is_positive, is_positive_count, is_text, or_null
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_confidence import CLOPPER_PEARSON, COMPLEMENT, CONFIDENCES, RUNNERS_UP
from twinproof.auditing.verify_reach import BOUNDS, LAPLACE, PUBLISHED
from twinproof.auditing.verify_rule import Way

NORMS = ("l2", "linf", "l1")
INPUT, FIRST_LAYER, BOTH = "input", "first-layer", "input-and-first-layer"
PLACES = (INPUT, FIRST_LAYER, BOTH)
VOTES, SCORES = "votes", "scores"
# Units in which the score of one draw is counted.
RESOLUTIONS = {VOTES: 1, SCORES: 2**20}
_BOUND_NAMES = tuple(dict.fromkeys(bound for bounds in BOUNDS.values() for bound in bounds))


def one_of(words: tuple[str, ...]) -> Callable[[object], bool]:
    """Accepts one of ``words``."""
    return lambda value: isinstance(value, str) and value in words


NOISE = (
    Field("law", one_of(tuple(BOUNDS)), " or ".join(BOUNDS)),
    Field("place", one_of(PLACES), " or ".join(PLACES)),
    Field("bound", one_of(_BOUND_NAMES), ", ".join(_BOUND_NAMES)),
    Field("operator_norm", is_positive, "a positive number"),
    Field("slack", is_not_negative, "a number from 0"),
    Field("slackless_norm", or_null(is_positive), "null or a positive number", optional=True),
)
"""What attacks.json repeats of certificates.json."""

METHOD = (
    *NOISE,
    Field("statistic", one_of(tuple(RESOLUTIONS)), " or ".join(RESOLUTIONS)),
    Field("confidence", one_of(CONFIDENCES), ", ".join(CONFIDENCES)),
    Field("runner_up", one_of(RUNNERS_UP), " or ".join(RUNNERS_UP)),
    Field("classes", is_positive_count, "an integer from 1"),
    Field("resolution", is_positive_count, "1 for votes, 2^20 for scores"),
    Field("operator_norm_method", is_text, "where the operator norm comes from, in words"),
)


def is_plain(settings: dict[str, Any]) -> bool:
    """Whether lines hold nothing but votes: the others are bounded by the complement."""
    return settings.get("statistic") == VOTES and settings.get("runner_up") == COMPLEMENT


def way_of(settings: dict[str, Any]) -> Way | None:
    """The choices that the settings name; None where one is missing or they have no theorem together."""
    if any(field_problems("", settings, METHOD)):
        return None
    if settings["bound"] not in _bounds_for(settings) or settings["resolution"] not in RESOLUTIONS.values():
        return None
    return Way(
        law=settings["law"],
        bound=settings["bound"],
        confidence=settings["confidence"],
        runner_up=settings["runner_up"],
        classes=settings["classes"],
        resolution=settings["resolution"],
    )


def method_problems(file: str, settings: dict[str, Any], classes: int | None) -> Iterator[Problem]:
    """Sound fields that do not go together; ``classes`` is how many the data have."""
    statistic, confidence = settings["statistic"], settings["confidence"]
    yield from bound_problems(file, settings)
    if confidence == CLOPPER_PEARSON and statistic != VOTES:
        what = "this confidence bound is for votes, not for means of scores"
        yield Problem(file, what, f"{confidence} with {statistic}", ", ".join(CONFIDENCES[1:]))
    if settings["resolution"] != RESOLUTIONS[statistic]:
        what = "resolution is not that of the statistic"
        yield Problem(file, what, str(settings["resolution"]), f"{RESOLUTIONS[statistic]} for {statistic}")
    if classes is not None and settings["classes"] != classes:
        yield Problem(file, "classes is not the number of classes in run.json", str(settings["classes"]), str(classes))
    yield from _special_problems(file, settings)


def bound_problems(file: str, settings: dict[str, Any]) -> Iterator[Problem]:
    """A bound that is not known for the law of the noise."""
    law, bound, known = settings["law"], settings["bound"], _bounds_for(settings)
    if bound not in known:
        yield Problem(file, "this bound is not proven for this noise", f"{bound} with {law}", ", ".join(known))


def _bounds_for(settings: dict[str, Any]) -> tuple[str, ...]:
    """Those of the law; what is published of Laplace noise speaks of two places at once."""
    law, alone = settings["law"], settings["place"] != BOTH
    return tuple(bound for bound in BOUNDS[law] if not (alone and (law, bound) == (LAPLACE, PUBLISHED)))


def _special_problems(file: str, settings: dict[str, Any]) -> Iterator[Problem]:
    """Several looks, a target and shared noise have proofs for plain votes alone; shared noise at the input alone."""
    plain = is_plain(settings) and settings["confidence"] == CLOPPER_PEARSON
    several = settings["target_radius"] is not None or len(settings["looks"]) > 1
    way = f"{settings['statistic']}, {settings['confidence']}, {settings['runner_up']}"
    for used, what in ((several, "a target radius or several looks"), (settings["shared_noise"], "shared noise")):
        if used and not plain:
            wanted = f"{VOTES}, {CLOPPER_PEARSON}, {COMPLEMENT}"
            yield Problem(file, f"{what} cannot be had with this method", way, wanted)
    if settings["shared_noise"] and settings["place"] != INPUT:
        yield Problem(file, "noise is shared at the input alone", shown(settings["place"]), INPUT)
