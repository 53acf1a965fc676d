"""From evidence to radii, and when to stop drawing.

    radius = (sigma * reach(low, high) - slack) / operator_norm      or, where it is larger,      sigma * reach / slackless_norm

``reach`` is in deviations of the noise, in l2 for Gaussian and l1 for Laplace noise, in the layer that gets the noise;
``operator_norm`` is how far that layer moves for one unit of the input, and ``slack`` what rounding it to the grid can add.
Where noise enters at two places, one of them may need no rounding: ``slackless_norm`` is the norm of that one. Laplace noise
has more than one sound reach, each with a norm of its own (``BestLaplace``): the longest radius counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.certification.bounds import RobustnessBound
from twinproof.certification.confidence import Confidence, Evidence, RunnerUp, after_tau, clopper_pearson_lower, find_confidence
from twinproof.certification.method import MOST_DRAWS, PLAIN, Method, Sampling, Schedule
from twinproof.certification.noise_site import Movement
from twinproof.certification.votes import Counter, row_statistic
from twinproof.errors import ConfigError
from twinproof.guarantee import round_down
from twinproof.runs.records import Look

Whole = NDArray[np.int64]
# How sure one must be, at a look, that the target stays out of reach. It decides how many certificates are lost, not whether
# those that are made hold.
_GIVE_UP = 1e-3


@dataclass(frozen=True)
class Certified:
    """For each input, whether its class is certain to win, and the radius (rounded down; 0 where it is not)."""

    certified: NDArray[np.bool_]
    radii: NDArray[np.float64]


@dataclass(frozen=True)
class RadiusRule:
    """All that turns evidence into radii, besides the evidence and its alpha.

    Guarantees
        If the class was chosen without the evidence, then with probability 1 - alpha over the draws: where ``certified``, the
        smoothed classifier gives that class to the input and to every input at a distance below the radius - for a
        ``bound`` whose status is proven. Proof: the confidence bounds hold with that probability for the noise as drawn, and
        after tau for the law itself; two inputs at distance r have layers at most operator_norm * r + slack apart (or
        slackless_norm * r, where that is given); up to sigma * reach nothing changes. What the float64 operations of this line
        err is covered by the share of tau that is for arithmetic (2^-36 of probability, through slopes of at least a tenth,
        is far above a few units of 2^-52), and the searched bounds are rounded down by themselves. Decimals are rounded down.
        Of several ways to a radius each holds whenever the confidence bounds do, and so does the longest.
    """

    bound: RobustnessBound
    classes: int
    sigma: float
    tau: float
    method: Method = PLAIN
    operator_norm: float = 1.0
    slack: float = 0.0
    slackless_norm: float | None = None
    others: tuple[tuple[RobustnessBound, Movement], ...] = ()

    @property
    def confidence(self) -> Confidence:
        """The confidence bound of the method."""
        return find_confidence(self.method.confidence)

    @property
    def runner_up(self) -> RunnerUp:
        """How the method bounds the other classes."""
        return RunnerUp(self.method.runner_up)

    @property
    def resolution(self) -> int:
        """What a draw counts at most."""
        return row_statistic(self.method.statistic).resolution

    def certified(self, evidence: Evidence, alpha: float) -> Certified:
        """What each input's evidence certifies."""
        low, high = after_tau(*self.confidence.bounds(evidence, alpha, self.classes, self.runner_up), self.tau)
        own = Movement(self.operator_norm, "", self.slack, self.slackless_norm)
        ways = ((self.bound, own), *self.others)
        exact = np.max([movement.size(self.sigma * bound.reach(low, high)) for bound, movement in ways], axis=0)
        # Many inputs have as many votes, and rounding down in decimals takes its time.
        numbers, which = np.unique(exact, return_inverse=True)
        radii = np.array([round_down(float(radius)) for radius in numbers], dtype=np.float64)
        return Certified(low > high, radii[which.reshape(exact.shape)])

    def unanimous(self, look: Look) -> float:
        """The radius of an input for which every draw of ``look`` gave its class everything."""
        unit = self.resolution
        total, nothing = np.array([look.draws * unit], dtype=np.int64), np.zeros(1, dtype=np.int64)
        return float(self.certified(Evidence(look.draws, unit, total, total * unit, nothing, nothing), look.alpha).radii[0])

    def of_votes(self, votes: int, look: Look) -> float:
        """The radius that so many votes at a look give, where votes are all the evidence."""
        return float(self.certified(Evidence.of_votes(look.draws, np.array([votes], dtype=np.int64)), look.alpha).radii[0])


