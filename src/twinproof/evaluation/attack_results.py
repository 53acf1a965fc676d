"""From lines to results: both protocols at every size, their difference, and the certified line under them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from twinproof.evaluation.crossing import CertifiedLine, held_against
from twinproof.evaluation.protocols import CLEAN, Protocol
from twinproof.evaluation.reach import reach
from twinproof.evaluation.refuted_bounds import already_refuted
from twinproof.evaluation.stored_levels import budget
from twinproof.evaluation.worst_case import outcome_as_papers, scores, worst_outcomes
from twinproof.runs.attacks import AttackLine, AttackSettings, size_name
from twinproof.runs.certificates import Certificate

ROUNDING = (
    "Attacked inputs are brought to stored levels inside the ball: every coordinate towards the original, then those that lost "
    "most away from it again while the size allows. The smoothed classifier is asked there; network_unrounded is asked before."
)
Lines = list[AttackLine]


def attack_results(settings: AttackSettings, lines: Sequence[AttackLine], certified: CertifiedLine | None) -> dict[str, Any]:
    """The entry ``results`` of attacks.json: a function of the lines, the settings and the certificates alone.

    Without ``certified`` the line is that of the inputs as they were judged before attacking.
    """
    by_entry: dict[str, Lines] = defaultdict(list)
    for one in lines:
        by_entry[one.entry].append(one)
    clean = by_entry[CLEAN.name]
    line = certified or _own_line(settings, clean)
    sizes = [_at_size(settings, size, by_entry, line) for size in settings.sizes]
    return {
        "clean": scores(worst_outcomes([clean], 0.0)).as_dict(),
        "sizes": sizes,
        "certified_by": {"source": line.source, "inputs": len(line.certificates), "alpha": line.alpha},
        "crossing": any(result["crossing"] for result in sizes),
        "rounding": ROUNDING,
        "warnings": [warning for result in sizes for warning in _warnings(settings, result)],
    }


def _own_line(settings: AttackSettings, clean: Lines) -> CertifiedLine:
    certificates = [
        Certificate(one.index, one.label, one.prediction, one.votes, one.top, one.radius, one.draws) for one in clean
    ]
    return CertifiedLine(certificates, settings.alpha, "attacks.csv")


def _at_size(settings: AttackSettings, size: float, by_entry: dict[str, Lines], line: CertifiedLine) -> dict[str, Any]:
    needed = reach(settings.norm, size, settings.certificate_norm, settings.dimension)
    clean = by_entry[CLEAN.name]
    here = [found for found in by_entry.values() if found[0].protocol in settings.protocols and found[0].size == size]
    held = held_against(line, [{one.index: one for one in found} for found in here], needed, settings.alpha)
    result: dict[str, Any] = {"size": size, "reach": needed, **held.as_dict()}
    if Protocol.PAPER in settings.protocols:
        result["paper"] = _paper([found for found in here if found[0].protocol == Protocol.PAPER], needed)
    if Protocol.ADAPTIVE in settings.protocols:
        # What was found in a smaller ball lies in this one too.
        within = [found for found in by_entry.values() if found[0].protocol == Protocol.ADAPTIVE and found[0].size <= size]
        result["adaptive"] = _adaptive([found for found in within if found[0].size == size], [clean, *within], needed)
    if len(settings.protocols) == len(Protocol):
        result |= _difference(result)
    return result


def _paper(entries: list[Lines], needed: float) -> dict[str, Any]:
    each = {found[0].attack: scores([outcome_as_papers(line, needed) for line in found]).as_dict() for found in entries}
    lowest = {name: min(one[name]["value"] for one in each.values()) for name in ("network", "smoothed", "certified")}
    return {"attacks": each, "lowest": lowest}


def _adaptive(entries: list[Lines], within: list[Lines], needed: float) -> dict[str, Any]:
    each = {f"{found[0].attack} on {found[0].target}": scores(worst_outcomes([found], needed)).as_dict() for found in entries}
    return {"attacks": each, "worst": scores(worst_outcomes(within, needed)).as_dict()}


def _difference(result: dict[str, Any]) -> dict[str, Any]:
    """How much the papers' protocol leaves standing that ours does not; below zero, ours was too weak to be believed."""
    lowest, worst = result["paper"]["lowest"], result["adaptive"]["worst"]
    difference = {name: lowest[name] - worst[name]["value"] for name in ("network", "smoothed")}
    return {"difference": difference, "weaker": any(value < 0 for value in difference.values())}


def _warnings(settings: AttackSettings, result: dict[str, Any]) -> list[str]:
    where = f"at {settings.norm} size {size_name(result['size'])}"
    found = []
    if budget(settings.norm, result["size"], settings.levels) == 0:
        found.append(
            f"{where}, no other input can be stored (a level is 1/{settings.levels}): the smoothed classifier meets the "
            "originals, and only the network before rounding shows the attack"
        )
    if result["crossing"]:
        broken = f"as expected, the {settings.bound} bound" if already_refuted(settings) else "a certificate or an attack"
        found.append(
            f"{where}, {result['flips']} inputs were misled inside their certified radius, which alpha does not explain: "
            f"{broken} is broken"
        )
    if result.get("weaker"):
        found.append(f"{where}, the adaptive attacks are weaker than the papers': raise --steps, --draws or --restarts")
    return found


def headline(result: dict[str, Any]) -> float:
    """The share of inputs that the smoothed classifier still answers correctly, by the strongest protocol that was run."""
    shares = []
    if "paper" in result:
        shares.append(float(result["paper"]["lowest"]["smoothed"]))
    if "adaptive" in result:
        shares.append(float(result["adaptive"]["worst"]["smoothed"]["value"]))
    return min(shares)
