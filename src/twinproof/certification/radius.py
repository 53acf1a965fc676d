"""From evidence to radii: a confidence bound, less what the sampler may err, through a robustness bound, to an input's norm.

    radius = (sigma * reach(low, high) - slack) / operator_norm      or, where it is larger,      sigma * reach / slackless_norm

``reach`` is in deviations of the noise, in l2 for Gaussian and l1 for Laplace noise, in the layer that gets the noise;
``operator_norm`` is how far that layer moves for one unit of the input, and ``slack`` what rounding it to the grid can add.
Where noise enters at two places, one of them may need no rounding: ``slackless_norm`` is the norm of that one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinproof.certification.bounds.bound import RobustnessBound
from twinproof.certification.bounds.confidence import Confidence, RunnerUp, after_tau
from twinproof.certification.bounds.evidence import Evidence
from twinproof.certification.sampling import MOST_DRAWS, Sampling
from twinproof.certification.stopping import Estimate, StoppingRule
from twinproof.errors import ConfigError
from twinproof.rounding import round_down
from twinproof.runs.certificates import Look


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
        ``bound`` whose status is proven. Proof: the confidence bounds hold with that probability for the noise as drawn,
        and after tau for the law itself; two inputs at distance r have layers at most operator_norm * r + slack apart (or
        slackless_norm * r, where that is given); up to sigma * reach nothing changes. What the float64 operations of this line
        err is covered by the share of tau that is for arithmetic (2^-36 of probability, through slopes of at least a tenth,
        is far above a few units of 2^-52), and the searched bounds are rounded down by themselves. Decimals are rounded down.
    """

    bound: RobustnessBound
    confidence: Confidence
    runner_up: RunnerUp
    classes: int
    resolution: int
    sigma: float
    tau: float
    operator_norm: float = 1.0
    slack: float = 0.0
    slackless_norm: float | None = None

    def certified(self, evidence: Evidence, alpha: float) -> Certified:
        """What each input's evidence certifies."""
        low, high = after_tau(*self.confidence.bounds(evidence, alpha, self.classes, self.runner_up), self.tau)
        reached = self.sigma * self.bound.reach(low, high)
        exact = np.maximum(reached - self.slack, 0.0) / self.operator_norm
        if self.slackless_norm is not None:
            exact = np.maximum(exact, reached / self.slackless_norm)
        # Many inputs have as many votes, and rounding down in decimals takes its time.
        numbers, which = np.unique(exact, return_inverse=True)
        radii = np.array([round_down(float(radius)) for radius in numbers], dtype=np.float64)
        return Certified(low > high, radii[which.reshape(exact.shape)])

    def unanimous(self, draws: int, alpha: float) -> float:
        """The radius of an input for which every draw gave its class everything."""
        unit = self.resolution
        total, nothing = np.array([draws * unit], dtype=np.int64), np.zeros(1, dtype=np.int64)
        return float(self.certified(Evidence(draws, unit, total, total * unit, nothing, nothing), alpha).radii[0])

    def of_votes(self, votes: int, look: Look) -> float:
        """The radius that so many votes at a look give, where votes are all the evidence."""
        return float(self.certified(Evidence.of_votes(look.draws, np.array([votes], dtype=np.int64)), look.alpha).radii[0])


def largest_radius(sampling: Sampling, rule: RadiusRule) -> float:
    """The radius that n unanimous draws give, rounded down.

    An (n, alpha) that can never certify anything is refused, and so is a target radius that no votes reach.
    """
    target, last = sampling.target_radius, sampling.schedule.last
    radius = rule.unanimous(last.draws, last.alpha)
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


def stopping_rule(sampling: Sampling, rule: RadiusRule) -> StoppingRule:
    """At which votes an input of this sampling is decided."""
    target = sampling.target_radius
    if target is None:
        return StoppingRule.without_target(sampling.schedule)
    return StoppingRule.for_target(sampling.schedule, lambda votes, look: rule.of_votes(votes, look) >= target)


def evidence_at(made: Estimate, top: NDArray[np.int64], number: int, look: Look, rule: RadiusRule) -> Evidence:
    """The evidence for ``top`` of the inputs that stopped at look ``number``."""
    here = made.stopped == number
    return rule.confidence.evidence(
        made.sums[here],
        made.squares[here],
        top[here],
        draws=look.draws,
        resolution=rule.resolution,
        alpha=look.alpha,
        runner_up=rule.runner_up,
    )


def _smallest_useful_n(look: Look, rule: RadiusRule) -> int:
    """The least n whose unanimous votes give a radius: by bisection, because tau and rounding shift alpha^(1/n) > 1/2."""
    most = min(MOST_DRAWS, (2**63 - 1) // rule.resolution**2)
    low, high = look.draws, min(2 * look.draws, most)
    while rule.unanimous(high, look.alpha) <= 0:
        if high >= most:
            raise ConfigError(
                "no number of draws can certify this input", where="sigma", got=rule.sigma, wanted="a larger sigma"
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if rule.unanimous(middle, look.alpha) > 0 else (middle, high)
    return high
