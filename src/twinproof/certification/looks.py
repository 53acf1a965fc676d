"""When a certification looks at its votes, and how the failure probability is shared among the looks.

Stopping as soon as a plain bound says "certified" breaks the bound: it gets many chances to fail. Here the looks are fixed
before the first draw, each has a share of alpha, and the shares add up to alpha: by the union bound all bounds hold at once
with probability 1 - alpha, so that it does not matter at which of them, or why, one stops.
docs/decisions/0006-sequential-certification.md
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from twinproof.errors import ConfigError
from twinproof.runs.certificates import Look

# Enough draws for a plain case at a usual alpha; fewer would only be one more look to share alpha with.
FIRST_LOOK = 125
# Shares like alpha / 7 add up to alpha only up to float64; far below what a bound's own arithmetic errs.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Schedule:
    """The looks at the votes of one input; the last one is the end.

    Guarantees
        Looks come at growing numbers of draws and their failure probabilities add up to at most ``alpha``; anything else is
        refused when the record is made.
    """

    looks: tuple[Look, ...]
    alpha: float

    def __post_init__(self) -> None:
        draws = [look.draws for look in self.looks]
        if not draws or draws[0] < 1 or any(later <= earlier for earlier, later in pairwise(draws)):
            raise ConfigError("the looks are in no order", where="looks", got=draws, wanted="growing numbers of draws, from 1")
        spent = math.fsum(look.alpha for look in self.looks)
        if not (all(look.alpha > 0 for look in self.looks) and spent <= self.alpha * (1 + _ROUNDING)):
            raise ConfigError(
                "the looks spend more than the failure probability",
                where="looks",
                got=f"{spent!r} in all",
                wanted=f"shares above 0 that add up to at most {self.alpha!r}",
                fix="every look is a chance to be wrong: share alpha among them",
            )

    @property
    def last(self) -> Look:
        """The look at which the draws end."""
        return self.looks[-1]

    @classmethod
    def single(cls, n: int, alpha: float) -> Schedule:
        """One look at all n draws: the procedure with a fixed number of draws.

        Without a target nothing stops early. A radius grows until the last draw, and an input that is sure to abstain could
        stop after half of them at best, which is too rare to be worth a look.
        """
        return cls((Look(n, alpha),), alpha)

    @classmethod
    def doubling(cls, n: int, alpha: float) -> Schedule:
        """Looks at 125, 250, 500 draws and so on, and at ``n``.

        The last look gets half of alpha, so that what the fixed procedure would certify is seldom lost at the end; the others
        share the rest, because for them a smaller alpha only costs a few more draws.
        """
        early: list[int] = []
        while FIRST_LOOK << len(early) < n:
            early.append(FIRST_LOOK << len(early))
        if not early:
            return cls.single(n, alpha)
        share = alpha / 2 / len(early)
        return cls((*(Look(draws, share) for draws in early), Look(n, alpha / 2)), alpha)
