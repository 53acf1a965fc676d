"""A linear classifier with pure epsilon-privacy: the noisy quadratic objective, minimised once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from twinproof.privacy.functional.discrete_laplace import discrete_laplace_deviation
from twinproof.privacy.functional.feature_ball import FeatureBall
from twinproof.privacy.functional.mechanism import FunctionalPlan, PrivateSums, release_sums
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.mechanisms.targets import check_positive
from twinproof.randomness import Key

# In units of the squared radius: what one record can add to the curvature, a thousand times smaller.
_LEAST_RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class PrivateLinear:
    """Weights (classes, features) for features that are clipped to ``plan.ball`` first, float64."""

    weights: Tensor
    plan: FunctionalPlan
    ridge: float

    def scores(self, features: Tensor) -> Tensor:
        """(records, classes): the score of each class; sigmoid makes probabilities of them."""
        return self.plan.ball.clip(features) @ self.weights.T


def fit_private_linear(
    features: Tensor,
    labels: Tensor,
    classes: int,
    epsilon: float,
    *,
    ball: FeatureBall,
    ledger: Ledger,
    key: Key | None = None,
    label_share: float = 0.5,
    ridge: float | None = None,
) -> PrivateLinear:
    """Second-order sigmoid cross-entropy of every class on public features, fitted with (``epsilon``, 0)-privacy.

    ``features`` (records, features) must each be a function of their own record and of public things. ``ball``, ``label_share``
    and ``ridge`` are public: declared, never tuned on these records. Without ``ridge``: ``default_ridge``. An intercept is a
    constant feature. ``key``: fresh from the system unless given; whoever knows it can subtract the noise.

    Guarantees
        The weights are (``epsilon``, 0)-differentially private for one record more or less. Proof: ``release_sums`` is, and the
        rest is a function of its answer and of public numbers. It is in ``ledger`` before a record is read. Tests: sensitivity
        over random and optimised records, the noise's exact law, all noise independent; noise shared by classes, a forgotten
        class or map and a sensitivity in place of a scale are seen.
    """
    plan = FunctionalPlan(ball, classes, epsilon, label_share)
    strength = default_ridge(plan) if ridge is None else ridge
    check_positive("ridge", strength)
    sums = release_sums(features, labels, plan, key=Key.from_system() if key is None else key, ledger=ledger)
    return PrivateLinear(minimiser(sums, strength), plan, strength)


def default_ridge(plan: FunctionalPlan) -> float:
    """A public penalty that holds the noise of the curvature: a quarter of its largest eigenvalue, 2 sqrt(d) deviations."""
    deviation = discrete_laplace_deviation(plan.products.scale) * plan.ball.unit**2
    return max(math.sqrt(plan.ball.features) * deviation / 2, _LEAST_RIDGE * plan.ball.radius**2)


def minimiser(sums: PrivateSums, ridge: float) -> Tensor:
    """The weights (classes, features) that minimise the objective of ``sums`` plus ridge |w|^2 / 2 for each class.

    Noise can make the quadratic part curve downwards in some directions, where no minimum exists: its negative eigenvalues
    count as zero. With ridge above 0 there is exactly one minimum then.
    """
    polynomial = sums.polynomial()
    values, vectors = torch.linalg.eigh(2 * polynomial.quadratic)
    curvature = values.clamp(min=0.0) + ridge
    weights: Tensor = -(polynomial.linear @ vectors / curvature) @ vectors.T
    return weights
