"""Every lie that an update can tell is refused, with a reason; nothing honest is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federations import agreed
from hypothesis import given
from hypothesis import strategies as st

from twinproof.federated.messages import Expected, Failure, Reply, Update, refusal

AGREEMENT = agreed()
CAP = AGREEMENT.caps["party-2"]
CLIP = AGREEMENT.plan.clip_norm
EXPECTED = Expected(AGREEMENT, 4, "w" * 64, {"weight": (2, 3), "bias": (2,)})


def honest(**changes: Any) -> Update:
    """Two records drawn, and a sum that is as long as two clipped gradients can make it."""
    weight, bias = np.zeros((2, 3)), np.zeros(2)
    weight[0, 0] = 2 * CLIP
    return replace(Update("party-2", 4, 2, {"weight": weight, "bias": bias}, "w" * 64), **changes)


def sums(change: Callable[[np.ndarray[Any, Any]], Any]) -> dict[str, Any]:
    found = dict(honest().sums)
    return {"sums": {**found, "weight": change(found["weight"].copy())}}


def with_entry(value: float) -> Callable[[np.ndarray[Any, Any]], Any]:
    def change(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        weight[1, 2] = value
        return weight

    return change


LIES: list[tuple[dict[str, Any], str]] = [
    ({"party": "party-3"}, "comes from party-3"),
    ({"step": 3}, "of step 3, not of step 4"),
    ({"step": 4.0}, "of step 4.0"),
    ({"step": None}, "of step None"),
    ({"weights_sha256": "v" * 64}, "other weights"),
    ({"weights_sha256": None}, "other weights"),
    ({"drawn": CAP + 1}, f"at most {CAP}"),
    ({"drawn": -1}, "-1 records"),
    ({"drawn": True}, "True records"),
    ({"drawn": 2.0}, "2.0 records"),
    ({"sums": {}}, "not those of the network's parameters"),
    ({"sums": {"weight": np.zeros((2, 3))}}, "bias"),
    ({"sums": {**honest().sums, "\x1b[2J": np.zeros(2)}}, r"parameters: \?\[2J"),
    (sums(lambda weight: weight.astype(np.float32)), "float32, not float64"),
    (sums(lambda weight: weight.astype(">f8")), "not float64"),
    (sums(lambda weight: weight.astype(object)), "object, not float64"),
    (sums(lambda weight: weight.tolist()), "list"),
    (sums(lambda weight: weight.T), r"shape \(3, 2\), not \(2, 3\)"),
    (sums(lambda weight: weight[0]), r"shape \(3,\)"),
    (sums(with_entry(float("nan"))), "not finite"),
    (sums(with_entry(float("inf"))), "not finite"),
    (sums(with_entry(-float("inf"))), "not finite"),
    (sums(with_entry(1e200)), "inf long, and 2 clipped gradients"),
    (sums(lambda weight: weight * 1.0001), "2 clipped gradients make at most"),
    ({"drawn": 1}, "1 clipped gradients make at most"),
    ({"drawn": 0}, "0 clipped gradients make at most 0"),
]


@pytest.mark.parametrize(("changes", "reason"), LIES)
def test_a_lie_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    found = refusal(Reply("party-2", honest(**changes)), EXPECTED)
    assert found is not None
    assert found.isprintable()
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found)


def test_an_honest_update_counts() -> None:
    assert refusal(Reply("party-2", honest()), EXPECTED) is None
    assert refusal(Reply("party-2", honest(drawn=CAP)), EXPECTED) is None


def test_who_is_no_party_is_refused() -> None:
    assert refusal(Reply("mallory", honest(party="mallory")), EXPECTED) == "the sender is not a party of the agreement"


def test_a_failure_is_told_without_its_control_characters() -> None:
    assert refusal(Reply("party-2", Failure("disk\x1b[31m full\n")), EXPECTED) == "disk?[31m full?"
    assert len(refusal(Reply("party-2", Failure("x" * 10_000)), EXPECTED) or "") <= 120


@given(st.integers(1, CAP), st.lists(st.floats(-1e300, 1e300), min_size=8, max_size=8))
def test_what_passes_is_never_longer_than_its_draw_allows(drawn: int, entries: list[float]) -> None:
    values = np.array(entries)
    update = honest(drawn=drawn, sums={"weight": values[:6].reshape(2, 3), "bias": values[6:]})
    exact = float(np.sqrt(np.square((values / max(1.0, np.abs(values).max())).astype(np.longdouble)).sum())) * max(
        1.0, float(np.abs(values).max())
    )
    if refusal(Reply("party-2", update), EXPECTED) is None:
        assert exact <= drawn * CLIP * (1 + 2e-9)
    else:
        assert exact > drawn * CLIP
