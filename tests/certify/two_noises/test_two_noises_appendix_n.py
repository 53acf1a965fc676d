"""Appendix N's radius is psi times too large: a half-space that changes its answer well inside it, in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twinproof.certify.two_noises import Rates, composition_radius, single_pass_radius
from twinproof.certify.two_noises.appendix_n import APPENDIX_N_STATUS, appendix_n_radius
from twinproof.guarantee import Status

TOP = 0.9


def laplace_cdf(value: float, scale: float) -> float:
    return 0.5 * math.exp(value / scale) if value < 0 else 1 - 0.5 * math.exp(-value / scale)


def score_at(shift: float, scale: float) -> float:
    """The top score of the half-space with score ``TOP`` at 0, where the input moved by ``shift`` towards its boundary."""
    boundary = -scale * math.log(2 * (1 - TOP))
    return laplace_cdf(boundary - shift, scale)


def _nearly_one_noise(scale: float) -> Rates:
    """The other noise is so large that it charges nothing: what is left is Lap(scale) alone."""
    return Rates(input=1 / scale, hidden=1e-12, split=1e-12)


@pytest.mark.parametrize(("psi", "score"), [(2.0, 0.2778), (10.0, 4.2e-5)])
def test_the_answer_changes_inside_the_claimed_radius(psi: float, score: float) -> None:
    drawn = _nearly_one_noise(1 / psi)
    claimed = float(appendix_n_radius(TOP, 1 - TOP, drawn, psi))
    assert claimed == pytest.approx(1.0986, abs=1e-4)
    at_claim = score_at(claimed, 1 / psi)
    assert at_claim == pytest.approx(score, rel=0.02)
    assert at_claim < 0.5, "another answer, inside what is claimed"


def test_noise_that_is_drawn_as_stated_keeps_the_claim() -> None:
    claimed = float(appendix_n_radius(TOP, 1 - TOP, _nearly_one_noise(1.0), 1.0))
    assert score_at(claimed, 1.0) > 0.5


def test_the_sound_radii_of_the_same_noise_hold() -> None:
    for psi in (2.0, 10.0):
        drawn = Rates(input=psi, hidden=psi * 1e3, split=psi)
        for radius in (composition_radius, single_pass_radius):
            assert score_at(float(radius(TOP, 1 - TOP, drawn)), 1 / psi) >= 0.5 - 1e-9


def test_it_is_psi_times_the_composition_and_called_refuted() -> None:
    low, high = np.array([0.6, 0.9, 0.4]), np.array([0.3, 0.05, 0.5])
    drawn = Rates(input=3.0, hidden=5.0, split=2.0)
    assert appendix_n_radius(low, high, drawn, 2.0) == pytest.approx(2 * composition_radius(low, high, drawn))
    assert appendix_n_radius(low, high, drawn)[2] == 0
    assert APPENDIX_N_STATUS is Status.REFUTED
