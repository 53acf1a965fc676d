"""The results of attacks.json once more, counted from the lines and from the certificates that are there now."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.fields import is_text, is_texts
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_attack_lines import FILE as LINES_FILE
from twinproof.auditing.verify_attack_lines import AttackTable
from twinproof.auditing.verify_attack_settings import FILE
from twinproof.auditing.verify_attacked_inputs import budget
from twinproof.auditing.verify_certificate_lines import FILE as CERTIFICATES_FILE
from twinproof.auditing.verify_certificate_lines import Lines
from twinproof.auditing.verify_expected import Anything, differences, exact, share, special

# Flips with a smaller probability are not explained by chance.
FALSE_ALARM = 1e-6
# What rests on certificates, of ``results`` and of one size, and so grows stale when the run is certified anew.
_CERTIFIED = re.compile(r"results(\.sizes\[\d+\])?\.(certified|certified_by|flips|flips_probability|crossing|warnings)(\..*)?")

# Twice the exponent of d in the length of d equal coordinates of 1.
_SPREAD = {"linf": 0, "l2": 1, "l1": 2}

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class CertifiedLine:
    """The certificates that attacks are held against, of the first inputs of the test set."""

    source: str
    correct: Bools
    radius: NDArray[np.float64]
    alpha: float
    independent: bool


def line_of(certificates: Lines, settings: dict[str, Any]) -> CertifiedLine | None:
    """The run's own certificates; None where they cannot be used."""
    sound = len(certificates.rows) > 0 and bool((certificates.index == np.arange(len(certificates.rows))).all())
    alpha, shared = settings.get("alpha"), settings.get("shared_noise")
    if not sound or not isinstance(alpha, float) or not isinstance(shared, bool):
        return None
    correct = np.asarray((certificates.prediction == certificates.label) & (certificates.label >= 0))
    return CertifiedLine(CERTIFICATES_FILE, correct, certificates.radius, alpha, not shared)


def own_line(table: AttackTable, alpha: float) -> CertifiedLine:
    """The inputs as they were judged before attacking, for a run without certificates."""
    return CertifiedLine(LINES_FILE, table.correct[0], table.radius[0], alpha, independent=True)


def reach(norm: str, size: float, certificate_norm: str, dimension: int) -> float:
    """How far in ``certificate_norm`` a change of ``size`` in ``norm`` can go, rounded up to six places."""
    context = Context(prec=400)
    # The longest change is one coordinate alone, or all of them by the same amount: then its square is d or d^2 times larger.
    spread = max(0, _SPREAD[certificate_norm] - _SPREAD[norm])
    factor = context.power(Decimal(dimension), spread)
    square = context.multiply(context.power(Decimal(repr(size)), 2), factor)
    return float(context.sqrt(square).quantize(Decimal("0.000001"), rounding=ROUND_CEILING, context=context))


def result_problems(results: object, table: AttackTable, settings: dict[str, Any], line: CertifiedLine) -> Iterator[Problem]:
    """Every value of ``results`` that the lines and the certificates do not give."""
    for path, got, wanted in differences(results, _expected(table, settings, line), "results"):
        if _CERTIFIED.fullmatch(path) and line.source == CERTIFICATES_FILE:
            what = f"{path} does not follow from attacks.csv and the present certificates"
            yield Problem(FILE, what, got, f"{wanted}; if the run was certified anew: attack it again, which renews results")
        else:
            yield Problem(FILE, f"{path} does not follow from attacks.csv", got, wanted)


def _expected(table: AttackTable, settings: dict[str, Any], line: CertifiedLine) -> dict[str, Any]:
    sizes = [_at_size(float(size), table, settings, line) for size in settings["sizes"]]
    norm, levels = settings["norm"], settings["levels"]
    unheard = sum(budget(norm, float(size), levels) == 0 for size in settings["sizes"])
    warnings = unheard + sum(one["crossing"] for one in sizes) + sum(one.get("weaker", False) for one in sizes)
    return {
        "clean": _scores(_worst(table, [0], 0.0)),
        "sizes": sizes,
        "certified_by": {"source": line.source, "inputs": len(line.correct), "alpha": exact(line.alpha)},
        "crossing": any(one["crossing"] for one in sizes),
        "rounding": Anything(is_text, "a text"),
        "warnings": Anything(
            lambda value: is_texts(value) and isinstance(value, list) and len(value) == warnings,
            f"{warnings} sentences: one for each size with a crossing, weaker attacks, or less than a level",
        ),
    }


