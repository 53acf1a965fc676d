"""The functional mechanism: Laplace noise on the coefficients of a polynomial objective, once (docs/mechanisms.md).

The objectives are Taylor polynomials around 0 of the cross-entropy of a sigmoid, softplus(z) - y z, with softplus(z) = ln 2 +
z/2 + z^2/8 - z^4/192 + ... . How far they are from it: ``training.taylor_loss``.

Their coefficients are products of features. Features are stored as whole numbers, so that sums are exact in any order and the
contribution of a record is known without rounding.

One release of noisy coefficients is one Laplace mechanism on one vector. Its sensitivity is the sum over every coefficient of
every class and every feature map that a record touches, because all of them leave together.

The polynomial of ``output_polynomial`` is a linear function of two tables: the sum of features by class and the sum of
features features'. They move less than the polynomial's own coefficients, since a record enters one class and the quadratic
part is the same for all, and they tell all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof import checks
from twinproof.errors import ConfigError, DataError
from twinproof.guarantee import UPWARDS
from twinproof.keys import Key
from twinproof.privacy.accounting import LaplaceEvent
from twinproof.privacy.discrete_laplace import LARGEST_SUM, GridLaplace, discrete_laplace_deviation
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.linear_maps import Norm
from twinproof.privacy.mechanisms import laplace_scale

LEVEL_BITS = 15
LEVELS = 1 << LEVEL_BITS
"""A feature at the bound is stored as this number. Products have 30 bits: sums over 2^23 records are exact in float64."""

_MOST_FEATURES = 2**20


@dataclass(frozen=True)
class FeatureBall:
    """Feature vectors of ``features`` numbers whose length in ``norm`` is at most ``radius``: declared, never measured.

    Guarantees
        ``levels`` gives every record as whole numbers v with |v| <= 2^15 in ``norm``, exactly, whatever the record holds; one
        with a NaN or an infinity becomes zero. Proof: in linf the numbers are cut off. Otherwise they are scaled by
        (1 - room) 2^15 / length where that is below 1; length is off by less than half of ``room`` (a sum of d squares or
        magnitudes, a root, a quotient and a product), and dropping the fraction makes no number longer. A record's numbers
        depend on that record alone. Test: exact integers, random and extreme records; rounding to the nearest level and a box
        in place of the ball as planted bugs.
    """

    norm: Norm
    radius: float
    features: int

    def __post_init__(self) -> None:
        checks.one_of(tuple(Norm), norm=self.norm)
        checks.positive(radius=self.radius)
        checks.whole(1, _MOST_FEATURES, features=self.features)

    @property
    def unit(self) -> float:
        """What one level is worth."""
        return self.radius / LEVELS

    @property
    def largest_sum(self) -> int:
        """The largest sum of magnitudes of a record's levels: its l1 norm."""
        if self.norm is Norm.L2:
            return math.isqrt(self.features * LEVELS**2)
        return LEVELS if self.norm is Norm.L1 else self.features * LEVELS

    @property
    def largest_square(self) -> int:
        """The largest sum of squares of a record's levels."""
        return LEVELS * LEVELS * (self.features if self.norm is Norm.LINF else 1)

    def levels(self, features: Tensor) -> Tensor:
        """(records, features) of any floats -> whole numbers in float64 inside the ball."""
        if features.ndim != 2 or features.shape[1] != self.features:
            raise ConfigError(
                "the features have another shape than their bound",
                where="features",
                got=tuple(features.shape),
                wanted=f"(records, {self.features})",
            )
        values = features.detach().to(torch.float64) / self.radius * LEVELS
        values = torch.where(values.isfinite().all(1, keepdim=True), values, 0.0)
        if self.norm is Norm.LINF:
            return values.clamp(-LEVELS, LEVELS).trunc()
        room = (self.features + 8) * 2.0**-52
        lengths = torch.linalg.vector_norm(values, ord=1 if self.norm is Norm.L1 else 2, dim=1, keepdim=True)
        scaled: Tensor = values * (LEVELS * (1 - room) / lengths).clamp(max=1.0)
        return scaled.trunc()

    def clip(self, features: Tensor) -> Tensor:
        """The features that the mechanism counts: inside the ball, on multiples of ``unit``, float64."""
        return self.levels(features) * self.unit


