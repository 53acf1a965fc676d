"""The verdict of an audit once more, counted from the attacked certificates."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from twinproof.auditing.fields import is_open_probability, number
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_audit_flips import FILE, FLIPPED, UNDECIDED
from twinproof.auditing.verify_expected import difference_problems, exact, rounded_down, rounded_up, special

REFUTED_BELOW = 1e-3
BINOMIAL, MARKOV = "binomial", "markov"


def verdict_problems(section: dict[str, Any], certificates: dict[str, Any]) -> Iterator[Problem]:
    """Every value of the verdict that the list of sound entries does not give.

    ``certificates`` are the settings of the certificates that were attacked; where they are gone (empty), alpha and the bound
    are taken as the verdict states them.
    """
    stated: dict[str, Any] = section["verdict"]
    source = certificates or stated
    if not is_open_probability(source.get("alpha")):
        yield Problem(FILE, "the verdict cannot be checked without alpha", "no usable alpha", "a number between 0 and 1")
        return
    shared = certificates.get("shared_noise") is True if certificates else stated.get("bound") == MARKOV
    wanted = _expected(section, float(number(source["alpha"]) or 0.0), shared=shared)
    yield from difference_problems(FILE, stated, wanted, "verdict", "the attacked certificates")


def _expected(section: dict[str, Any], alpha: float, *, shared: bool) -> dict[str, Any]:
    attacked, inputs = section["attacked"], section["inputs"]
    flips = sum(entry["verdict"] == FLIPPED for entry in attacked)
    ratios = [float(entry["flip"]["ratio"]) for entry in attacked if entry["flip"] is not None]
    chance = probability_of(flips, inputs, alpha, shared=shared)
    refuted = flips > 0 and chance + section["false_flips"] < REFUTED_BELOW
    return {
        "inputs": inputs,
        "attacked": len(attacked),
        "flips": flips,
        "undecided": sum(entry["verdict"] == UNDECIDED for entry in attacked),
        "alpha": exact(alpha),
        "expected": rounded_up(inputs * alpha),
        "bound": MARKOV if shared else BINOMIAL,
        "probability": special(chance),
        "refuted": refuted,
        "closest": exact(min(ratios)) if ratios else None,
        "median": rounded_down(statistics.median(ratios)) if ratios else None,
        "beyond_reach": len(attacked) - len(ratios),
        "verdict": ("refuted" if refuted else "not refuted") if attacked else "nothing to attack",
    }


def probability_of(flips: int, inputs: int, alpha: float, *, shared: bool) -> float:
    """The largest probability with which true certificates of ``inputs`` inputs show at least ``flips`` flips."""
    from scipy.special import betainc

    if flips == 0:
        return 1.0
    if shared:
        return min(1.0, inputs * alpha / flips)
    return float(betainc(flips, max(1, inputs - flips + 1), alpha))