def _at_size(size: float, table: AttackTable, settings: dict[str, Any], line: CertifiedLine) -> dict[str, Any]:
    """The entry of one size; a count stands beside each share, so that differences are taken exactly."""
    far = reach(settings["norm"], size, settings["certificate_norm"], settings["dimension"])
    here = [at for at, entry in enumerate(table.entries, start=1) if entry.size == size]
    result: dict[str, Any] = {"size": exact(size), "reach": exact(far), **_held(table, here, line, far, settings)}
    paper = [at for at in here if table.entries[at - 1].protocol == "paper"]
    adaptive = [at for at in here if table.entries[at - 1].protocol == "adaptive"]
    counts: dict[str, dict[str, int]] = {}
    if paper:
        each = {table.entries[at - 1].attack: _as_papers(table, at, far) for at in paper}
        names = ("network", "smoothed", "certified")
        counts["paper"] = {name: min(int(one[name].sum()) for one in each.values()) for name in names}
        lowest = {name: exact(count / table.label.shape[1]) for name, count in counts["paper"].items()}
        result["paper"] = {"attacks": {name: _scores(one) for name, one in each.items()}, "lowest": lowest}
    if adaptive:
        entries = [(at, table.entries[at - 1]) for at in adaptive]
        scores = {f"{entry.attack} on {entry.target}": _scores(_worst(table, [at], far)) for at, entry in entries}
        within = [at for at, one in enumerate(table.entries, start=1) if one.protocol == "adaptive" and one.size <= size]
        worst = _worst(table, [0, *within], far)
        counts["adaptive"] = {name: int(worst[name].sum()) for name in ("network", "smoothed")}
        result["adaptive"] = {"attacks": scores, "worst": _scores(worst)}
    if paper and adaptive:
        less = {name: counts["paper"][name] - counts["adaptive"][name] for name in ("network", "smoothed")}
        result["difference"] = {name: exact(count / table.label.shape[1]) for name, count in less.items()}
        result["weaker"] = any(count < 0 for count in less.values())
    return result


def _as_papers(table: AttackTable, at: int, reach: float) -> dict[str, Bools]:
    """One attack as the papers count it: the network is asked before rounding, certificates at the attacked input."""
    return {
        "smoothed": table.correct[at],
        "network": np.asarray(table.unrounded[at] == table.label[at]),
        "misled": table.misled[at],
        "certified": table.correct[at] & (table.radius[at] >= reach),
    }


def _worst(table: AttackTable, rows: Sequence[int], reach: float) -> dict[str, Bools]:
    """For each input the worst of several versions; the network counts as right only on and off the stored levels."""
    some = list(rows)
    both = (table.network == table.label) & (table.unrounded == table.label)
    return {
        "smoothed": table.correct[some].all(axis=0),
        "network": both[some].all(axis=0),
        "misled": table.misled[some].any(axis=0),
        "certified": (table.correct[some] & (table.radius[some] >= reach)).all(axis=0),
    }


def _scores(outcome: dict[str, Bools]) -> dict[str, Any]:
    total = len(outcome["smoothed"])
    counted = {name: outcome[name] for name in ("smoothed", "network", "certified")}
    counted["abstained"] = ~outcome["smoothed"] & ~outcome["misled"]
    return {**{name: share(int(column.sum()), total) for name, column in counted.items()}, "inputs": total}


def _held(table: AttackTable, here: list[int], line: CertifiedLine, reach: float, settings: dict[str, Any]) -> dict[str, Any]:
    """The certified share of the inputs that have both, and how many of the certified ones were misled."""
    both = min(len(line.correct), table.label.shape[1])
    covered = line.correct[:both] & (line.radius[:both] >= reach)
    flips = int((table.misled[here][:, :both].any(axis=0) & covered).sum())
    chance = min(1.0, line.alpha + len(here) * float(settings["alpha"]))
    # All inputs: where the true radius is just below the size, every certificate of that size is false. Format 1 counted only
    # those with such a certificate.
    trials = int(covered.sum()) if settings.get("format") == 1 else both
    probability = chance_of(flips, trials, chance, independent=line.independent)
    return {
        "certified": {**share(int(covered.sum()), both), "inputs": both},
        "flips": flips,
        "flips_probability": special(probability),
        "crossing": flips > 0 and probability < FALSE_ALARM,
    }


def chance_of(flips: int, inputs: int, chance: float, *, independent: bool) -> float:
    """A bound on the probability of so many flips: the binomial tail, or Markov's where certificates may fail together."""
    from scipy.special import betainc

    if flips == 0 or chance >= 1:
        return 1.0
    if not independent:
        return min(1.0, inputs * chance / flips)
    return float(betainc(flips, inputs - flips + 1, chance))