@dataclass(frozen=True, eq=False)
class OutputPolynomial:
    """sum_k constant_k + linear_k w_k + w_k' quadratic w_k, for the weights w_k of each class; all of float64.

    ``constant`` is the sum over classes, ``linear`` (classes, features), ``quadratic`` (features, features), symmetric and the
    same for every class: it does not depend on labels.
    """

    constant: Tensor
    linear: Tensor
    quadratic: Tensor

    def value(self, weights: Tensor) -> Tensor:
        return self.constant + (self.linear * weights).sum() + ((weights @ self.quadratic) * weights).sum()

    def monomials(self) -> Tensor:
        """The coefficient of every monomial w_ka and w_ka w_kb, a <= b, of every class, as one vector; without the constant."""
        classes, features = self.linear.shape
        rows, columns = torch.triu_indices(features, features)
        doubled = torch.where(rows == columns, 1.0, 2.0).to(self.quadratic.dtype)
        return torch.cat((self.linear.flatten(), (self.quadratic[rows, columns] * doubled).repeat(classes)))


@dataclass(frozen=True, eq=False)
class ReconstructionPolynomial:
    """constant + sum_jb linear_jb theta_jb, for the weights theta (inputs, hidden) of a tied auto-encoder; float64.

    Hidden units count as given numbers, as in the paper. They are functions of theta as well: the coefficients hold for the
    theta at which they were computed, and reading records again at the next one is another release.
    """

    constant: Tensor
    linear: Tensor

    def value(self, weights: Tensor) -> Tensor:
        return self.constant + (self.linear * weights).sum()


def output_polynomial(features: Tensor, labels: Tensor, classes: int) -> OutputPolynomial:
    """Second-order cross-entropy of every class: the sum over records (records, features) with labels (records,).

    One record adds, for each class k with y_k = 1 for its label and 0 otherwise, ln 2 + (1/2 - y_k) z_k + z_k^2 / 8 with
    z_k = w_k' features: the coefficients (1/2 - y_k) features and features features' / 8.
    """
    check_labels(labels, len(features), classes)
    values = features.to(torch.float64)
    signs = 0.5 - one_hot(labels, classes)
    constant = torch.tensor(len(values) * classes * math.log(2), dtype=torch.float64)
    return OutputPolynomial(constant, signs.T @ values, values.T @ values / 8)


