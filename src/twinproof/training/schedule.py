"""How the learning rate goes down during a run: a function of the step's number and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum

Rate = Callable[[int], float]
"""The learning rate of a step, counted from 0."""


class Schedule(StrEnum):
    """The shapes of the curve from the first step to the last."""

    CONSTANT = "constant"
    COSINE = "cosine"  # half a wave: slow, fast, slow
    LINEAR = "linear"


def share_of_rate(schedule: Schedule, step: int, steps: int) -> float:
    """What is left of the learning rate in ``step`` of ``steps``: all of it in step 0, and more than nothing in the last.

    Guarantees
        It depends on public numbers only, never on a loss: a schedule that watches the training records would have to be
        paid for.
    """
    done = step / steps
    match schedule:
        case Schedule.CONSTANT:
            return 1.0
        case Schedule.COSINE:
            return 0.5 * (1 + math.cos(math.pi * done))
        case Schedule.LINEAR:
            return 1 - done


def rate_of(schedule: Schedule, learning_rate: float, steps: int) -> Rate | None:
    """The learning rate of every step of a run of ``steps``; None where it never changes."""
    if schedule is Schedule.CONSTANT:
        return None
    return lambda step: learning_rate * share_of_rate(schedule, step, steps)
