"""From attacked inputs to results: judged by fresh draws, counted, and compared with the certified line.

An attack moves an input to numbers that no file can hold, and the certificate speaks of storable inputs. Rounding everything
towards the original would be safe and would undo the attack where levels are coarse: on 16 levels, most coordinates of a
small l2 perturbation are shorter than one level. So each coordinate is first rounded towards the original, and then the
coordinates that lost most are rounded away from it again, one after the other, for as long as the ball allows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from twinproof.attacks.objective import Objective
from twinproof.attacks.run import predicted_labels
from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import SmoothedClassifier
from twinproof.errors import CheckFailed, DataError
from twinproof.evaluation.accuracy import Interval, binomial_interval
from twinproof.evaluation.attack_record import AttackLine, AttackSettings
from twinproof.evaluation.certified import CertifiedLine, already_refuted, held_against, reach
from twinproof.evaluation.protocols import CLEAN, Entry, Protocol, size_name
from twinproof.guarantee import round_up
from twinproof.keys import Key
from twinproof.runs.records import Certificate


@dataclass(frozen=True)
class Outcome:
    """What one input, or the worst of its attacked versions, comes to.

    ``smoothed`` and ``network`` say who still names the true class, ``misled`` that the smoothed classifier named another one
    (so that an input with neither was met with silence), ``certified`` that it is certified at the attacked input itself.
    """

    smoothed: bool
    network: bool
    misled: bool
    certified: bool


@dataclass(frozen=True)
class Scores:
    """Shares of inputs with their intervals over test inputs; an abstention is never correct and is also counted apart."""

    smoothed: Interval
    network: Interval
    abstained: Interval
    certified: Interval
    inputs: int

    def as_dict(self) -> dict[str, Any]:
        shares = {name: getattr(self, name).as_dict() for name in ("smoothed", "network", "abstained", "certified")}
        return {**shares, "inputs": self.inputs}


def outcome_as_papers(line: AttackLine, reach: float) -> Outcome:
    """The papers' reading: the network at the input as it was crafted, certificates at the attacked input."""
    certified = line.correct and line.radius >= reach
    return Outcome(line.correct, line.network_unrounded == line.label, line.misled, certified)


def outcome_of_all(lines: Sequence[AttackLine], reach: float) -> Outcome:
    """The worst over several versions of one input: a classifier is right only if it is right at every one of them.

    The network may be met by inputs between stored levels too, so that both forms of each version count against it.
    """
    return Outcome(
        smoothed=all(line.correct for line in lines),
        network=all(line.label == line.network == line.network_unrounded for line in lines),
        misled=any(line.misled for line in lines),
        certified=all(line.correct and line.radius >= reach for line in lines),
    )


def worst_outcomes(entries: Sequence[Sequence[AttackLine]], reach: float) -> list[Outcome]:
    """``outcome_of_all`` for each input, over entries that hold the same inputs in the same order."""
    outcomes = []
    for versions in zip(*entries, strict=True):
        if len({line.index for line in versions}) != 1:
            raise DataError(
                "attacks do not hold the same inputs",
                got=sorted({line.index for line in versions}),
                wanted="one line for each input, in order",
            )
        outcomes.append(outcome_of_all(versions, reach))
    return outcomes


def scores(outcomes: Sequence[Outcome]) -> Scores:
    """Shares over inputs, each with its Clopper-Pearson interval."""
    total = len(outcomes)

    def share(count: int) -> Interval:
        return binomial_interval(count, total)

    return Scores(
        smoothed=share(sum(one.smoothed for one in outcomes)),
        network=share(sum(one.network for one in outcomes)),
        abstained=share(sum(not one.smoothed and not one.misled for one in outcomes)),
        certified=share(sum(one.certified for one in outcomes)),
        inputs=total,
    )


# A float32 of k / levels times levels is off by less, for up to 65,535 levels; a smaller move was none.
_NO_MOVE = 1e-2
# Pulled in by a billionth first, so that float rounding cannot leave a row one unit over an exact budget.
_INWARDS = 1 - 1e-9


def stored_inside(attacked: Tensor, original: Tensor, levels: int, norm: str, size: float) -> Tensor:
    """``attacked`` (floats in [0, 1]) as stored levels (int64) within ``size`` of ``original`` (stored levels).

    Guarantees
        In exact arithmetic, with ``size`` taken as the decimal that it prints as: the result lies within the ball around the
        original, and each coordinate lies within one level of the attacked one, on the side where the attack moved it.
        Proof: moves are whole levels and the budget is an integer; what is spent is counted before it is spent, and
        ``CheckFailed`` is raised where the sum is over it in the end.
    """
    start = original.to(torch.int64)
    wanted = (attacked.double() * levels - start.double()) * _INWARDS
    steps = wanted.abs().floor().to(torch.int64)
    lost = (wanted.abs() - steps).flatten(1)
    grown = _grown(steps.flatten(1), lost, norm, budget(norm, size, levels)).view_as(start)
    moved = (start + wanted.sign().to(torch.int64) * grown).clamp(0, levels)
    over = spent(moved - start, norm) > budget(norm, size, levels)
    if bool(over.any()):
        raise CheckFailed(
            "rounding to stored levels left the ball",
            where=f"{norm} of size {size}, row {int(over.nonzero()[0])}",
            got=f"{int(over.sum())} of {len(over)} rows outside",
            wanted="every row inside",
        )
    return moved


def budget(norm: str, size: float, levels: int) -> int:
    """The most that ``spent`` may be: whole levels for linf and l1, their square for l2."""
    in_levels = Fraction(repr(float(size))) * levels
    return math.floor(in_levels**2 if norm == "l2" else in_levels)


