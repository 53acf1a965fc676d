"""Privacy profiles found without the code under test: arithmetic of many digits, and integrals of the densities themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[np.float64]


def exact_gaussian_delta(epsilon: float, sigma: float, sensitivity: float = 1.0) -> float:
    """The profile as printed in the paper, in arithmetic that neither overflows nor cancels."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(50 + int(epsilon / 2)):
        e, s = mp.mpf(epsilon), mp.mpf(sigma) / mp.mpf(sensitivity)
        return float(mp.ncdf(1 / (2 * s) - e * s) - mp.exp(e) * mp.ncdf(-1 / (2 * s) - e * s))


def normal_log_density(points: Array, deviation: float) -> Array:
    """Of N(0, deviation^2)."""
    return -((points / deviation) ** 2) / 2 - math.log(deviation * math.sqrt(2 * math.pi))


def laplace_log_density(points: Array, scale: float) -> Array:
    """Of the Laplace distribution with that scale."""
    return -np.abs(points) / scale - math.log(2 * scale)


def hockey_stick(
    log_density: Callable[[Array, float], Array], widths: tuple[float, float], change: tuple[float, float], epsilon: float
) -> float:
    """Integral of max(0, p - e^epsilon q) over the plane: independent noise of two widths, centres ``change`` apart."""
    axes = []
    for width, shift in zip(widths, change, strict=True):
        span = 14 * width + abs(shift)
        # Midpoints: no grid point lies on a kink of |x| and none counts half.
        axes.append((np.arange(1600) + 0.5) / 1600 * 2 * span - span)
    p, q = (
        log_density(axes[0] - s * change[0], widths[0])[:, None] + log_density(axes[1] - s * change[1], widths[1])[None, :]
        for s in (1, 0)
    )
    cell = float((axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0]))
    return float(np.maximum(0.0, np.exp(p) - np.exp(epsilon + q)).sum()) * cell
