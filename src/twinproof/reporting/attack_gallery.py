"""Attacked inputs beside their originals, with what changed: pictures, or a small table of features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twinproof.data.record import Dataset
from twinproof.evaluation.protocols import Protocol, size_name
from twinproof.reporting.attack_examples import ATTACKED_RULE, AttackedExample
from twinproof.reporting.attack_facts import AttackFacts
from twinproof.reporting.attack_marks import PROTOCOL_NAMES
from twinproof.reporting.examples import WITHHELD, image_uri, in_user_units, misfit, withheld
from twinproof.reporting.facts import RunFacts
from twinproof.reporting.gallery import WITHOUT_DATA, drawable
from twinproof.reporting.markup import Markup, element, join, table
from twinproof.reporting.numbers import length_text
from twinproof.reporting.sections import missing

CHANGES_SHOWN = 5
_NOBODY_MISLED = "No attack misled the smoothed classifier on an input that it answers correctly as it is."


def attacked_gallery(facts: RunFacts, attacks: AttackFacts, dataset: Dataset | None) -> Markup:
    """The chosen attacked inputs; only the test part of ``dataset`` is touched."""
    title = element("h3", "Attacked inputs")
    if not attacks.examples:
        return join([title, element("p", _NOBODY_MISLED)])
    if dataset is None:
        return join([title, missing(WITHOUT_DATA)])
    if withheld(facts, dataset):
        return join([title, missing(WITHHELD)])
    problem = attacked_misfit(attacks, dataset)
    if problem is not None:
        return join([title, missing(f"No attacked inputs are shown, because {problem}.")])
    shown = _pictures(facts, attacks, dataset) if drawable(dataset) else _features(facts, attacks, dataset)
    return join([title, shown, element("p", ATTACKED_RULE, class_="note")])


def attacked_misfit(attacks: AttackFacts, dataset: Dataset) -> str | None:
    """Why the chosen attacked inputs cannot be shown beside the test records of ``dataset``, or None."""
    problem = misfit(dataset, [example.clean for example in attacks.examples])
    if problem is not None:
        return problem
    if any(example.stored is None for example in attacks.examples):
        return "attacks.safetensors does not hold them"
    same = all(example.stored is not None and example.stored.shape == dataset.shape for example in attacks.examples)
    return None if same and attacks.settings.noise.levels == dataset.levels else "they have another form than the test records"


def amplification(moves: Sequence[NDArray[np.int64]], levels: int) -> int:
    """By how much differences are multiplied: one factor for all, so that the largest change is the darkest or brightest."""
    largest = max(int(np.abs(move).max(initial=0)) for move in moves)
    return max(1, levels // (2 * largest)) if largest else 1


def _moves(example: AttackedExample, dataset: Dataset) -> NDArray[np.int64]:
    """What the attack added to each coordinate, in levels."""
    if example.stored is None:
        raise ValueError("an input that is not there cannot be shown")
    before = dataset.test.inputs[example.line.index].astype(np.int64)
    return np.asarray(example.stored.astype(np.int64) - before, dtype=np.int64)


def _pictures(facts: RunFacts, attacks: AttackFacts, dataset: Dataset) -> Markup:
    moves = [_moves(example, dataset) for example in attacks.examples]
    gain = amplification(moves, dataset.levels)
    triples = (
        _triple(facts, attacks, dataset, example, move, gain) for example, move in zip(attacks.examples, moves, strict=True)
    )
    times = f"{gain} times as large as it is" if gain > 1 else "as large as it is"
    note = f"The difference is drawn {times}: grey is unchanged, brighter was raised, darker was lowered."
    return join([element("div", *triples, class_="triples"), element("p", note, class_="note")])


def _triple(
    facts: RunFacts, attacks: AttackFacts, dataset: Dataset, example: AttackedExample, move: NDArray[np.int64], gain: int
) -> Markup:
    original, levels = dataset.test.inputs[example.line.index], dataset.levels
    difference = np.clip(levels / 2 + gain * move, 0, levels)
    height, width = dataset.shape[1:]
    kinds = (("original", original), ("attacked", original + move), ("difference", difference))
    pictures = [
        element(
            "figure",
            element(
                "img", src=image_uri(array, levels), alt=f"Test record {example.line.index}, {kind}", width=width, height=height
            ),
            element("figcaption", kind),
            class_="example",
        )
        for kind, array in kinds
    ]
    words = element(
        "p", element("strong", _answers(facts, example)), *(element("span", line) for line in _told(facts, attacks, example))
    )
    return element("div", element("div", *pictures, class_="three"), words, class_="triple")


def _answers(facts: RunFacts, example: AttackedExample) -> str:
    """The answer before and under attack; the first is the true class, by the rule of choice."""
    return f"{facts.class_name(example.clean.prediction)} → {facts.class_name(example.line.prediction)}"


def _told(facts: RunFacts, attacks: AttackFacts, example: AttackedExample) -> list[str]:
    line = example.line
    return [
        f"{attacks.settings.plan.norm} {length_text(line.length)} (size {size_name(line.size)})",
        _attack(example),
        f"network alone: {facts.class_name(example.clean.network)} → {facts.class_name(line.network)}",
        f"true class {facts.class_name(line.label)}, no. {line.index}",
    ]


def _attack(example: AttackedExample) -> str:
    line = example.line
    return f"{line.attack} on {line.target}, {PROTOCOL_NAMES[Protocol(line.protocol)]}"


def _features(facts: RunFacts, attacks: AttackFacts, dataset: Dataset) -> Markup:
    rows = [
        (
            f"no. {example.line.index}, {facts.class_name(example.line.label)}",
            element("strong", _answers(facts, example)),
            _attack(example),
            f"{length_text(example.line.length, 4)} of {size_name(example.line.size)}",
            _changes(example, dataset),
        )
        for example in attacks.examples
    ]
    caption = f"Changes are in the units of the data; the {CHANGES_SHOWN} features that changed most."
    head = ("test record, true class", "answer", "attack", f"{attacks.settings.plan.norm} length", "largest changes")
    return element("div", table(head, rows, caption), class_="changes")


def _changes(example: AttackedExample, dataset: Dataset) -> Markup:
    """The features that moved most, from what to what."""
    moves = np.abs(_moves(example, dataset)).ravel()
    most = [int(place) for place in np.argsort(-moves, kind="stable")[:CHANGES_SHOWN] if moves[place]]
    if example.stored is None:
        raise ValueError("an input that is not there cannot be shown")
    before, after = (in_user_units(dataset, one) for one in (dataset.test.inputs[example.line.index], example.stored))
    names = dataset.feature_names or tuple(f"feature {place}" for place in range(len(moves)))
    return join(element("div", f"{names[place]} {before[place]:.4g} → {after[place]:.4g}") for place in most)