def reconstruction_polynomial(inputs: Tensor, hidden: Tensor) -> ReconstructionPolynomial:
    """First-order reconstruction objective: the sum over records of inputs (records, d) and hidden units (records, beta).

    One record adds, for each input j, ln 2 + (1/2 - x_j) theta_j' h: the coefficients (1/2 - x_j) h_b.
    """
    if inputs.ndim != 2 or hidden.ndim != 2 or len(inputs) != len(hidden):
        got = f"{tuple(inputs.shape)} and {tuple(hidden.shape)}"
        wanted = "(records, inputs) and (records, hidden)"
        raise ConfigError("inputs and hidden units do not fit together", where="hidden", got=got, wanted=wanted)
    shifted = 0.5 - inputs.to(torch.float64)
    constant = torch.tensor(inputs.numel() * math.log(2), dtype=torch.float64)
    return ReconstructionPolynomial(constant, shifted.T @ hidden.to(torch.float64))


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """(records, classes) of float64: 1 at each record's label."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).to(torch.float64)


def check_labels(labels: Tensor, records: int, classes: int) -> None:
    if labels.shape != (records,) or labels.dtype.is_floating_point:
        got = f"{labels.dtype} {tuple(labels.shape)}"
        raise DataError("labels do not fit the records", where="labels", got=got, wanted=f"{records} whole numbers")
    if records and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        got = f"{int(labels.min())} to {int(labels.max())}"
        raise DataError("a label belongs to no class", where="labels", got=got, wanted=f"0 to {classes - 1}")


def products_sensitivity(ball: FeatureBall) -> int:
    """Of the sums of h_a h_b, a <= b, in squared levels.

    sum_{a <= b} |h_a h_b| = (|h|_1^2 + |h|_2^2) / 2 for every h, and both terms are largest together: at a corner of the ball
    for l1, at equal magnitudes for l2 and linf. Nothing smaller is true, up to less than one level.
    """
    return (ball.largest_sum**2 + ball.largest_square) // 2


def polynomial_sensitivity(ball: FeatureBall, classes: int) -> float:
    """Of all monomials of ``output_polynomial`` but the constant, for all classes, rounded up: K (A/2 + A^2/8).

    One record's coefficients have exactly this l1 norm where |features|_1 is largest, A: |1/2 - y_k| = 1/2 for every class, and
    the monomials w_a w_b with a <= b of (w' h)^2 / 8 add up to |h|_1^2 / 8. Class sums and products (above) tell the same
    polynomial and move far less: ``release_sums`` releases them.
    """
    longest = ball.largest_sum * ball.unit
    return classes * (longest / 2 + longest**2 / 8) * UPWARDS


def reconstruction_sensitivity(inputs: int, hidden: FeatureBall, low: float = 0.0, high: float = 1.0) -> float:
    """Of all coefficients of ``reconstruction_polynomial``, rounded up: d max|1/2 - x| A, A the largest l1 norm of h.

    With a convolution, ``inputs`` is the size of a patch and ``hidden`` holds the units of every position of every map: each
    unit meets its own patch, and one record moves all of them. sum_jb |(1/2 - x_j) h_b| = |1/2 - x|_1 |h|_1 for every record.
    """
    if inputs < 1 or not (low < high and math.isfinite(high - low)):
        got = f"{inputs} inputs in [{low}, {high}]"
        raise ConfigError("the inputs have no usable bounds", where="inputs", got=got, wanted="at least one, low below high")
    return inputs * max(abs(0.5 - low), abs(0.5 - high)) * hidden.largest_sum * hidden.unit * UPWARDS


MOST_RECORDS = 2 ** (53 - 2 * LEVEL_BITS)
"""Sums of more records than this would not be exact in float64."""
CLASS_SUMS, PRODUCTS = "functional mechanism: class sums", "functional mechanism: products"
_AT_ONCE = 2**13


@dataclass(frozen=True)
class FunctionalPlan:
    """How the coefficients become private: every field changes the guarantee, nothing else does.

    ``label_share`` of ``epsilon`` pays for the class sums, which hold the labels, the rest for the products: 1 / multiplier of
    both adds up to at most epsilon, in exact arithmetic.
    """

    ball: FeatureBall
    classes: int
    epsilon: float
    label_share: float = 0.5

    def __post_init__(self) -> None:
        checks.positive(epsilon=self.epsilon)
        checks.inside(0, 1, label_share=self.label_share)
        checks.whole(2, classes=self.classes)
        checks.positive(epsilon_of_the_products=self._left, fix="choose a smaller label_share")
        # Refuses a plan whose noise does not fit the grid before anything is spent.
        _ = (self.products, self.class_sums)

    @property
    def _left(self) -> float:
        exact = Fraction(self.epsilon) - 1 / Fraction(self.class_sums.noise_multiplier)
        nearest = float(exact)
        return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, 0.0)

    @property
    def class_sums(self) -> GridLaplace:
        """The mechanism for the sums of features by class: a record moves those of its own class, by its own l1 norm."""
        multiplier = laplace_scale(self.epsilon * self.label_share)
        return GridLaplace(self.ball.largest_sum, self.ball.features, multiplier)

    @property
    def products(self) -> GridLaplace:
        """The mechanism for the sums of products of two features."""
        count = self.ball.features * (self.ball.features + 1) // 2
        return GridLaplace(products_sensitivity(self.ball), count, laplace_scale(self._left))

    @property
    def events(self) -> tuple[LaplaceEvent, LaplaceEvent]:
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
    if len(features) > MOST_RECORDS:
        raise DataError(
            "there are too many records for exact sums", where="features", got=len(features), wanted=f"at most {MOST_RECORDS}"
        )
    for_sums, for_products = plan.class_sums.announce(ledger, CLASS_SUMS), plan.products.announce(ledger, PRODUCTS)
    check_labels(labels, len(features), plan.classes)
    sums, products = np.zeros((plan.classes, plan.ball.features)), np.zeros((plan.ball.features, plan.ball.features))
    for records, own in zip(torch.split(features, _AT_ONCE), torch.split(labels, _AT_ONCE), strict=True):
        part = plan.ball.levels(records)  # whole numbers, whose sums are exact in any order
        sums += (one_hot(own, plan.classes).T @ part).cpu().numpy()
        products += (part.T @ part).cpu().numpy()
    upper = np.triu_indices(plan.ball.features)
    noisy_sums = for_sums.release(sums.astype(np.int64), key)
    noisy_products = for_products.release(products[upper].astype(np.int64), key)
    unit = plan.ball.unit
    return PrivateSums(torch.from_numpy(noisy_sums * unit), torch.from_numpy(_symmetric(noisy_products, upper) * unit**2))


def _symmetric(values: NDArray[np.int64], upper: tuple[NDArray[np.intp], ...]) -> NDArray[np.float64]:
    features = int(upper[0][-1]) + 1
    full = np.zeros((features, features))
    full[upper] = values
    return np.triu(full) + np.triu(full, 1).T


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
    constant feature. ``key``: fresh from the system unless given; with it the noise can be subtracted.

    Guarantees
        The weights are (``epsilon``, 0)-differentially private for one record more or less. Proof: ``release_sums`` is, and the
        rest is a function of its answer and of public numbers. It is in ``ledger`` before a record is read. Tests: sensitivity
        over random and optimised records, the noise's exact law, all noise independent; noise shared by classes, a forgotten
        class or map and a sensitivity in place of a scale are seen.
    """
    plan = FunctionalPlan(ball, classes, epsilon, label_share)
    strength = default_ridge(plan) if ridge is None else ridge
    checks.positive(ridge=strength)
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


RECONSTRUCTION = "functional mechanism: reconstruction"
_LARGEST_INPUT = 16.0


@dataclass(frozen=True)
class ReconstructionPlan:
    """How the coefficients (1/2 - x_j) h_b become private: inputs cut to [low, high], hidden units to their ball."""

    inputs: int
    hidden: FeatureBall
    epsilon: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        checks.positive(epsilon=self.epsilon)
        if self.inputs < 1 or not -_LARGEST_INPUT <= self.low < self.high <= _LARGEST_INPUT:
            got = f"{self.inputs} inputs in [{self.low}, {self.high}]"
            wanted = f"at least one, low below high, within +-{_LARGEST_INPUT:g}"
            raise ConfigError("the inputs have no usable bounds", where="inputs", got=got, wanted=wanted)
        _ = self.coefficients  # noise that does not fit the grid is refused before anything is spent

    @property
    def levels(self) -> tuple[int, int]:
        """The bounds of the inputs in levels, 2^15 to one unit."""
        return math.ceil(self.low * LEVELS), math.floor(self.high * LEVELS)

    @property
    def farthest(self) -> int:
        """The largest |1/2 - x| in levels."""
        return max(abs(LEVELS // 2 - level) for level in self.levels)

    @property
    def coefficients(self) -> GridLaplace:
        sensitivity = self.inputs * self.farthest * self.hidden.largest_sum
        return GridLaplace(sensitivity, self.inputs * self.hidden.features, laplace_scale(self.epsilon))

    @property
    def event(self) -> LaplaceEvent:
        return self.coefficients.event


def release_reconstruction(
    inputs: Tensor, hidden: Tensor, plan: ReconstructionPlan, *, key: Key, ledger: Ledger
) -> ReconstructionPolynomial:
    """The noisy objective, up to its constant, for inputs (records, d) and hidden units (records, beta).

    Hidden units must be a function of the record itself and of public or already private parameters. The objective is linear
    in theta and has no minimum: add a public penalty to minimise it.

    Guarantees
        (``plan.epsilon``, 0)-private for one record more or less, whatever the records hold, for this one release: another
        theta makes other hidden units, and their coefficients are another release. In the ledger before a record is read.
    """
    if inputs.ndim != 2 or hidden.ndim != 2 or inputs.shape != (len(hidden), plan.inputs):
        got = f"{tuple(inputs.shape)} and {tuple(hidden.shape)}"
        wanted = f"(records, {plan.inputs}) and (records, {plan.hidden.features})"
        raise DataError("inputs and hidden units do not fit the plan", where="inputs", got=got, wanted=wanted)
    most = LARGEST_SUM // (plan.farthest * LEVELS)
    if len(inputs) > most:
        raise DataError("there are too many records for exact sums", where="inputs", got=len(inputs), wanted=f"at most {most}")
    announced = plan.coefficients.announce(ledger, RECONSTRUCTION)
    values = torch.nan_to_num(inputs.detach().to(torch.float64) * LEVELS, nan=0.0).clamp(*plan.levels).trunc()
    shifted = LEVELS // 2 - values
    sums = (shifted.T @ plan.hidden.levels(hidden)).cpu().numpy().astype(np.int64)
    linear = announced.release(sums, key) * (plan.hidden.unit / LEVELS)
    return ReconstructionPolynomial(torch.zeros((), dtype=torch.float64), torch.from_numpy(linear))
