"""Giving memory back: nothing happens without a GPU, and what is in use stays."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from twinproof.training.step_sums import free_device_memory, power_of_two_below


class Knot:
    """An object that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize(("started", "calls"), [(False, 0), (True, 1)])
def test_only_a_device_that_is_in_use_is_asked(monkeypatch: pytest.MonkeyPatch, started: bool, calls: int) -> None:
    """Asking one that is not would start it, and take memory where there was none."""
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty"))
    free_device_memory()
    assert len(asked) == calls


def test_what_is_finished_goes_and_what_is_in_use_stays() -> None:
    kept, knot = torch.arange(5), Knot()
    gone = weakref.ref(knot)
    gc.disable()
    try:
        del knot
        assert gone() is not None, "nobody has collected yet"
        free_device_memory()
    finally:
        gc.enable()
    assert gone() is None
    assert kept.tolist() == [0, 1, 2, 3, 4]


def test_a_machine_without_a_gpu_is_left_alone() -> None:
    before = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    free_device_memory()
    free_device_memory()
    assert torch.cuda.is_initialized() is before  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("value", "wanted"), [(0.2, 1), (1.0, 1), (3.9, 2), (4.0, 4), (1000.0, 512)])
def test_powers_of_two(value: float, wanted: int) -> None:
    assert power_of_two_below(value) == wanted
