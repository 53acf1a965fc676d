"""The second-order classification objective, released once: class sums and products of features with Laplace noise.

The polynomial of ``output_polynomial`` is a linear function of two tables: the sum of features by class and the sum of
features features'. They move less than the polynomial's own coefficients, since a record enters one class and the quadratic
part is the same for all, and they tell all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.errors import ConfigError, DataError
from twinproof.privacy.accounting import LaplaceEvent
from twinproof.privacy.functional.feature_ball import LEVEL_BITS, FeatureBall
from twinproof.privacy.functional.grid_laplace import GridLaplace
from twinproof.privacy.functional.polynomials import OutputPolynomial, check_labels, one_hot
from twinproof.privacy.functional.sensitivity import class_sums_sensitivity, products_sensitivity
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.mechanisms.laplace import laplace_scale
from twinproof.privacy.mechanisms.targets import check_positive
from twinproof.randomness import Key

MOST_RECORDS = 2 ** (53 - 2 * LEVEL_BITS)
CLASS_SUMS, PRODUCTS = "functional mechanism: class sums", "functional mechanism: products"
_AT_ONCE = 2**13


@dataclass(frozen=True)
class FunctionalPlan:
    """How the coefficients become private: every field changes the guarantee, nothing else does.

    ``label_share`` of ``epsilon`` pays for the class sums, which hold the labels, the rest for the products.

    Guarantees
        The two mechanisms of ``events`` together are (``epsilon``, 0)-private: 1 / multiplier of both adds up to at most
        epsilon, in exact arithmetic.
    """

    ball: FeatureBall
    classes: int
    epsilon: float
    label_share: float = 0.5

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        if not 0 < self.label_share < 1:
            wanted = "a number between 0 and 1"
            raise ConfigError("the label_share cannot be used", where="label_share", got=self.label_share, wanted=wanted)
        if self.classes < 2:
            raise ConfigError("there are too few classes", where="classes", got=self.classes, wanted="at least 2")
        if not self._left > 0:
            wanted = "a share that leaves something for the products"
            raise ConfigError("the label_share cannot be used", where="label_share", got=self.label_share, wanted=wanted)
        # Refuses a plan whose noise does not fit the grid before anything is spent.
        _ = (self.products, self.class_sums)

    @property
    def _left(self) -> float:
        exact = Fraction(self.epsilon) - 1 / Fraction(self.class_sums.noise_multiplier)
        nearest = float(exact)
        return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, 0.0)

    @property
    def class_sums(self) -> GridLaplace:
        """The mechanism for the sums of features by class: a record moves those of its own class."""
        multiplier = laplace_scale(self.epsilon * self.label_share)
        return GridLaplace(class_sums_sensitivity(self.ball), self.ball.features, multiplier)

    @property
    def products(self) -> GridLaplace:
        """The mechanism for the sums of products of two features."""
        count = self.ball.features * (self.ball.features + 1) // 2
        return GridLaplace(products_sensitivity(self.ball), count, laplace_scale(self._left))

    @property
    def events(self) -> tuple[LaplaceEvent, LaplaceEvent]:
        """What the accountants count."""
        return self.class_sums.event, self.products.event


@dataclass(frozen=True, eq=False)
class PrivateSums:
    """Noisy sums of features by class (classes, features) and of features features' (symmetric), in units of the features."""

    by_class: Tensor
    products: Tensor

    def polynomial(self) -> OutputPolynomial:
        """The noisy objective, up to its constant: a linear function of the sums."""
        linear = self.by_class.sum(0) / 2 - self.by_class
        return OutputPolynomial(torch.zeros((), dtype=torch.float64), linear, self.products / 8)


def release_sums(features: Tensor, labels: Tensor, plan: FunctionalPlan, *, key: Key, ledger: Ledger) -> PrivateSums:
    """The tables of ``features`` (records, features) and ``labels`` (records,), with noise, counted in ``ledger``.

    Guarantees
        - (``plan.epsilon``, 0)-private for one record more or less, whatever the records hold: sums are whole numbers whose
          movement is counted exactly, each entry has noise of its own, and the noise is exact.
        - Both events are on the disk before a record is read. Each release has its own lines in the ledger, whose numbers name
          its noise: two releases of one ledger never share any.
        - The number of records leaves no trace but in the sums. A record that is not finite counts as one of zeros.
    """
    if labels.shape != (len(features),):
        got = f"{len(features)} records, labels of shape {tuple(labels.shape)}"
        raise DataError("labels do not fit the records", where="labels", got=got, wanted="one label for each record")
    refuse_too_many(len(features))
    for_sums, for_products = plan.class_sums.announce(ledger, CLASS_SUMS), plan.products.announce(ledger, PRODUCTS)
    check_labels(labels, len(features), plan.classes)
    sums, products = np.zeros((plan.classes, plan.ball.features)), np.zeros((plan.ball.features, plan.ball.features))
    for part, belonging in _portions(features, labels, plan):
        sums += (belonging.T @ part).cpu().numpy()
        products += (part.T @ part).cpu().numpy()
    upper = np.triu_indices(plan.ball.features)
    noisy_sums = for_sums.release(sums.astype(np.int64), key)
    noisy_products = for_products.release(products[upper].astype(np.int64), key)
    unit = plan.ball.unit
    return PrivateSums(torch.from_numpy(noisy_sums * unit), torch.from_numpy(_symmetric(noisy_products, upper) * unit**2))


def refuse_too_many(records: int) -> None:
    """Sums of more records than this would not be exact in float64."""
    if records > MOST_RECORDS:
        raise DataError("there are too many records for exact sums", where="features", got=records, wanted=f"{MOST_RECORDS}")


def _portions(features: Tensor, labels: Tensor, plan: FunctionalPlan) -> Iterator[tuple[Tensor, Tensor]]:
    """Levels and memberships of some records at a time: whole numbers, whose sums are exact in any order."""
    for part, own in zip(torch.split(features, _AT_ONCE), torch.split(labels, _AT_ONCE), strict=True):
        yield plan.ball.levels(part), one_hot(own, plan.classes)


def _symmetric(values: NDArray[np.int64], upper: tuple[NDArray[np.intp], ...]) -> NDArray[np.float64]:
    features = int(upper[0][-1]) + 1
    full = np.zeros((features, features))
    full[upper] = values
    return np.triu(full) + np.triu(full, 1).T
