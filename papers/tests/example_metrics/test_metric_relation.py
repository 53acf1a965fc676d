"""Histograms that count everything once, groups by radius, both sides of a radius, rank correlation, the join by index."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from twinproof.errors import DataError
from twinproof.runs.records import ABSTAIN, Certificate
from twinproof_papers.example_metrics.measure import (
    ExampleMetrics,
    group_by_radius,
    log_edges,
    log_histogram,
    relate,
    split_at_radius,
)


def numbers(*values: float) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


SAMPLES = {
    "many decades": numbers(*(10 ** np.random.default_rng(0).uniform(-12, 3, 500))),
    "with zeros": numbers(0, 1, -2, 5, 0),
    "one value": numbers(0.001),
    "powers of ten": numbers(*(10.0 ** np.arange(-9, 10))),
    "nothing positive": numbers(0, -1),
    "beyond the powers of ten": numbers(5e-324, 1, 1.7e308),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_value_is_counted_once_and_within_its_own_edges(name: str) -> None:
    values = SAMPLES[name]
    found, edges = log_histogram(values), log_edges(values)
    beyond = int(name == "beyond the powers of ten")
    assert (found.below, found.above, found.not_positive) == (beyond, beyond, int((values <= 0).sum()))
    assert sum(found.counts) + found.not_positive + found.below + found.above == len(values)
    for count, low, high in zip(found.counts[:-1], edges, edges[1:-1], strict=False):
        assert count == int(((values >= low) & (values < high)).sum())
    shared = log_histogram(numbers(0, 0.5, 1, 9, 10, 11), (1.0, 10.0))
    assert (shared.counts, shared.below, shared.above, shared.not_positive) == ((3,), 1, 1, 1)


def test_groups_have_their_mean_and_then_its_logarithm() -> None:
    groups = group_by_radius(numbers(1, 3, 10, 0, 5), numbers(0, 0.09, 0.1, 0.299999, 0.3))
    assert [(group.low, group.high, group.count, group.mean) for group in groups] == [
        (0.0, 0.1, 2, 2.0),
        (0.1, 0.2, 1, 10.0),
        (0.2, 0.3, 1, 0.0),
        (0.3, 0.4, 1, 5.0),
    ]
    assert [group.log_mean for group in groups] == [math.log(2), math.log(10), None, math.log(5)]


def test_a_radius_on_an_edge_belongs_to_the_group_above() -> None:
    """Planted: floor(r / width) alone puts 0.3 and 0.7 (29 of 30 steps, in binary) one group too low."""
    radii = numbers(*(round(step * 0.1, 6) for step in range(30)))
    assert [group.low for group in group_by_radius(radii, radii)] == pytest.approx(radii.tolist())
    assert len({math.floor(radius / 0.1) for radius in radii}) < 30


def test_both_sides_of_a_radius() -> None:
    found = split_at_radius(numbers(1, 10, 100, 1000), numbers(2, 1, 0.999999, 0), 1.0)
    assert (sum(found.at_least.counts), sum(found.below.counts)) == (2, 2)
    assert (found.mean_at_least, found.mean_below) == (5.5, 550.0)
    assert found.at_least.edges == found.below.edges
    assert split_at_radius(numbers(1), numbers(2), 1.0).mean_below is None


def examples(values: Sequence[float], label: int = 0) -> list[ExampleMetrics]:
    return [
        ExampleMetrics(index, label, value, value, value, 0.0, 0.0, True, value, value, value)
        for index, value in enumerate(values)
    ]


def certificate(index: int, radius: float, *, prediction: int = 0) -> Certificate:
    return Certificate(index, 0, prediction, 100, 0, radius)


def test_metrics_and_certificates_meet_by_index() -> None:
    # In another order, one missing, one unknown to the metrics.
    certificates = [certificate(index, 0.25 * index) for index in (4, 9, 2, 0, 3)]
    relations = relate(examples([10.0, 9.0, 8.0, 7.0, 6.0]), certificates)
    assert set(relations) == {
        "gradient_norm", "hessian_norm", "hessian_largest",
        "lipschitz_logits", "lipschitz_logits_loop", "lipschitz_logits_code",
    }  # fmt: skip
    found = relations["gradient_norm"]
    assert (found.examples, found.spearman) == (4, -1.0)
    assert [sum(split.at_least.counts) for split in found.splits] == [3, 1, 0]
    assert (found.groups[0].low, found.groups[0].count, found.groups[0].mean) == (0.0, 1, 10.0)


def test_wrong_answers_and_abstentions_have_radius_zero() -> None:
    certificates = [certificate(0, 1.0), certificate(1, 0.5, prediction=3), certificate(2, 0.0, prediction=ABSTAIN)]
    found = relate(examples([1.0, 2.0, 3.0]), certificates)["gradient_norm"]
    assert [(group.low, group.count) for group in found.groups] == [(0.0, 2), (1.0, 1)]


def test_certificates_of_other_data_are_refused() -> None:
    with pytest.raises(DataError, match="different data"):
        relate(examples([1.0], label=1), [certificate(0, 1.0)])
    with pytest.raises(DataError, match="both measured and certified"):
        relate(examples([1.0]), [certificate(1, 1.0)])
