"""Noise calibration of single mechanisms, with the exact privacy profile beside each (docs/mechanisms.md)."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtr

from twinproof import checks
from twinproof.errors import ConfigError
from twinproof.guarantee import UPWARDS
from twinproof.privacy.accounting import check_delta
from twinproof.privacy.redistribution import Redistribution


class Mechanism(ABC):
    """Noise of a known law on a query whose ``sensitivity`` is the farthest that neighbours move it, in the noise's norm.

    ``sigma`` is the noise's standard deviation before redistribution, ``theorem`` says why the noise is private.

    Guarantees
        ``delta_at`` and ``epsilon_at`` never under-state: the mechanism is (epsilon, ``delta_at(epsilon)``)-private and
        (``epsilon_at(delta)``, delta)-private, and by at most rounding nothing smaller is true for the worst query of that
        sensitivity. ``delta_at(epsilon_at(delta)) <= delta``.
    """

    theorem: str
    sensitivity: float

    @abstractmethod
    def delta_at(self, epsilon: float) -> float:
        """The smallest delta at that epsilon (0 or above), rounded up."""

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon at that delta, rounded up."""
        self._check_delta(delta)
        if self.delta_at(0.0) <= delta:
            return 0.0
        return least_float(lambda epsilon: self.delta_at(epsilon) <= delta, 1.0, "epsilon")

    @staticmethod
    def _check_delta(delta: float) -> None:
        check_delta(delta)


def least_float(holds: Callable[[float], bool], start: float, name: str) -> float:
    """The least float at which ``holds`` is true, for a condition that stays true from some value on; ``name`` is for errors.

    ``holds(result)`` was evaluated and true, whatever ``holds`` is: rounding in it can cost tightness, never truth. For a
    monotone condition the float below the result fails, unless the result is the smallest normal float.
    """
    low = high = start
    while not holds(high):
        low, high = high, high * 2
        if math.isinf(high):
            raise ConfigError(
                "no finite value keeps this promise", where=name, got="infinity", wanted="a target that floats can express"
            )
    while holds(low):
        low, high = low / 2, low
        if low < sys.float_info.min:
            return high
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _rounded_up(sigma: float) -> float:
    """A formula's value, not below it despite rounding; refuses what floats cannot hold with full precision."""
    result = sigma * UPWARDS
    if not sys.float_info.min <= result < math.inf:
        raise ConfigError(
            "the noise lies outside the range of floats",
            where="sigma",
            got=result,
            wanted="a normal float64",
            fix="measure the query in another unit, so that its sensitivity is near 1",
        )
    return result


def check_target(epsilon: float, delta: float, sensitivity: float) -> None:
    """Refuses a target that a Gaussian mechanism cannot be calibrated for: every noise has some delta above 0."""
    check_delta(delta)
    checks.positive(epsilon=epsilon, sensitivity=sensitivity)


# Relative error allowed to exp, erfcx and ndtr together; ten times what tests find against arithmetic of 50 digits.
_FUNCTIONS = 1e-14
# Unit roundoff of float64; half and shift take three roundings each, and their sum and difference one more.
_ROUNDOFF = 2.0**-53


def gaussian_delta(epsilon: float, sigma: float, sensitivity: float = 1.0) -> float:
    """The smallest delta at which N(0, sigma^2) noise on a query of that l2 sensitivity is (epsilon, delta)-private.

    Guarantees
        Never below the exact profile Phi(h - s) - e^epsilon Phi(-h - s), h = sensitivity / (2 sigma), s = epsilon sigma /
        sensitivity, and above it by little: 1e-7 of it for epsilon >= 1e-4 and delta >= 1e-14. The result lies in (0, 1].
        Proof: the densities satisfy e^epsilon phi(h + s) = phi(s - h), so that with Mills' ratio M the profile is G(n, f) =
        phi(n) (M(n) - M(f)) at n = s - h, f = s + h. Neither term overflows. G falls in n (its slope is phi(n) (n M(f) - 1),
        and n M(f) <= f M(f) < 1) and grows in f (M falls), so that n rounded down and f rounded up bound it from above; what
        the functions themselves err is added. Assumed: exp, erfcx and ndtr err by less than 1e-14 of their value.
        Tests: 50-digit arithmetic, numerical integration.
    """
    half, shift = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    if not math.isfinite(half + shift):
        return 1.0
    slack = 8 * _ROUNDOFF * (half + shift) + sys.float_info.min  # the last term for what underflows
    near, far = shift - half - slack, shift + half + slack
    exponent = min(near * near / 2, 800.0)  # beyond it the density is 0 in floats
    weight, error = math.exp(-exponent) / 2, _FUNCTIONS + 4 * _ROUNDOFF * exponent
    lost = weight * float(erfcx(far / math.sqrt(2)))
    kept = weight * float(erfcx(near / math.sqrt(2))) if near >= 0 else float(ndtr(-near))
    return min(1.0, max(sys.float_info.min, kept - lost + error * (kept + lost)))


