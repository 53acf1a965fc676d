"""A crossing of the certified line as a box that nobody overlooks, with the evidence for which of the two is wrong.

An attack and a certificate that contradict each other cannot both be right. What decides is whether the attacked inputs lie
where the attack says: that is measured anew here, on the stored integers and in exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from twinproof.data.record import Dataset
from twinproof.reporting.attack_examples import AttackedExample
from twinproof.reporting.attack_facts import AttackFacts
from twinproof.reporting.examples import misfit
from twinproof.reporting.markup import Markup, element, listing
from twinproof.reporting.numbers import probability_text

_TITLE = "Defect: an attack crosses the certified line"
_EXPECTED_TITLE = "As expected: an attack crosses the claimed line"
_EXPECTED = "The bound behind these radii is known to be false, and the attack shows it. Do not rely on any radius of this run."


class Culprit(StrEnum):
    """Which of the two must be wrong."""

    CERTIFICATES = "certificates"
    ATTACK = "attack"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CrossingEvidence:
    """How many attacked inputs contradict a certificate, and how many of them lie outside the ball (None: not measured)."""

    contradictions: int
    outside: int | None

    @property
    def culprit(self) -> Culprit:
        """The attack, where it left its ball; the certificates, where it did not; unknown without the inputs."""
        if self.outside is None or not self.contradictions:
            return Culprit.UNKNOWN
        return Culprit.ATTACK if self.outside else Culprit.CERTIFICATES

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"contradictions": self.contradictions, "outside": self.outside, "culprit": str(self.culprit)}


def crossing_evidence(attacks: AttackFacts, dataset: Dataset | None) -> CrossingEvidence:
    """Measures every attacked input that contradicts a certificate against its original in ``dataset``."""
    found = attacks.contradictions
    if dataset is None or misfit(dataset, [example.clean for example in found]) is not None:
        return CrossingEvidence(len(found), None)
    arrays = [example.stored for example in found]
    if (
        any(array is None or array.shape != dataset.shape for array in arrays)
        or attacks.settings.noise.levels != dataset.levels
    ):
        return CrossingEvidence(len(found), None)
    return CrossingEvidence(len(found), sum(_outside(attacks, dataset, example) for example in found))


def crossing_box(attacks: AttackFacts, dataset: Dataset | None, *, expected: bool = False) -> Markup:
    """The box, or nothing where no line was crossed; ``expected`` where the bound of the radii is known to be false."""
    if not attacks.crossing:
        return Markup()
    crossed = [
        f"At {attacks.where(one.size)}, {one.flips} inputs got another answer although their certificate excludes it. "
        f"Chance explains that with probability at most {probability_text(one.flips_probability)}."
        for one in attacks.crossed
    ]
    if expected:
        return defect_box(_EXPECTED_TITLE, listing(crossed), element("p", element("strong", _EXPECTED)))
    return defect_box(_TITLE, listing(crossed), _verdict(crossing_evidence(attacks, dataset)))


def defect_box(title: str, *content: object) -> Markup:
    """A box for what must not be overlooked: a sign and a word, not only a colour."""
    heading = element("h3", element("span", "✗", aria_hidden="true", class_="sign"), title)
    return element("div", heading, *content, class_="defect", role="alert")


def _verdict(evidence: CrossingEvidence) -> Markup:
    """Which of the two must be wrong, and how that is known."""
    count = f"{evidence.contradictions} attacked versions of inputs that contradict a certificate"
    if evidence.culprit is Culprit.CERTIFICATES:
        text = (
            f"The certificates must be wrong. All {count} lie inside the ball of their size, measured anew on the stored "
            "integers, so the attack is what it says. Either the radii are too large, or the classifier that answered under "
            "attack is not the one that was certified. Do not rely on any radius of this run."
        )
    elif evidence.culprit is Culprit.ATTACK:
        text = (
            f"The attack must be wrong. Of the {count}, {evidence.outside} lie outside the ball of their size, measured anew "
            "on the stored integers: they prove nothing against the certificates, and nothing else in this section may be "
            "relied on."
        )
    else:
        text = (
            "One of the two must be wrong: the certificates (radii that are too large) or the attack (inputs outside its "
            "ball). Without the data set and the attacked inputs this report cannot tell which; until it is known, rely on "
            "neither."
        )
    return element("p", element("strong", text))


def _outside(attacks: AttackFacts, dataset: Dataset, example: AttackedExample) -> bool:
    from twinproof.evaluation.attack_results import budget

    if example.stored is None:
        raise ValueError("an input that is not there cannot be measured")
    settings = attacks.settings
    moved = np.abs(example.stored.astype(np.int64) - dataset.test.inputs[example.line.index].astype(np.int64)).ravel()
    return _spent(moved.tolist(), settings.plan.norm) > budget(settings.plan.norm, example.line.size, settings.noise.levels)


def _spent(moves: Sequence[int], norm: str) -> int:
    """The largest move, the sum of moves, or the sum of their squares, in whole levels; integers of any size."""
    if norm == "linf":
        return max(moves, default=0)
    return sum(move * move for move in moves) if norm == "l2" else sum(moves)
