"""How the benchmark of several processes counts: by the clock and by the core, from the first step to the last."""

from __future__ import annotations

import os
import time
from pathlib import Path

import benchmarks_path  # noqa: F401  (first: it makes `distributed_cpu` importable)
import pytest

from distributed_cpu import Clock, Turn, by_clock, by_core, on_core

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def turn(one: float, many: float) -> Turn:
    return {
        "one": {"seconds": one, "core_seconds": [8.0]},
        "many": {"seconds": many, "core_seconds": [3.0, 4.0]},
    }


def test_a_clock_counts_between_the_first_step_and_the_last() -> None:
    clock = Clock([])
    clock.marks = [(10.0, [1.0, 2.0]), (11.0, [1.5, 2.5]), (14.0, [3.0, 6.0])]
    assert clock.taken() == {"seconds": 4.0, "core_seconds": [2.0, 4.0]}


@needs_proc
def test_time_on_a_core_is_that_of_the_process() -> None:
    before, began = on_core(os.getpid()), time.process_time()
    while time.process_time() - began < 0.3:
        pass
    assert on_core(os.getpid()) - before == pytest.approx(time.process_time() - began, abs=0.1)
    clock = Clock([os.getpid()])
    clock.advance()
    assert clock.marks[0][1] == pytest.approx([time.process_time()], abs=0.2)


def test_ratios_are_of_one_process_over_many() -> None:
    assert by_clock(turn(4.0, 2.0)) == 2.0
    assert by_core(turn(4.0, 2.0)) == 2.0, "the busiest of them"
