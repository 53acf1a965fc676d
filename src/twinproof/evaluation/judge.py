"""What the network and the smoothed classifier say of attacked inputs, with draws that no attack has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.attacks.objective import Objective
from twinproof.attacks.run import predicted_labels
from twinproof.certification.smoothed import Sampling, SmoothedClassifier
from twinproof.evaluation.protocols import Entry
from twinproof.evaluation.stored_levels import lengths_of
from twinproof.randomness import Key
from twinproof.rounding import round_up
from twinproof.runs.attacks import AttackLine


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
        """The network's own class for each of ``inputs`` (floats in [0, 1])."""
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
    """The key of one purpose of one entry."""
    return key.within(f"{purpose} {entry.name}")
