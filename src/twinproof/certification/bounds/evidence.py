"""What the estimation draws of many inputs add up to, in whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinproof.errors import ConfigError, DataError

Whole = NDArray[np.int64]
VOTES = 1  # the resolution of votes: a draw counts 0 or 1


@dataclass(frozen=True)
class Evidence:
    """For each input, sums over ``draws`` draws of scores in whole units of 1 / ``resolution`` (1 for votes).

    ``total`` and ``squares`` sum the top class's scores and their squares; ``other`` and ``other_squares`` those of the class
    with the largest upper bound among the others (zeros where nobody will ask).

    Guarantees
        The sums can come from that many scores between 0 and 1: checked when made, in exact arithmetic. None overflows.
    """

    draws: int
    resolution: int
    total: Whole
    squares: Whole
    other: Whole
    other_squares: Whole

    def __post_init__(self) -> None:
        for name in ("draws", "resolution"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} cannot be used", where=name, got=getattr(self, name), wanted="at least 1")
        if self.draws * self.resolution**2 >= 2**63:
            raise ConfigError(
                "so many draws overflow the sums of squares",
                where="draws",
                got=self.draws,
                wanted=f"fewer than {2**63 // self.resolution**2} at resolution {self.resolution}",
            )
        sums: Mapping[str, Whole] = {name: getattr(self, name) for name in ("total", "squares", "other", "other_squares")}
        for name, values in sums.items():
            if values.dtype != np.int64 or values.shape != self.total.shape:
                raise DataError(
                    "the sums of the draws do not fit together",
                    where=name,
                    got=f"{values.dtype} of shape {values.shape}",
                    wanted=f"int64 of shape {self.total.shape}",
                )
        self._check_sums("total", self.total, self.squares)
        self._check_sums("other", self.other, self.other_squares)

    @classmethod
    def of_votes(cls, draws: int, votes: Whole, other: Whole | None = None) -> Evidence:
        """Votes for the top class, and for the strongest other class where they were counted."""
        others = np.zeros_like(votes) if other is None else other
        return cls(draws, VOTES, votes, votes, others, others)

    def _check_sums(self, name: str, total: Whole, squares: Whole) -> None:
        """Values v in 0..resolution have v^2 <= resolution v, and (Cauchy-Schwarz) the square of their sum is <= n squares."""
        possible = (total >= 0) & (total <= self.draws * self.resolution) & (squares <= total * self.resolution)
        possible &= np.asarray(spread_of(total, squares, self.draws) >= 0, dtype=np.bool_)
        if not possible.all():
            at = int(np.flatnonzero(~possible.reshape(-1))[0])
            raise DataError(
                "no scores between 0 and 1 have these sums",
                where=f"{name}, input {at}",
                got=f"sum {total.reshape(-1)[at]}, squares {squares.reshape(-1)[at]}",
                wanted=f"those of {self.draws} draws in units of 1/{self.resolution}",
            )


def spread_of(total: Whole, squares: Whole, draws: int) -> NDArray[np.object_]:
    """draws * squares - total^2, exactly, as Python's whole numbers: n (n - 1) times the unbiased variance in units."""
    exact_total, exact_squares = total.astype(np.object_), squares.astype(np.object_)
    return np.asarray(draws * exact_squares - exact_total * exact_total, dtype=np.object_)
