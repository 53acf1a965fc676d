"""What the Taylor objectives of StoBatch cost (Phan et al. 2020, Appendix O): the paper's numbers, and the right ones.

Both objectives are sums of F(z) = t log(1 + e^-z) + (1 - t) log(1 + e^z): of d pixels t = x_j at z = theta_j h for the
reconstruction, cut after z; of K classes t = y_k at z = h W_k for the cross-entropy, cut after z^2. Expanding at 0,

    F(z) = log 2 + (1/2 - t) z + log cosh(z/2),

so that the remainders do not depend on t at all: r1(z) = log cosh(z/2) and r2(z) = log cosh(z/2) - z^2/8. For |z| <= Z, r1 lies
between 0 and r1(Z), and r2 between r2(Z) and 0: r1 grows with |z|, and r2 falls, as tanh(u) <= u.

What the paper claims is the excess of the exact objective at the minimiser of the cut one, over its own minimum: with m the
width of the interval in which the remainder lies, it is at most m for every term (the paper's own Eq. 37 to 40, for two
minimisers out of one set). So the right constants are d log cosh(Z/2) and K (Z^2/8 - log cosh(Z/2)).

Verdict on the paper. Eq. 35, 4 e d / (1 + e)^2 = 0.786 d, and Eq. 36, (e^2 + 2 e - 1) / (e (1 + e)^2) K = 0.315 K, are true
where |z| <= 1, as its proof assumes without saying so in the claim, and 6.5 and 64 times too large there: it bounds the two
halves of F apart, although their second derivatives add up to one that is never negative and depends on no pixel. Beyond |z|
of 2.846 and 3.144 they are false. Without any limit on z there is no bound: cut after z, the reconstruction is linear and has
no minimiser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from twinproof import checks

# A handful of operations, each right to about 2^-52 of its value, and a difference that loses a factor of 2,400.
_ROUNDED_UP = 1 + 2.0**-36
# The difference z^2/8 - log cosh(z/2) cancels where z is small: its own series is used below this.
_SMALL = 0.1


@dataclass(frozen=True)
class ErrorBound:
    """A bound on the average error of one record: the right one, and what the paper says.

    Guarantees
        ``value`` is never below the largest excess for arguments of size up to ``largest``, and no remainder exceeds it.
        ``paper_holds`` says whether the paper's number is at least that.
    """

    value: float
    paper: float
    largest: float

    @property
    def paper_holds(self) -> bool:
        """Whether the published number is true for arguments of this size."""
        return self.paper >= self.value


def reconstruction_error(pixels: int, largest: float = 1.0) -> ErrorBound:
    """For the reconstruction objective cut after z, with ``pixels`` terms and every |theta_j h| at most ``largest``."""
    checks.whole(1, pixels=pixels)
    _check_size(largest)
    return ErrorBound(pixels * log_cosh_half(largest) * _ROUNDED_UP, paper_reconstruction_error(pixels), largest)


def cross_entropy_error(classes: int, largest: float = 1.0) -> ErrorBound:
    """For the cross-entropy objective cut after z^2, with ``classes`` terms and every |h W_k| at most ``largest``."""
    checks.whole(1, classes=classes)
    _check_size(largest)
    return ErrorBound(classes * _missing(largest) * _ROUNDED_UP, paper_cross_entropy_error(classes), largest)


def paper_reconstruction_error(pixels: int) -> float:
    """Eq. 35: 4 e d / (1 + e)^2, whatever the arguments; true for those up to 2.846."""
    return 4 * math.e * pixels / (1 + math.e) ** 2


def paper_cross_entropy_error(classes: int) -> float:
    """Eq. 36: (e^2 + 2 e - 1) / (e (1 + e)^2) K, whatever the arguments; true for those up to 3.144."""
    return (math.e**2 + 2 * math.e - 1) / (math.e * (1 + math.e) ** 2) * classes


def log_cosh_half(z: float) -> float:
    """log cosh(z/2), what the reconstruction objective leaves out at z; without overflow or cancellation."""
    half = abs(z) / 2
    # cosh u - 1 = 2 sinh(u/2)^2 has no difference in it.
    return math.log1p(2 * math.sinh(half / 2) ** 2) if half < 1 else half + math.log1p(math.exp(-2 * half)) - math.log(2)


def _missing(z: float) -> float:
    """z^2/8 - log cosh(z/2), what the cross-entropy objective adds at z.

    For small z its alternating series, with u = z/2: u^4/12 - u^6/45 + 17 u^8/2520 - ..., cut after a term that adds, so that
    the sum lies above.
    """
    if abs(z) >= _SMALL:
        return z * z / 8 - log_cosh_half(z)
    square = (z / 2) ** 2
    return square**2 * (1 / 12 - square * (1 / 45 - square * 17 / 2520))


def _check_size(largest: float) -> None:
    checks.positive(largest=largest, fix="bound |theta_j h| or |h W_k|: without a limit the cut objective has no minimiser")
