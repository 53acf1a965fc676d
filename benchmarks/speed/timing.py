"""Timing by turns: each turn runs every method once, so that a busy moment of the machine strikes all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

SHORTEST_TURN = 0.1
_MOST_CALLS = 1000


@dataclass(frozen=True)
class Times:
    """Seconds of one method, turn by turn."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over turns."""
        return statistics.median(self.seconds)

    def speed_over(self, other: Times) -> float:
        """How many times as fast as ``other``: the median of the ratios inside each turn."""
        return statistics.median(theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=True))


def wait_for(device: torch.device) -> None:
    """Waits until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of one call, until its result is there."""
    wait_for(device)
    began = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - began


def take_turns(
    methods: Mapping[str, Callable[[], object]], turns: int, device: torch.device, *, shortest: float = SHORTEST_TURN
) -> dict[str, Times]:
    """Seconds of one call of each method over ``turns`` turns.

    A turn before them warms up and says how often a method is called in its turn: so often that the turn lasts ``shortest``
    seconds, since a single call of a millisecond is mostly noise.
    """
    calls = {name: calls_for(seconds_of(work, device), shortest) for name, work in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(turns):
        for name, work in methods.items():
            seconds[name].append(seconds_of(_repeated(work, calls[name]), device) / calls[name])
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def calls_for(seconds: float, shortest: float) -> int:
    """How many calls of so many seconds fill a turn."""
    return max(1, min(_MOST_CALLS, math.ceil(shortest / max(seconds, 1e-9))))


def _repeated(work: Callable[[], object], calls: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            work()

    return run
