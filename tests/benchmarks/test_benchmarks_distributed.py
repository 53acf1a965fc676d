"""How the benchmark of several processes counts: by the clock and by the core, from the first step to the last."""

from __future__ import annotations

import benchmarks_path  # noqa: F401  (first: it makes `distributed_cpu` importable)
import pytest

from distributed_cpu import Clock, ratio


def test_a_clock_counts_between_the_first_step_and_the_last() -> None:
    clock = Clock()
    clock.marks = [(10.0, 1.0), (11.0, 1.5), (14.0, 3.0)]
    assert clock.taken() == {"seconds": 4.0, "cpu_seconds": 2.0}
    clock.advance()
    assert len(clock.marks) == 4
    assert clock.marks[-1][0] > 0


@pytest.mark.parametrize(("name", "wanted"), [("seconds", 2.0), ("cpu_seconds", 4.0)])
def test_a_ratio_is_one_process_over_many(name: str, wanted: float) -> None:
    turn = {"one": {"seconds": 4.0, "cpu_seconds": 8.0}, "many": {"seconds": 2.0, "cpu_seconds": 2.0}}
    assert ratio(turn, name) == wanted
