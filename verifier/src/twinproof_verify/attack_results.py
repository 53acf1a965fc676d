"""The attacked inputs, and the results of attacks.json counted again from the lines and the certificates that are there now.

The originals are in no file of a run. Given the test set, distances are measured from them, in integers. Without it, two
attacked versions of one input must not be further apart than their lengths together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from twinproof_verify.attacks import FLOAT_SLACK, AttackSettings, AttackTable, Entry, entries_of
from twinproof_verify.certificate_lines import Lines
from twinproof_verify.certificates import SCORES, CertificateSettings
from twinproof_verify.evidence import Originals, raw_tensors, shown
from twinproof_verify.findings import Problem
from twinproof_verify.models import ROUNDING_UNIT, Anything, differences, exact, share, special

_KINDS = {"U8": "<u1", "U16": "<u2"}
# Rows measured together: what an int64 copy of wide inputs may take.
_ROWS = 512
_LARGEST_BUDGET = 2**62

Tensors = dict[str, NDArray[Any]]


def read_attacked_inputs(content: bytes, file: str, settings: AttackSettings) -> tuple[Tensors, list[Problem]]:
    """The tensors that the settings ask for, as rows of coordinates, and what is wrong with the others."""
    found = raw_tensors(content)
    if isinstance(found, str):
        return {}, [Problem(file, "the attacked inputs cannot be loaded", found, "a safetensors file")]
    names = [entry.name for entry in entries_of(settings)]
    strange = sorted(set(found) - set(names))
    problems = [Problem(file, "a tensor belongs to no attack", shown(name), "an entry of attacks.csv") for name in strange]
    tensors: Tensors = {}
    for name in names:
        if name not in found:
            problems.append(Problem(file, f"there is no tensor {shown(name)}", "nothing", "one for each entry"))
            continue
        shape, kind = [int(size) for size in found[name]["shape"]], str(found[name]["dtype"])
        if kind not in _KINDS or shape[:1] != [settings.inputs] or math.prod(shape[1:]) != settings.dimension:
            wanted = f"U8 or U16, {settings.inputs} inputs of {settings.dimension} coordinates"
            problems.append(Problem(file, f"{name}: these are no inputs", f"{shown(kind)} {shown(shape)}", wanted))
            continue
        rows = np.frombuffer(found[name]["data"], dtype=_KINDS[kind]).reshape(settings.inputs, settings.dimension)
        if (most := int(rows.max(initial=0))) > settings.noise.levels:
            what = f"{name}: an input lies outside the range"
            problems.append(Problem(file, what, str(most), f"0..{settings.noise.levels}"))
        tensors[name] = rows
    return tensors, problems


def budget(norm: str, size: float, levels: int) -> int:
    """The most levels that may be moved (l2: the most squares of levels), with the size as the decimal that was written."""
    in_levels = Fraction(repr(size)) * levels
    return min(_LARGEST_BUDGET, math.floor(in_levels**2 if norm == "l2" else in_levels))


def distances(some: NDArray[Any], others: NDArray[Any], norm: str) -> NDArray[np.int64]:
    """Between rows of stored levels, in whole levels; squared for l2."""
    parts = [np.zeros(0, dtype=np.int64)]
    for first in range(0, len(some), _ROWS):
        rows = slice(first, first + _ROWS)
        moves = np.abs(some[rows].astype(np.int64) - others[rows].astype(np.int64))
        parts.append(moves.max(axis=1, initial=0) if norm == "linf" else (moves**2 if norm == "l2" else moves).sum(axis=1))
    return np.concatenate(parts)


def in_units(measured: NDArray[np.int64], norm: str, levels: int) -> NDArray[np.float64]:
    plain = measured.astype(np.float64)
    return np.asarray((np.sqrt(plain) if norm == "l2" else plain) / levels)


def ball_problems(
    tensors: Tensors, table: AttackTable, settings: AttackSettings, originals: Originals | None
) -> Iterator[Problem]:
    """Whether the attacked inputs lie where the lines say; all tensors of ``table`` must be there."""
    if originals is None:
        yield from _apart_problems(tensors, table, settings)
        return
    inputs, norm, levels = originals.rows(0, settings.inputs), settings.plan.norm, settings.noise.levels
    for entry, length in zip(table.entries, table.length[1:], strict=True):
        moved = distances(tensors[entry.name], inputs, norm)
        true = in_units(moved, norm, levels)
        outside = moved > budget(norm, entry.size, levels)
        yield from _first(table, entry, outside, "an attacked input lies outside the ball", true, f"at most {entry.size}")
        lie = ~((length >= true - FLOAT_SLACK) & (length <= true + ROUNDING_UNIT + FLOAT_SLACK))
        yield from _first(
            table, entry, lie & ~outside, "an attacked input is not as far away as attacks.csv says", true, "length"
        )


def _apart_problems(tensors: Tensors, table: AttackTable, settings: AttackSettings) -> Iterator[Problem]:
    """Each version of an input against the one that is said to be nearest to the original (often the original itself)."""
    norm, levels = settings.plan.norm, settings.noise.levels
    nearest = table.length[1:].argmin(axis=0)
    anchors = np.zeros_like(tensors[table.entries[0].name], dtype=np.uint16)
    for at, entry in enumerate(table.entries):
        anchors[nearest == at] = tensors[entry.name][nearest == at]
    spare = table.length[1:].min(axis=0)
    for entry, length in zip(table.entries, table.length[1:], strict=True):
        apart = in_units(distances(tensors[entry.name], anchors, norm), norm, levels)
        outside = ~(apart <= length + spare + FLOAT_SLACK)
        wanted = "versions of one input no further apart than their lengths together"
        yield from _first(table, entry, outside, "an attacked input lies outside the ball", apart, wanted)


def _first(
    table: AttackTable, entry: Entry, mask: NDArray[np.bool_], what: str, column: NDArray[np.float64], wanted: str
) -> Iterator[Problem]:
    places = np.flatnonzero(mask)
    if len(places):
        got = f"input {places[0]} at a distance of {float(column[places[0]])!r}; {len(places)} inputs in all"
        yield Problem(table.files.tensors, f"{entry.name}: {what}", got, wanted)


# What ``certified_by`` calls the files that radii come from.
CERTIFICATES_CSV, ATTACKS_CSV = "certificates.csv", "attacks.csv"
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


def certified_line(
    table: AttackTable, settings: AttackSettings, certificates: CertificateSettings | None, lines: Lines | None
) -> CertifiedLine | None:
    """The certificates that the attacks name (None where they cannot be used); without any, the inputs as judged before.

    Attacks are judged by votes. The class of the highest mean score need not be the one with the most votes, so certificates
    by scores are not compared with them.
    """
    if settings.certificates is None or (certificates is not None and certificates.method.statistic == SCORES):
        return CertifiedLine(ATTACKS_CSV, table.correct[0], table.radius[0], settings.sampling.alpha, independent=True)
    if certificates is None or lines is None or not len(lines.rows) or (lines.index != np.arange(len(lines.rows))).any():
        return None
    correct = np.asarray((lines.prediction == lines.label) & (lines.label >= 0))
    sampling = certificates.sampling
    return CertifiedLine(CERTIFICATES_CSV, correct, lines.radius, sampling.alpha, not sampling.shared_noise)


def reach(norm: str, size: float, certificate_norm: str, dimension: int) -> float:
    """How far in ``certificate_norm`` a change of ``size`` in ``norm`` can go, rounded up to six places."""
    context = Context(prec=400)
    # The longest change is one coordinate alone, or all of them by the same amount: then its square is d or d^2 times larger.
    spread = max(0, _SPREAD[certificate_norm] - _SPREAD[norm])
    factor = context.power(Decimal(dimension), spread)
    square = context.multiply(context.power(Decimal(repr(size)), 2), factor)
    return float(context.sqrt(square).quantize(Decimal("0.000001"), rounding=ROUND_CEILING, context=context))


def result_problems(
    table: AttackTable, settings: AttackSettings, certificates: CertificateSettings | None, lines: Lines | None
) -> Iterator[Problem]:
    line = certified_line(table, settings, certificates, lines)
    if line is None:
        what = "results cannot be checked without sound certificates"
        yield Problem(table.files.json, what, "broken certificates", "sound ones")
        return
    for path, got, wanted in differences(settings.results, _expected(table, settings, line), "results"):
        if _CERTIFIED.fullmatch(path) and line.source == CERTIFICATES_CSV:
            what = f"{path} does not follow from attacks.csv and the present certificates"
            wanted = f"{wanted}; if the run was certified anew: attack it again, which renews results"
            yield Problem(table.files.json, what, got, wanted)
        else:
            yield Problem(table.files.json, f"{path} does not follow from attacks.csv", got, wanted)


def _expected(table: AttackTable, settings: AttackSettings, line: CertifiedLine) -> dict[str, Any]:
    sizes = [_at_size(size, table, settings, line) for size in settings.plan.sizes]
    norm, levels = settings.plan.norm, settings.noise.levels
    unheard = sum(budget(norm, size, levels) == 0 for size in settings.plan.sizes)
    warnings = unheard + sum(one["crossing"] for one in sizes) + sum(one.get("weaker", False) for one in sizes)
    return {
        "clean": _scores(_worst(table, [0], 0.0)),
        "sizes": sizes,
        "certified_by": {"source": line.source, "inputs": len(line.correct), "alpha": exact(line.alpha)},
        "crossing": any(one["crossing"] for one in sizes),
        "rounding": Anything(lambda value: isinstance(value, str) and bool(value), "a text"),
        "warnings": Anything(
            lambda value: isinstance(value, list) and [type(one) for one in value] == [str] * warnings,
            f"{warnings} sentences: one for each size with a crossing, weaker attacks, or less than a level",
        ),
    }


def _at_size(size: float, table: AttackTable, settings: AttackSettings, line: CertifiedLine) -> dict[str, Any]:
    """The entry of one size; a count stands beside each share, so that differences are taken exactly."""
    far = reach(settings.plan.norm, size, settings.method.norm, settings.dimension)
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


def _held(table: AttackTable, here: list[int], line: CertifiedLine, reach: float, settings: AttackSettings) -> dict[str, Any]:
    """The certified share of the inputs that have both, and how many of the certified ones were misled."""
    both = min(len(line.correct), table.label.shape[1])
    covered = line.correct[:both] & (line.radius[:both] >= reach)
    flips = int((table.misled[here][:, :both].any(axis=0) & covered).sum())
    chance = min(1.0, line.alpha + len(here) * settings.sampling.alpha)
    # All inputs: where the true radius is just below the size, every certificate of that size is false. Format 1 counted only
    # those with such a certificate.
    trials = int(covered.sum()) if settings.format == 1 else both
    probability = chance_of(flips, trials, chance, independent=line.independent)
    return {
        "certified": {**share(int(covered.sum()), both), "inputs": both},
        "flips": flips,
        "flips_probability": special(probability),
        "crossing": flips > 0 and probability < FALSE_ALARM,
    }


def chance_of(flips: int, inputs: int, chance: float, *, independent: bool) -> float:
    """A bound on the probability of so many flips: the binomial tail, or Markov's where certificates may fail together."""
    if flips == 0 or chance >= 1:
        return 1.0
    if not independent:
        return min(1.0, inputs * chance / flips)
    return float(betainc(flips, inputs - flips + 1, chance))
