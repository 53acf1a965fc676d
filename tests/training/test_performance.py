"""Rows of a pass, and settings that only change speed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import poisson

from twinproof.training.passes import Performance, expected_passes, largest_pass, physical_batch_size


@given(expected=st.floats(1e-3, 1e5), copies=st.integers(1, 65), limit=st.integers(1, 4096))
def test_rows_are_at_least_one_and_within_the_memory_limit(expected: float, copies: int, limit: int) -> None:
    rows = physical_batch_size(Performance(), expected, copies=copies, limit=limit)
    assert rows >= 1
    assert rows * copies <= max(limit, copies)


@given(expected=st.floats(1e-3, 1e5), copies=st.integers(1, 65), limit=st.integers(1, 4096), workers=st.integers(1, 2))
@settings(deadline=None, max_examples=40)
def test_rows_on_a_cpu_stay_within_every_limit(expected: float, copies: int, limit: int, workers: int) -> None:
    rows = physical_batch_size(
        Performance(), expected, copies=copies, limit=limit, device="cpu", parameters=26_010, workers=workers
    )
    assert rows >= 1
    assert rows * copies <= max(limit, copies)
    assert rows <= max(8, 512 // copies)


@pytest.mark.parametrize(("parameters", "most"), [(26_010, 512), (1_205_642, 27), (2_748_890, 12), (11_173_962, 8)])
def test_gradients_of_a_pass_on_a_cpu_take_bounded_memory(parameters: int, most: int) -> None:
    sizes = {physical_batch_size(Performance(), 10.0**n, copies=1, device="cpu", parameters=parameters) for n in range(6)}
    assert max(sizes) <= most == largest_pass(copies=1, device="cpu", parameters=parameters)


@pytest.mark.parametrize("expected", [3.0, 64.0, 300.0, 2048.0])
@pytest.mark.parametrize("size", [8, 64, 144])
def test_expected_passes_are_those_of_a_poisson_draw(expected: float, size: int) -> None:
    counts = np.arange(0, int(expected + 12 * expected**0.5 + 20))
    wanted = float((poisson.pmf(counts, expected) * np.ceil(counts / size)).sum())
    assert expected_passes(expected, size) == pytest.approx(wanted, abs=0.06, rel=0.005)
    planted = expected / size  # wrong on purpose: the rows that only fill the last pass are forgotten
    assert planted < wanted - 0.1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("expected", [16.0, 64.0, 256.0, 300.0, 2048.0])
def test_size_on_a_cpu_costs_least(expected: float, workers: int) -> None:
    """Against every size, and against the largest one, which wastes the most rows."""

    def cost(size: int) -> float:
        return expected_passes(expected, size * workers) * (size + 24)

    chosen = physical_batch_size(Performance(), expected, copies=1, device="cpu", workers=workers)
    assert cost(chosen) <= min(cost(size) for size in range(8, min(512, int(expected + 4 * expected**0.5 + 2)) + 1, 8))
    if expected == 300.0:
        assert cost(chosen) < 0.9 * cost(512)


@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_what_is_asked_for_is_taken(rows: int) -> None:
    assert physical_batch_size(Performance(physical_batch=rows), 10, copies=3) == rows


@pytest.mark.parametrize(
    "settings", [{"device": "tpu"}, {"physical_batch": 0}, {"path": "ghost"}, {"checkpoint_every": 0}, {"epsilon": 1.0}]
)
def test_unusable_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Performance.model_validate(settings)