def largest_radius(sampling: Sampling, rule: RadiusRule) -> float:
    """The radius that n unanimous draws give, rounded down.

    An (n, alpha) that can never certify anything is refused, and so is a target radius that no votes reach.
    """
    target, last = sampling.target_radius, sampling.schedule.last
    radius = rule.unanimous(last)
    if radius <= 0:
        needed = _smallest_useful_n(last, rule)
        raise ConfigError(
            "these settings can never certify anything",
            where="n, alpha",
            got=f"n={last.draws}, alpha={last.alpha}: even unanimous votes give no radius",
            wanted=f"n of at least {needed} at this alpha",
            fix=f"raise n to {needed} or more (10,000 is usual), or raise alpha",
        )
    if target is not None and radius < target:
        raise ConfigError(
            "the target radius is out of reach",
            where="target_radius",
            got=target,
            wanted=f"at most {radius:.6f}, which unanimous votes give at n={last.draws}",
            fix="raise n or sigma, or ask for a smaller radius",
        )
    return radius


def _smallest_useful_n(look: Look, rule: RadiusRule) -> int:
    """The least n whose unanimous votes give a radius: by bisection, because tau and rounding shift alpha^(1/n) > 1/2."""
    most = min(MOST_DRAWS, (2**63 - 1) // rule.resolution**2)
    low, high = look.draws, min(2 * look.draws, most)
    while rule.unanimous(Look(high, look.alpha)) <= 0:
        if high >= most:
            raise ConfigError(
                "no number of draws can certify this input", where="sigma", got=rule.sigma, wanted="a larger sigma"
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if rule.unanimous(Look(middle, look.alpha)) > 0 else (middle, high)
    return high


@dataclass(frozen=True)
class StoppingRule:
    """At each look of ``schedule``, the number of votes that decides an input: ``enough`` or more, or fewer than ``hope``.

    The thresholds depend on the settings alone, never on a vote. Whether a bound holds does not depend on them: all bounds of
    the schedule hold at once with probability 1 - alpha, and stopping without a certificate claims nothing.
    """

    schedule: Schedule
    enough: tuple[int, ...]
    hope: tuple[int, ...]

    def stops(self, number: int, votes: Whole) -> NDArray[np.bool_]:
        """Which inputs are decided at look ``number``, counted from 0; all of them at the last."""
        if number == len(self.schedule.looks) - 1:
            return np.ones(len(votes), dtype=np.bool_)
        return (votes >= self.enough[number]) | (votes < self.hope[number])


def stopping_rule(sampling: Sampling, rule: RadiusRule) -> StoppingRule:
    """At which votes an input is decided: whether its radius is at least the target; without one nothing is, before the end."""
    schedule, target = sampling.schedule, sampling.target_radius
    looks = schedule.looks
    if target is None:
        return StoppingRule(schedule, tuple(look.draws + 1 for look in looks), (0,) * len(looks))
    enough = tuple(_least(look, lambda votes, look: rule.of_votes(votes, look) >= target) for look in looks)
    needed, n = enough[-1], schedule.last.draws

    def hopeful(votes: int, look: Look) -> bool:
        # The upper bound on the probability is one minus the lower bound on its complement.
        upper = 1.0 - float(clopper_pearson_lower(look.draws - votes, look.draws, _GIVE_UP))
        return votes + n - look.draws >= needed and upper >= needed / n

    return StoppingRule(schedule, enough, tuple(_least(look, hopeful) for look in looks))


def _least(look: Look, holds: Callable[[int, Look], bool]) -> int:
    """The least number of votes for which ``holds`` is true, by bisection, as it stays true for more; draws + 1 if none is."""
    low, high = 0, look.draws + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle, look) else (middle + 1, high)
    return low


@dataclass(frozen=True)
class Estimate:
    """For each input the sums and sums of squares of all classes, and the number of the look, from 0, at which it stopped."""

    sums: Whole
    squares: Whole
    stopped: Whole

    def evidence(self, top: Whole, number: int, look: Look, rule: RadiusRule) -> Evidence:
        """The evidence for ``top`` of the inputs that stopped at look ``number``."""
        here = self.stopped == number
        return rule.confidence.evidence(
            self.sums[here],
            self.squares[here],
            top[here],
            draws=look.draws,
            resolution=rule.resolution,
            alpha=look.alpha,
            runner_up=rule.runner_up,
        )


def estimate(counter: Counter, rule: StoppingRule, indices: list[int], stored: Tensor, top: Tensor) -> Estimate:
    """Counts votes until the rule has decided every input by those for ``top``.

    The draws of an input are the first ones of those that the whole schedule would draw: stopping changes none of them.
    """
    counted: Whole | None = None
    stopped, undecided, seen = np.zeros(len(indices), dtype=np.int64), np.arange(len(indices)), 0
    for number, look in enumerate(rule.schedule.looks):
        chosen, rows = [indices[at] for at in undecided], torch.from_numpy(undecided).to(stored.device)
        made = counter.count("estimate", chosen, stored[rows], look.draws, after=seen).cpu().numpy()
        counted = np.zeros((len(indices), made.shape[1]), dtype=np.int64) if counted is None else counted
        counted[undecided] += made
        stopped[undecided] = number
        votes = counted[undecided, top[rows].cpu().numpy()]
        undecided, seen = undecided[~rule.stops(number, votes)], look.draws
        if not len(undecided):
            break
    sums, squares = counter.statistic.moments(torch.from_numpy(counted))
    return Estimate(sums.numpy(), squares.numpy(), stopped)
