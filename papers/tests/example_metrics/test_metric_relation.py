"""Histograms that count everything once, groups by radius, both sides of a radius, rank correlation, the join by index."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twinproof.errors import ConfigError, DataError
from twinproof.runs.records import ABSTAIN, Certificate
from twinproof_papers.example_metrics.relation import (
    ExampleMetrics,
    group_by_radius,
    log_edges,
    log_histogram,
    metric_values,
    relate,
    spearman,
    split_at_radius,
)

SAMPLES = {
    "many decades": 10 ** np.random.default_rng(0).uniform(-12, 3, 500),
    "with zeros": np.array([0.0, 1.0, -2.0, 5.0, 0.0]),
    "one value": np.array([0.001]),
    "powers of ten": 10.0 ** np.arange(-9, 10),
    "nothing positive": np.array([0.0, -1.0]),
    "beyond the powers of ten": np.array([5e-324, 1.0, 1.7e308]),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("per_decade", [1, 3, 10])
def test_every_value_is_counted_once_and_within_its_own_edges(name: str, per_decade: int) -> None:
    values = SAMPLES[name]
    edges = log_edges(values, per_decade=per_decade)
    found = log_histogram(values, edges)
    assert found.total == len(values)
    beyond = int(name == "beyond the powers of ten")
    assert (found.below, found.above) == (beyond, beyond)
    assert found.not_positive == int((values <= 0).sum())
    for count, low, high in zip(found.counts[:-1], edges, edges[1:-1], strict=False):
        assert count == int(((values >= low) & (values < high)).sum())


def test_shared_edges_tell_what_lies_outside() -> None:
    found = log_histogram([0.0, 0.5, 1.0, 9.0, 10.0, 11.0], (1.0, 10.0))
    assert (found.counts, found.below, found.above, found.not_positive) == ((3,), 1, 1, 1)
    assert found.as_dict() == {"edges": [1.0, 10.0], "counts": [3], "not_positive": 1, "below": 1, "above": 1}
    assert log_edges([1.0], [1000.0], per_decade=1) == pytest.approx((1.0, 10.0, 100.0, 1000.0))


def test_groups_have_their_mean_and_then_its_logarithm() -> None:
    groups = group_by_radius([1.0, 3.0, 10.0, 0.0, 5.0], [0.0, 0.09, 0.1, 0.299999, 0.3], 0.1)
    assert [(group.low, group.high, group.count, group.mean) for group in groups] == [
        (0.0, 0.1, 2, 2.0),
        (0.1, 0.2, 1, 10.0),
        (0.2, 0.3, 1, 0.0),
        (0.3, 0.4, 1, 5.0),
    ]
    assert [group.log_mean for group in groups] == [math.log(2), math.log(10), None, math.log(5)]
    assert groups[0].log_mean != pytest.approx(math.log(3) / 2), "the mean of the logarithms is another number"


def test_a_radius_on_an_edge_belongs_to_the_group_above() -> None:
    """Planted: floor(r / width) alone puts 0.3 and 0.7 (29 of 30 steps, in binary) one group too low."""
    radii = [round(step * 0.1, 6) for step in range(30)]
    assert [group.low for group in group_by_radius(radii, radii, 0.1)] == pytest.approx(radii)
    assert len({math.floor(radius / 0.1) for radius in radii}) < 30


def test_both_sides_of_a_radius() -> None:
    found = split_at_radius([1.0, 10.0, 100.0, 1000.0], [2.0, 1.0, 0.999999, 0.0], 1.0)
    assert (found.at_least.total, found.below.total) == (2, 2)
    assert (found.mean_at_least, found.mean_below) == (5.5, 550.0)
    assert found.at_least.edges == found.below.edges
    assert split_at_radius([1.0], [2.0], 1.0).mean_below is None


@pytest.mark.parametrize(
    ("values", "radii", "words"),
    [([1.0], [1.0, 2.0], "do not fit"), ([], [], "do not fit"), ([1.0], [-1.0], "negative"), ([[1.0]], [1.0], "summarised")],
)
def test_pairs_that_do_not_fit_are_refused(values: list[float], radii: list[float], words: str) -> None:
    with pytest.raises(DataError, match=words):
        spearman(values, radii)


def example(index: int, value: float, label: int = 0) -> ExampleMetrics:
    return ExampleMetrics(index, label, value, value, value, 0.0, 0.0, True, value, value, value)


def certificate(index: int, radius: float, *, prediction: int = 0, label: int = 0) -> Certificate:
    return Certificate(index, label, prediction, 100, 0, radius)


def test_metrics_and_certificates_meet_by_index() -> None:
    examples = [example(index, float(10 - index)) for index in range(5)]
    # In another order, one missing, one unknown to the metrics.
    certificates = [certificate(index, 0.25 * index) for index in (4, 9, 2, 0, 3)]
    relations = {relation.metric: relation for relation in relate(examples, certificates, thresholds=(0.5,))}
    assert set(relations) == {
        "gradient_norm", "hessian_norm", "hessian_largest",
        "lipschitz_logits", "lipschitz_logits_loop", "lipschitz_logits_code",
    }  # fmt: skip
    found = relations["gradient_norm"]
    assert (found.examples, found.spearman) == (4, -1.0)
    assert [split.at_least.total for split in found.splits] == [3]
    assert found.as_dict()["groups"][0] == {"low": 0.0, "high": 0.1, "count": 1, "mean": 10.0, "log_mean": math.log(10)}


def test_wrong_answers_have_radius_zero_unless_asked() -> None:
    examples = [example(0, 1.0), example(1, 2.0), example(2, 3.0)]
    certificates = [certificate(0, 1.0), certificate(1, 0.5, prediction=3), certificate(2, 0.0, prediction=ABSTAIN)]
    kept = relate(examples, certificates, wrong_as_zero=False)[0]
    assert [group.low for group in kept.groups] == [0.0, 0.5, 1.0]
    zero = relate(examples, certificates)[0]
    assert [(group.low, group.count) for group in zero.groups] == [(0.0, 2), (1.0, 1)]


def test_certificates_of_other_data_are_refused() -> None:
    with pytest.raises(DataError, match="different data"):
        relate([example(0, 1.0, label=1)], [certificate(0, 1.0)])
    with pytest.raises(DataError, match="both measured and certified"):
        relate([example(0, 1.0)], [certificate(1, 1.0)])


def test_columns_are_read_by_name() -> None:
    examples = [example(0, 1.0), example(1, 2.0)]
    assert metric_values(examples, "hessian_norm").tolist() == [1.0, 2.0]
    with pytest.raises(ConfigError, match="unknown metric"):
        metric_values(examples, "label")
    with pytest.raises(DataError, match="not measured"):
        metric_values(examples, "lipschitz_penultimate")
    with pytest.raises(DataError, match="no examples"):
        metric_values([], "hessian_norm")
