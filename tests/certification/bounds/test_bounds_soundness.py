"""10,000 certificates for each bound and confidence, on classifiers whose robust distance is known; and planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from bounds_oracles import ALPHA, INPUTS, MOST_FAILURES, Floats, LineModel, few, halfspace, soft_steps, three_intervals
from scipy.special import ndtri
from scipy.stats import norm

from twinproof.certification.catalogue import find_bound
from twinproof.certification.confidence import CONFIDENCE_NAMES, Evidence, RunnerUp, find_confidence
from twinproof.layers.noise import Law

Certify = Callable[[LineModel, Evidence], Floats]
DRAWS = 400
SOUND = [(law, name) for law in Law for name in ("tight", "pixeldp")]
SOUND += [(Law.GAUSSIAN, "hgm"), (Law.GAUSSIAN, "hgm-complement")]
MODELS = {"halfspace": lambda law: halfspace(law, 0.7), "intervals": three_intervals, "scores": soft_steps}

# Clopper-Pearson is for votes.
DRAWN = [(kind, name) for kind in MODELS for name in CONFIDENCE_NAMES if kind != "scores" or name != "clopper-pearson"]


@cache
def _drawn(kind: str, law: Law) -> tuple[LineModel, Evidence]:
    model = MODELS[kind](law)
    return model, model.evidence(DRAWS)


def _reach(kind: str, law: Law, name: str, confidence: str, runner_up: RunnerUp) -> tuple[LineModel, Floats]:
    model, evidence = _drawn(kind, law)
    classes = len(model.scores[0])
    low, high = find_confidence(confidence).bounds(evidence, ALPHA, classes, runner_up)
    return model, find_bound(name, law).reach(low, high)


@pytest.mark.parametrize("runner_up", RunnerUp)
@pytest.mark.parametrize(("kind", "confidence"), DRAWN)
@pytest.mark.parametrize(("law", "name"), SOUND, ids=[f"{law}-{name}" for law, name in SOUND])
def test_certificates_fail_no_more_often_than_alpha(
    law: Law, name: str, kind: str, confidence: str, runner_up: RunnerUp
) -> None:
    model, reach = _reach(kind, law, name, confidence, runner_up)
    assert len(reach) == INPUTS
    assert few(int((reach > model.truth).sum()))
    assert (reach > 0).mean() > 0.2, "a test without certificates proves nothing"


@pytest.mark.parametrize("law", Law)
def test_the_check_is_sharp(law: Law) -> None:
    """On its own extremal classifier the tight bound fails about as often as it may: a little more would be seen."""
    model, reach = _reach("halfspace", law, "tight", "clopper-pearson", RunnerUp.COMPLEMENT)
    assert model.truth == pytest.approx(0.7, abs=1e-9)
    assert 0.5 * ALPHA * INPUTS < (reach > model.truth).sum() <= MOST_FAILURES


def test_the_union_reaches_farther_where_the_rest_is_split() -> None:
    """Why anyone would pay for it."""
    _, union = _reach("intervals", Law.GAUSSIAN, "tight", "clopper-pearson", RunnerUp.UNION)
    _, complement = _reach("intervals", Law.GAUSSIAN, "tight", "clopper-pearson", RunnerUp.COMPLEMENT)
    assert union.mean() > complement.mean()


def _share_as_bound(model: LineModel, evidence: Evidence) -> Floats:
    share = evidence.total / evidence.draws
    return find_bound("tight", model.law).reach(share, 1 - share)


def _upper_as_lower(model: LineModel, evidence: Evidence) -> Floats:
    upper = find_confidence("clopper-pearson").upper(evidence.total, evidence.squares, evidence.draws, 1, ALPHA)
    return find_bound("tight", model.law).reach(upper, 1 - upper)


def _complement_at_twice_alpha(model: LineModel, evidence: Evidence) -> Floats:
    low, high = find_confidence("clopper-pearson").bounds(evidence, 2 * ALPHA, 2, RunnerUp.COMPLEMENT)
    return find_bound("tight", model.law).reach(low, high)


def _half_forgotten(model: LineModel, evidence: Evidence) -> Floats:
    low, high = find_confidence("hoeffding").bounds(evidence, ALPHA, 2, RunnerUp.COMPLEMENT)
    return np.maximum(ndtri(np.clip(low, 1e-9, 1)) - ndtri(np.clip(high, 0, 1 - 1e-9)), 0.0)


@pytest.mark.parametrize("planted", [_share_as_bound, _upper_as_lower, _complement_at_twice_alpha, _half_forgotten])
def test_planted_bugs_are_caught(planted: Certify) -> None:
    model, evidence = _drawn("halfspace", Law.GAUSSIAN)
    assert not few(int((planted(model, evidence) > model.truth).sum()))


def test_the_law_is_part_of_the_bound() -> None:
    """Planted: the Laplace reach, true for a halfspace in Laplace noise, is too long for one in Gaussian noise."""
    model = halfspace(Law.LAPLACE, 2.0)
    assert model.truth == pytest.approx(2.0, abs=1e-9)
    low, high = find_confidence("clopper-pearson").bounds(model.evidence(DRAWS), ALPHA, 2, RunnerUp.COMPLEMENT)
    assert few(int((find_bound("tight", Law.LAPLACE).reach(low, high) > model.truth).sum()))
    wrong = halfspace(Law.GAUSSIAN, 1.0)
    low, high = find_confidence("clopper-pearson").bounds(wrong.evidence(DRAWS), ALPHA, 2, RunnerUp.COMPLEMENT)
    assert not few(int((find_bound("tight", Law.LAPLACE).reach(low, high) > wrong.truth).sum()))


def test_the_extra_epsilon_of_the_published_bound_is_caught() -> None:
    """Many draws, so that the votes can show scores at which Eq. 10 as printed is false; Eq. 4 with Theorem 3 holds there."""
    model = halfspace(Law.GAUSSIAN, 3.9)
    low, high = find_confidence("clopper-pearson").bounds(model.evidence(10**6), ALPHA, 2, RunnerUp.COMPLEMENT)
    assert few(int((find_bound("hgm", Law.GAUSSIAN).reach(low, high) > model.truth).sum()))
    assert not few(int((find_bound("published", Law.GAUSSIAN).reach(low, high) > model.truth).sum()))


def test_choosing_the_class_on_the_same_draws_without_a_union_is_caught() -> None:
    """Two classes as likely as each other: every certificate is false, and alpha for each of them lets 2 alpha through."""
    confidence, tight = find_confidence("clopper-pearson"), find_bound("tight", Law.GAUSSIAN)
    votes, _ = halfspace(Law.GAUSSIAN, 0.0).sums(DRAWS)
    chosen = Evidence.of_votes(DRAWS, votes.max(axis=1))
    planted = tight.reach(*confidence.bounds(chosen, ALPHA, 2, RunnerUp.COMPLEMENT))
    united = tight.reach(*confidence.bounds(chosen, ALPHA / 2, 2, RunnerUp.COMPLEMENT))
    assert not few(int((planted > 0).sum()))
    assert few(int((united > 0).sum()))


def test_oracle_truth() -> None:
    """The classifiers' distances, found another way: the rival's score meets the top one's where symmetry says."""
    model = three_intervals(Law.GAUSSIAN)
    assert model.top == 0
    assert model.expected(-model.truth)[0] == pytest.approx(np.delete(model.expected(-model.truth), 0).max(), abs=1e-9)
    assert halfspace(Law.GAUSSIAN, 1.0).expected()[0] == pytest.approx(norm.cdf(1.0))
    assert soft_steps(Law.LAPLACE).expected().sum() == pytest.approx(1.0)