@dataclass(frozen=True)
class GaussianNoise(Mechanism):
    """N(0, sigma^2) on every coordinate of a query whose l2 sensitivity is ``sensitivity``; the profile does not ask why.

    With ``redistribution`` r the noise of K outputs is N(0, sigma^2 K r), and ``sensitivity`` is the whitened one,
    max ||(A(D) - A(D')) / sqrt(K r)||_2.

    Guarantees
        Those of ``Mechanism``, for every sigma and r: the profile is necessary and sufficient (Balle and Wang 2018, Theorem
        8). Proof for r: S = diag(sqrt(K r)) does not depend on the data and is invertible (every share is above 0), so that
        A + S sigma xi and S^-1 A + sigma xi are post-processings of each other and have one profile; the latter is Gaussian
        noise of one deviation on a query of that l2 sensitivity. So every calibration can redistribute, the analytic one
        too, which therefore needs less noise than Theorem 3 for the same r. Tests: the hockey-stick divergence of the
        heterogeneous densities themselves, by integration; r not normalised, sqrt forgotten, caught.
    """

    sigma: float
    sensitivity: float = 1.0
    redistribution: Redistribution | None = None
    theorem: str = "exact profile of Gaussian noise (Balle and Wang 2018, Theorem 8)"

    def __post_init__(self) -> None:
        checks.positive(sigma=self.sigma, sensitivity=self.sensitivity)

    def deviations(self) -> NDArray[np.float64]:
        """Standard deviation of each output's noise, sigma sqrt(K r), rounded up: more noise is a post-processing of less."""
        scales = np.ones(1) if self.redistribution is None else self.redistribution.scales()
        return self.sigma * scales * UPWARDS

    def delta_at(self, epsilon: float) -> float:
        """See :class:`Mechanism`; above 0 for every Gaussian noise."""
        checks.not_negative(epsilon=epsilon)
        return gaussian_delta(epsilon, self.sigma, self.sensitivity)


LARGEST_EPSILON = 1.0
"""The largest epsilon for which the classic formula is proven."""


def classic_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """sensitivity * sqrt(2 ln(1.25 / delta)) / epsilon, rounded up; refuses epsilon above 1.

    Guarantees
        (epsilon, delta)-private for 0 < epsilon <= 1 and 0 < delta < 1. Proof: with c = sigma epsilon / sensitivity the exact
        delta is at most Phi(-y), y = c - epsilon / (2 c). If y >= 0, then Phi(-y) <= exp(-y^2 / 2) / 2 <= exp(epsilon / 2)
        exp(-c^2 / 2) / 2 <= 0.83 exp(-c^2 / 2) < delta, as y^2 >= c^2 - epsilon. If y < 0, then c^2 < 1/2 and delta > 0.97,
        while delta < 1 keeps c > 0.66 and so Phi(-y) < 0.54. Tests: exact profile on 2,000 random targets, the reference table.
    """
    check_target(epsilon, delta, sensitivity)
    if epsilon > LARGEST_EPSILON:
        raise ConfigError(
            "the classic Gaussian mechanism is proven for epsilon up to 1 only",
            where="epsilon",
            got=epsilon,
            wanted="0 < epsilon <= 1",
            fix="use the analytic Gaussian mechanism: any epsilon, and less noise",
        )
    return _rounded_up(sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon)


