"""Other bounds read off the same votes: the recorded one to the last digit, sound ones in order, the published one refuted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import betaincinv, ndtri

from twinproof.certification.method import CertificateSettings
from twinproof.errors import CheckFailed
from twinproof.layers.noise_placement import BOTH_PLACES
from twinproof_papers.under_attack import COMPOSITION, HGM, PIXELDP, PUBLISHED, TIGHT, Rereading, bounds_for, recorded_rule
from work_settings import CERTIFICATES, changed

DRAWS, ALPHA, SIGMA, NORM = 10_000, 0.001, 0.5, 4.0
VOTES = np.array([0, 4000, 5001, 5200, 6000, 9000, 9900, 9990, 9999, 10_000], dtype=np.int64)


def settings(**changes: object) -> CertificateSettings:
    values = {"norm": "linf", "sigma": SIGMA, "grid": 2.0**-10, "dimension": 100, "tau": 1e-11, "n": DRAWS, "alpha": ALPHA}
    layer = {"place": "first-layer", "classes": 10, "operator_norm": NORM, "slack": 1e-4}
    return changed(CERTIFICATES, **{**values, **layer, **changes})


def reading(paper_norm: float, **changes: object) -> Rereading:
    """All bounds for Gaussian noise, the published one with the papers' sensitivity."""
    made = settings(**changes)
    rules = {bound: recorded_rule(made, bound) for bound in bounds_for(made.noise.place, made.noise.law, fixed_draws=False)}
    return Rereading(made.method.bound, {**rules, PUBLISHED: replace(rules[PUBLISHED], operator_norm=paper_norm)})


READING = reading(2.0)


def test_tight_radii_are_the_formula() -> None:
    found = READING.read(TIGHT, VOTES, DRAWS, ALPHA).radii
    low = np.where(VOTES > 0, betaincinv(np.maximum(VOTES, 1), DRAWS - VOTES + 1, ALPHA), 0.0)
    expected = np.where(low > 0.5, (SIGMA * ndtri(np.maximum(low, 0.5)) - 1e-4) / NORM, 0.0)
    assert np.all(found <= np.maximum(expected, 0))
    assert np.abs(found - np.maximum(expected, 0)).max() <= 1e-6
    assert np.array_equal(READING.read(TIGHT, VOTES, DRAWS, ALPHA).certified, low > 0.5)


def test_sound_bounds_never_exceed_the_tight_one() -> None:
    tight = READING.read(TIGHT, VOTES, DRAWS, ALPHA).radii
    for bound in (HGM, PIXELDP):
        assert np.all(READING.read(bound, VOTES, DRAWS, ALPHA).radii <= tight)
    assert np.all(READING.read(HGM, VOTES, DRAWS, ALPHA).radii[-3:] > 0)


def test_the_published_bound_uses_the_papers_sensitivity() -> None:
    larger = reading(4.0).read(PUBLISHED, VOTES, DRAWS, ALPHA).radii
    smaller = READING.read(PUBLISHED, VOTES, DRAWS, ALPHA).radii
    assert smaller[-1] == pytest.approx(2 * larger[-1], abs=2e-6)
    # With the same sensitivity Eq. 10 claims, for all votes at a million draws, more than is true.
    many = np.array([1_000_000], dtype=np.int64)
    fair = reading(NORM, slack=0.0)
    assert fair.read(PUBLISHED, many, 1_000_000, ALPHA).radii[0] > fair.read(TIGHT, many, 1_000_000, ALPHA).radii[0]


@pytest.mark.parametrize("change", [{"sigma": 1.02 * SIGMA}, {"operator_norm": 0.98 * NORM}, {"slack": 0.0}, {"bound": HGM}])
def test_a_reading_that_is_off_is_noticed(change: dict[str, object]) -> None:
    recorded = READING.read(TIGHT, VOTES, DRAWS, ALPHA).radii
    READING.check(VOTES, recorded, DRAWS, ALPHA)
    with pytest.raises(CheckFailed, match="other radii"):
        reading(2.0, **change).check(VOTES, recorded, DRAWS, ALPHA)


@pytest.mark.parametrize(
    ("place", "law", "fixed", "expected"),
    [
        ("first-layer", "gaussian", False, {TIGHT, HGM, PIXELDP, PUBLISHED}),
        ("first-layer", "laplace", False, {TIGHT, PIXELDP}),
        (BOTH_PLACES, "laplace", False, {TIGHT, COMPOSITION}),
        (BOTH_PLACES, "laplace", True, {TIGHT, COMPOSITION, PUBLISHED}),
    ],
)
def test_only_what_a_paper_claims_is_read_as_published(place: str, law: str, fixed: bool, expected: set[str]) -> None:
    assert set(bounds_for(place, law, fixed_draws=fixed)) == expected


def test_the_status_is_that_of_the_bound() -> None:
    assert {bound: str(READING.status(bound)) for bound in READING.bounds} == {
        TIGHT: "proven",
        HGM: "proven",
        PIXELDP: "proven",
        PUBLISHED: "refuted",
    }
