"""Certificates on disk: one line for each input."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from twinproof.rounding import format_down
from twinproof.runs.reading import CLOSED, NUMBER, WHOLE, Count, Share, read_table

ABSTAIN = -1  # prediction: the votes do not allow an answer
UNKNOWN = -2  # label: nobody said what the truth is
HEADER = ("index", "label", "prediction", "votes", "top", "radius", "correct", "draws")
# Columns of evidence that is more than one number of votes.
MORE = ("squares", "runner_up", "runner_up_squares")
_COLUMNS = dict.fromkeys(HEADER, WHOLE) | {"radius": NUMBER}


@dataclass(frozen=True)
class Certificate:
    """One input's answer: ``prediction`` (or ``ABSTAIN``), the votes behind it, and a radius that is already rounded down.

    ``draws`` is the number of estimation draws that the votes come from; 0 where nobody said. ``votes`` are votes, or the sum
    of the class's scores; ``squares``, and the sums of the strongest other class (``runner_up``), are 0 where the number of
    votes is all the evidence.
    """

    index: int
    label: int
    prediction: int
    votes: int
    top: int
    radius: float
    draws: int = 0
    squares: int = 0
    runner_up: int = 0
    runner_up_squares: int = 0

    @property
    def correct(self) -> bool:
        """Whether the answer is the true label; labels are classes or ``UNKNOWN``, so that an abstention never is."""
        return self.prediction == self.label

    def robust_at(self, size: float) -> bool:
        """Whether no change smaller than ``size`` can change the answer: false for an abstention, even at size 0."""
        return self.prediction != ABSTAIN and self.radius >= size

    def row(self, *, more: bool = False) -> list[str]:
        """The line of ``certificates.csv``; with ``more`` it ends with the columns ``MORE``."""
        numbers = (self.index, self.label, self.prediction, self.votes, self.top)
        line = [*map(str, numbers), format_down(self.radius), str(int(self.correct)), str(self.draws)]
        return line + [str(getattr(self, name)) for name in MORE] if more else line


@dataclass(frozen=True)
class Look:
    """A look at the votes after ``draws`` estimation draws, with a bound that fails with probability at most ``alpha``."""

    __pydantic_config__: ClassVar = CLOSED

    draws: Count
    alpha: Share


def format_certificates(certificates: Iterable[Certificate], *, more: bool = False) -> bytes:
    """Header and lines of ``certificates.csv``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER + MORE if more else HEADER)
    writer.writerows(certificate.row(more=more) for certificate in certificates)
    return text.getvalue().encode()


def read_certificates(path: Path) -> list[Certificate]:
    """The lines of ``certificates.csv``; in formats 1 and 2 a last line that a kill cut short is passed over."""
    rows = read_table(path, (_COLUMNS, _COLUMNS | dict.fromkeys(MORE, WHOLE)), appended=True)
    return [Certificate(**{name: value for name, value in row.items() if name != "correct"}) for row in rows]