def extended_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The sigma of Theorem 2, rounded up; of the proof's Condition 1 where the theorem's formula has no value.

    With s = ln(sqrt(2/pi) / delta) it is sensitivity (sqrt(s) + sqrt(s + epsilon)) / (sqrt(2) epsilon). One print of the
    theorem has sqrt(2)/pi instead of sqrt(2/pi); the proof derives the latter, and the former is not private
    (``paper_formulas``). For delta > sqrt(2/pi) = 0.798 s is negative, and Condition 1 gives sensitivity (1 + sqrt(1 + 2
    epsilon)) / (2 epsilon).

    Guarantees
        (epsilon, delta)-private for all epsilon > 0 and 0 < delta < 1. Proof: both formulas solve epsilon sigma - 1 / (2
        sigma) = t (sensitivity 1), with t = sqrt(2 s) or t = 1, so that the exact delta is at most Phi(-t). In the first case
        Phi(-t) <= exp(-s) / 2 = sqrt(pi/8) delta < delta; in the second Phi(-1) = 0.16 < 0.798 < delta. Condition 1 is not
        needed elsewhere, though the paper's proof asks for it from delta = 0.48 on. Tests: exact profile on 2,000 random
        targets and at large delta, the reference table, the misprint caught.
    """
    check_target(epsilon, delta, sensitivity)
    s = math.log(math.sqrt(2 / math.pi) / delta)
    if s < 0:
        return _rounded_up(sensitivity * (1 + math.sqrt(1 + 2 * epsilon)) / (2 * epsilon))
    return _rounded_up(sensitivity * (math.sqrt(s) + math.sqrt(s + epsilon)) / math.sqrt(2) / epsilon)


def analytic_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest standard deviation that is (epsilon, delta)-private at this l2 sensitivity.

    Guarantees
        ``gaussian_delta(epsilon, result, sensitivity) <= delta``, and ``gaussian_delta`` is never below the exact profile. The
        profile is necessary and sufficient, so nothing smaller than the result is private, up to what ``gaussian_delta`` rounds
        up: 1e-8 of the result for epsilon >= 1e-4 and delta >= 1e-14. Tests: the reference table, exact arithmetic, a sigma
        smaller by 0.1 % fails.
    """
    start = extended_gaussian_sigma(epsilon, delta, sensitivity)
    return least_float(lambda sigma: gaussian_delta(epsilon, sigma, sensitivity) <= delta, start, "sigma")


def laplace_delta(epsilon: float, scale: float, sensitivity: float = 1.0) -> float:
    """The smallest delta at which Laplace noise of that scale on a query of that l1 sensitivity is (epsilon, delta)-private.

    Guarantees
        1 - exp((epsilon - sensitivity / scale) / 2), and 0 from epsilon = sensitivity / scale on; never below that, and 0 only
        where it is exactly 0. Proof for one output: the privacy loss is monotone, exceeds epsilon from the middle of the two
        centres plus epsilon scale / 2 on, and the two tails give the formula. Several outputs are no worse: moving them one
        after the other by v_1, ..., v_d costs at most the composed trade-off functions F(F^-1(1 - a) - v_k) of the log-concave
        density (Dong, Roth and Su 2022, group privacy), which compose to the one of a single output moved by |v_1| + ... +
        |v_d|. The exponent is found in exact arithmetic. Tests: numerical integration in one and two dimensions.
    """
    gap = Fraction(sensitivity) / Fraction(scale) - Fraction(epsilon)
    if gap <= 0:
        return 0.0
    exponent = math.nextafter(float(min(gap, Fraction(2000))), math.inf)
    return min(1.0, -math.expm1(-exponent / 2) * UPWARDS)


