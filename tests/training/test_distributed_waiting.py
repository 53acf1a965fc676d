"""Waiting for an operation of all ranks in moments: one that ends between two looks is over, and one that fails has failed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from twinproof.compute.process_ranks import ProcessRanks


class Work:
    """What is used of torch's: a wait with a time limit raises when that is over, and raises what went wrong."""

    def __init__(self, *, ends_at: str, error: str = "") -> None:
        self._ends_at, self._error = ends_at, error
        self._ended = ends_at == "once"

    def wait(self, limit: timedelta | None = None) -> bool:
        if not self._ended:
            self._ended = self._ends_at == "just after the moment"
            raise RuntimeError("Operation timed out!")
        if self._error:
            raise RuntimeError(self._error)
        return True

    def is_completed(self) -> bool:
        return self._ended


def over(work: Work) -> bool:
    return ProcessRanks._over(cast("Any", work))


@pytest.mark.parametrize(("ends_at", "wanted"), [("once", True), ("just after the moment", True), ("never", False)])
def test_a_moment_that_is_over_is_no_broken_connection(ends_at: str, wanted: bool) -> None:
    """Planted once by ourselves: an operation that ended right after the moment counted as one that had failed."""
    assert over(Work(ends_at=ends_at)) is wanted


@pytest.mark.parametrize("ends_at", ["once", "just after the moment"])
def test_what_went_wrong_is_raised(ends_at: str) -> None:
    with pytest.raises(RuntimeError, match="closed by peer"):
        over(Work(ends_at=ends_at, error="Connection closed by peer"))