def spent(moves: Tensor, norm: str) -> Tensor:
    """Each row's largest move, sum of moves, or sum of their squares, in whole levels."""
    rows = moves.flatten(1).abs()
    if norm == "linf":
        return rows.amax(dim=1)
    return rows.square().sum(dim=1) if norm == "l2" else rows.sum(dim=1)


def lengths_of(moves: Tensor, norm: str, levels: int) -> list[float]:
    """The length of each row of ``moves`` (in stored levels), in the units of the inputs."""
    totals = spent(moves, norm).tolist()
    return [(math.sqrt(total) if norm == "l2" else float(total)) / levels for total in totals]


def _grown(steps: Tensor, lost: Tensor, norm: str, most: int) -> Tensor:
    """``steps`` with one more where it is affordable, those that lost most first."""
    movable = lost >= _NO_MOVE
    if norm == "linf":
        return steps + (movable & (lost >= 0.5) & (steps < most)).to(steps.dtype)
    price = torch.where(movable, 2 * steps + 1 if norm == "l2" else torch.ones_like(steps), 0)
    left = most - spent(steps, norm)
    order = torch.where(movable, lost, -1.0).argsort(dim=1, descending=True, stable=True)
    affordable = price.gather(1, order).cumsum(dim=1) <= left.unsqueeze(1)
    chosen = torch.zeros_like(movable).scatter(1, order, affordable)
    return steps + (chosen & movable).to(steps.dtype)


@dataclass(frozen=True)
class Subjects:
    """The inputs under attack: stored levels, true classes, and the classes that targeted attacks aim at."""

    stored: Tensor
    labels: Tensor
    aims: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Judge:
    """Asks the two classifiers. ``network`` is the network itself, its noise layer silenced: plain, or in expectation where it
    is random all the same. ``norm`` is that of the attacks.

    Guarantees
        The noise of every entry and input is its own: a function of the key, the entry's name and the input's number, and
        independent of the noise that the attack was made with. So the answer at a point that an attack chose errs with
        probability at most alpha, as at any point fixed in advance.
    """

    smoothed: SmoothedClassifier
    sampling: Sampling
    network: Objective
    norm: str
    key: Key

    def network_classes(self, inputs: Tensor, entry: Entry) -> Tensor:
        return predicted_labels(self.network, inputs, key=self._key("network", entry))

    def lines(
        self, entry: Entry, points: Tensor, subjects: Subjects, unrounded: Sequence[int], rows: slice
    ) -> list[AttackLine]:
        """The record of some rows of an entry; ``points`` are all of its attacked inputs, in stored levels."""
        levels = self.smoothed.levels
        here, labels = points[rows], subjects.labels[rows].tolist()
        lengths = lengths_of(here.to(torch.int64) - subjects.stored[rows].to(torch.int64), self.norm, levels)
        classes = self.network_classes(here.to(torch.float32) / levels, entry).tolist()
        first = range(len(subjects))[rows].start
        made = self.smoothed.certify(here, labels, sampling=self.sampling, key=self._key("judge", entry), first_index=first)
        return [
            AttackLine(
                found.index,
                entry.protocol,
                entry.target,
                entry.attack,
                entry.size,
                found.label,
                aim,
                round_up(length),
                seen,
                before,
                found.prediction,
                found.votes,
                found.top,
                found.radius,
                found.draws,
            )
            for found, aim, length, seen, before in zip(
                made, subjects.aims[rows].tolist(), lengths, classes, unrounded[rows], strict=True
            )
        ]

    def _key(self, purpose: str, entry: Entry) -> Key:
        return entry_key(self.key, purpose, entry)


def entry_key(key: Key, purpose: str, entry: Entry) -> Key:
    return key.within(f"{purpose} {entry.name}")


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
    sizes = [_at_size(settings, size, by_entry, line) for size in settings.plan.sizes]
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
    return CertifiedLine(certificates, settings.sampling.alpha, "attacks.csv")


def _at_size(settings: AttackSettings, size: float, by_entry: dict[str, Lines], line: CertifiedLine) -> dict[str, Any]:
    protocols = settings.plan.protocols
    needed = reach(settings.plan.norm, size, settings.method.norm, settings.dimension)
    clean = by_entry[CLEAN.name]
    here = [found for found in by_entry.values() if found[0].protocol in protocols and found[0].size == size]
    held = held_against(line, [{one.index: one for one in found} for found in here], needed, settings.sampling.alpha)
    result: dict[str, Any] = {"size": size, "reach": needed, **held.as_dict()}
    if Protocol.PAPER in protocols:
        result["paper"] = _paper([found for found in here if found[0].protocol == Protocol.PAPER], needed)
    if Protocol.ADAPTIVE in protocols:
        # What was found in a smaller ball lies in this one too.
        within = [found for found in by_entry.values() if found[0].protocol == Protocol.ADAPTIVE and found[0].size <= size]
        result["adaptive"] = _adaptive([found for found in within if found[0].size == size], [clean, *within], needed)
    if len(protocols) == len(Protocol):
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
    norm, levels = settings.plan.norm, settings.noise.levels
    where = f"at {norm} size {size_name(result['size'])}"
    found = []
    if budget(norm, result["size"], levels) == 0:
        found.append(
            f"{where}, no other input can be stored (a level is 1/{levels}): the smoothed classifier meets the "
            "originals, and only the network before rounding shows the attack"
        )
    if result["crossing"]:
        broken = (
            f"as expected, the {settings.method.bound} bound" if already_refuted(settings) else "a certificate or an attack"
        )
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