def laplace_scale(epsilon: float, delta: float = 0.0, sensitivity: float = 1.0) -> float:
    """The smallest scale that is (epsilon, delta)-private at this l1 sensitivity: sensitivity / (epsilon - 2 ln(1 - delta)).

    Guarantees
        ``laplace_delta(epsilon, result, sensitivity) <= delta``; at delta 0 that is pure epsilon-privacy, and the result is the
        least float that is not below sensitivity / epsilon.
    """
    _check_laplace_delta(delta)
    checks.positive(epsilon=epsilon, sensitivity=sensitivity)
    start = _rounded_up(sensitivity / (epsilon - 2 * math.log1p(-delta)))
    return least_float(lambda scale: laplace_delta(epsilon, scale, sensitivity) <= delta, start, "scale")


@dataclass(frozen=True)
class Laplace(Mechanism):
    """Laplace noise of that ``scale`` on every output of a query whose l1 sensitivity is ``sensitivity``.

    Guarantees
        Those of ``Mechanism``; delta may be 0.
    """

    scale: float
    sensitivity: float = 1.0
    theorem: str = "exact profile of Laplace noise (Dwork et al. 2006 at delta 0)"

    def __post_init__(self) -> None:
        checks.positive(scale=self.scale, sensitivity=self.sensitivity)

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, rounded up."""
        return self.scale * math.sqrt(2) * UPWARDS

    def delta_at(self, epsilon: float) -> float:
        checks.not_negative(epsilon=epsilon)
        return laplace_delta(epsilon, self.scale, self.sensitivity)

    @staticmethod
    def _check_delta(delta: float) -> None:
        _check_laplace_delta(delta)


def _check_laplace_delta(delta: float) -> None:
    """Laplace noise, unlike Gaussian noise, keeps a promise with delta 0."""
    if not 0 <= delta < 1:
        raise ConfigError(
            "delta cannot be used", where="delta", got=delta, wanted="0 <= delta < 1", fix="use 0 or for example 1e-5"
        )


@dataclass(frozen=True)
class Calibration:
    """A formula for sigma from (epsilon, delta, sensitivity), and the theorem behind it."""

    sigma: Callable[[float, float, float], float]
    theorem: str


LAPLACE = "laplace"
PLAIN = {
    "classic": Calibration(classic_gaussian_sigma, "Dwork and Roth 2014, Theorem A.1 (epsilon <= 1)"),
    "extended": Calibration(extended_gaussian_sigma, "Phan et al. 2019, Theorem 2 (Condition 1 for delta > 0.798)"),
    "analytic": Calibration(analytic_gaussian_sigma, "Balle and Wang 2018, Theorem 8 (necessary and sufficient)"),
}
"""Calibrations of equal noise on all outputs."""
HETEROGENEOUS = {
    "heterogeneous": Calibration(extended_gaussian_sigma, "Phan et al. 2019, Theorem 3 (Condition 1 for delta > 0.798)"),
    "heterogeneous-analytic": Calibration(
        analytic_gaussian_sigma, "whitening by sqrt(K r); Balle and Wang 2018, Theorem 8 (necessary and sufficient)"
    ),
}
"""Calibrations of redistributed noise; their sensitivity is the whitened one."""
NAMES = (*PLAIN, *HETEROGENEOUS, LAPLACE)


def calibrate(
    name: str, epsilon: float, delta: float, sensitivity: float = 1.0, redistribution: Redistribution | None = None
) -> GaussianNoise | Laplace:
    """The mechanism of that name for a target; a heterogeneous one without ``redistribution`` has a single output.

    ``result.delta_at(epsilon) <= delta``.
    """
    checks.one_of(NAMES, mechanism=name)
    if name in HETEROGENEOUS:
        redistribution = redistribution or Redistribution.uniform(1)
    elif redistribution is not None:
        wanted = " or ".join(HETEROGENEOUS)
        raise ConfigError("this mechanism has no redistribution vector", where="r", got=name, wanted=wanted, fix="leave r out")
    if name == LAPLACE:
        return Laplace(laplace_scale(epsilon, delta, sensitivity), sensitivity)
    calibration = {**PLAIN, **HETEROGENEOUS}[name]
    return GaussianNoise(calibration.sigma(epsilon, delta, sensitivity), sensitivity, redistribution, calibration.theorem)
