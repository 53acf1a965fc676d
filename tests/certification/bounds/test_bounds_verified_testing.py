"""isRobust and mu_max: exact to the last float, and the same answer as the paper's algorithm asked directly."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from twinproof.certification.bounds import HGM, RobustnessBound, is_robust, largest_size
from twinproof.certification.catalogue import find_bound
from twinproof.errors import ConfigError
from twinproof.layers.noise import Law
from twinproof.privacy.mechanisms import extended_gaussian_sigma

Setting = tuple[float, float, float, float, float, RobustnessBound]
BOUNDS = [find_bound(name, law) for law in Law for name in ("tight", "pixeldp")] + [HGM()]
PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)


def _is_last(size: float, setting: Setting) -> bool:
    return is_robust(size, *setting) and not is_robust(math.nextafter(size, math.inf), *setting)


@PROPERTY
@given(
    low=st.floats(0.5, 0.99999),
    share=st.floats(0, 1),
    sigma=st.floats(1e-3, 1e3),
    norm=st.floats(1e-3, 1e3),
    slack=st.sampled_from([0.0, 1e-9, 1e-3]),
    bound=st.sampled_from(BOUNDS),
)
def test_the_largest_size_is_the_last_robust_float(
    low: float, share: float, sigma: float, norm: float, slack: float, bound: RobustnessBound
) -> None:
    setting = (low, share * (1 - low), sigma, norm, slack, bound)
    size = largest_size(*setting)
    if size == 0 or math.isinf(size):
        assert is_robust(1e300, *setting) == math.isinf(size)
        return
    assert _is_last(size, setting)
    assert all(is_robust(size * share, *setting) for share in (0.0, 1e-9, 0.3, 0.999999))
    assert not is_robust(size * (1 + 1e-12), *setting)
    if slack == 0:
        assert size == pytest.approx(sigma * float(bound.reach(low, setting[1])) / norm, rel=1e-14)


def test_the_plain_formula_is_caught() -> None:
    """(sigma * reach - slack) / norm in floats is at times one float too large: planted, and seen."""
    draw = np.random.default_rng(5)
    above = 0
    for _ in range(300):
        low, sigma, norm, slack = (float(value) for value in draw.uniform((0.6, 0.1, 0.5, 0), (0.99, 2, 9, 0.01)))
        setting = (low, 1 - low, sigma, norm, slack, find_bound("tight", Law.GAUSSIAN))
        planted = (sigma * float(setting[-1].reach(low, 1 - low)) - slack) / norm
        above += not is_robust(planted, *setting)
        assert _is_last(largest_size(*setting), setting)
    assert above > 20


def _algorithm_1(size: float, low: float, high: float, sigma: float, norm: float, slack: float) -> bool:
    """Lines 18-23: for some delta, the epsilon that the noise keeps at this size satisfies Eq. 4. On a grid of deltas."""
    needed = sigma / (size * norm + slack)
    for delta in np.exp(np.linspace(math.log(1e-12), math.log((low - high) / 2), 800, endpoint=False)):

        def excess(epsilon: float, delta: float = float(delta)) -> float:
            return extended_gaussian_sigma(epsilon, delta) - needed

        epsilon = float(brentq(excess, 1e-9, 1e6, xtol=1e-15))
        if epsilon < 350 and low > math.exp(2 * epsilon) * high + (1 + math.exp(epsilon)) * float(delta):
            return True
    return False


@pytest.mark.parametrize(("low", "high", "slack"), [(0.9, 0.1, 0.0), (0.99, 0.001, 0.01)])
def test_the_answer_is_that_of_algorithm_1(low: float, high: float, slack: float) -> None:
    size = largest_size(low, high, 0.5, 2.0, slack, HGM())
    assert _algorithm_1(size * 0.9999, low, high, 0.5, 2.0, slack)
    assert not _algorithm_1(size * 1.0001, low, high, 0.5, 2.0, slack)


@pytest.mark.parametrize(("low", "high", "slack"), [(0.4, 0.5, 0.0), (0.5, 0.5, 0.0), (0.6, 0.4, 1.0), (math.nan, 0.1, 0.0)])
def test_nothing_is_robust_where_nothing_is_decided(low: float, high: float, slack: float) -> None:
    for bound in BOUNDS:
        assert largest_size(low, high, 0.5, 2.0, slack, bound) == 0
        assert not is_robust(1e-300, low, high, 0.5, 2.0, slack, bound)
        assert not is_robust(0.0, low, high, 0.5, 2.0, slack, bound)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 0.0}, "sigma cannot be used"),
        ({"sigma": math.inf}, "sigma cannot be used"),
        ({"operator_norm": 0.0}, "operator norm cannot be used"),
        ({"operator_norm": math.nan}, "operator norm cannot be used"),
        ({"slack": -1e-9}, "slack cannot be used"),
        ({"slack": math.nan}, "slack cannot be used"),
        ({"size": -1.0}, "size cannot be used"),
        ({"size": math.inf}, "size cannot be used"),
    ],
)
def test_values_that_cannot_be_used_are_refused(change: dict[str, float], message: str) -> None:
    values = {"size": 0.1, "low": 0.9, "high": 0.1, "sigma": 0.5, "operator_norm": 2.0, "slack": 0.0, **change}
    ask: Callable[..., bool] = is_robust
    with pytest.raises(ConfigError, match=message):
        ask(**values, bound=HGM())
