"""Rows of a pass, and settings that only change speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from twinproof.training.performance import Performance, physical_batch_size


@given(expected=st.floats(1e-3, 1e5), copies=st.integers(1, 65), limit=st.integers(1, 4096))
def test_rows_are_at_least_one_and_within_the_memory_limit(expected: float, copies: int, limit: int) -> None:
    rows = physical_batch_size(Performance(), expected, copies=copies, limit=limit)
    assert rows >= 1
    assert rows * copies <= max(limit, copies)


@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_what_is_asked_for_is_taken(rows: int) -> None:
    assert physical_batch_size(Performance(physical_batch=rows), 10, copies=3) == rows


@pytest.mark.parametrize(
    "settings", [{"device": "tpu"}, {"physical_batch": 0}, {"path": "ghost"}, {"checkpoint_every": 0}, {"epsilon": 1.0}]
)
def test_unusable_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Performance.model_validate(settings)
