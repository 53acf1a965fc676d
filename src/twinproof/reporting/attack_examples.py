"""Which attacked inputs the report shows, by a rule fixed beforehand, and which of them contradict a certificate."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from twinproof.evaluation.attack_record import AttackLine
from twinproof.evaluation.protocols import CLEAN, Protocol

SHOWN = 9
ATTACKED_RULE = (
    "Chosen by a rule that was fixed before anything was seen: inputs that the smoothed classifier answers correctly as they "
    "are and wrongly under attack; the smallest size first, then the order of the test set; each input once, by an adaptive "
    "attack where one misled it, else by one of the papers'."
)


@dataclass(frozen=True)
class AttackedExample:
    """An attacked input (``stored``, in levels; None where its file does not hold it) and its lines with and without attack."""

    line: AttackLine
    clean: AttackLine
    stored: NDArray[Any] | None


def clean_lines(lines: Sequence[AttackLine]) -> dict[int, AttackLine]:
    """The lines without attack, by the number of the input."""
    return {line.index: line for line in lines if line.entry == CLEAN.name}


def choose_attacked(lines: Sequence[AttackLine], count: int = SHOWN) -> list[AttackLine]:
    """At most ``count`` lines of attacks that misled the smoothed classifier, by the rule above."""
    clean = clean_lines(lines)
    place = {name: order for order, name in enumerate(dict.fromkeys(line.entry for line in lines))}
    misled = [line for line in lines if line.misled and line.index in clean and clean[line.index].correct]
    misled.sort(key=lambda line: (line.size, line.index, line.protocol != Protocol.ADAPTIVE, place[line.entry]))
    first: dict[int, AttackLine] = {}
    for line in misled:
        first.setdefault(line.index, line)
    return list(first.values())[:count]


def contradicting(lines: Sequence[AttackLine], size: float, covered: Collection[int]) -> list[AttackLine]:
    """Lines of one size with a wrong answer at an input whose certificate (its number is in ``covered``) excludes it."""
    return [line for line in lines if line.size == size and line.misled and line.index in covered]


def with_inputs(
    chosen: Sequence[AttackLine], lines: Sequence[AttackLine], arrays: Mapping[str, NDArray[Any]]
) -> tuple[AttackedExample, ...]:
    """The chosen lines with their attacked inputs; tensors hold the inputs in the order of their lines."""
    clean = clean_lines(lines)
    rows: dict[tuple[str, int], int] = {}
    lengths: dict[str, int] = {}
    for line in lines:
        rows[line.entry, line.index] = lengths.get(line.entry, 0)
        lengths[line.entry] = rows[line.entry, line.index] + 1

    def stored(line: AttackLine) -> NDArray[Any] | None:
        array = arrays.get(line.entry)
        return None if array is None or len(array) != lengths[line.entry] else array[rows[line.entry, line.index]]

    return tuple(AttackedExample(line, clean[line.index], stored(line)) for line in chosen if line.index in clean)
