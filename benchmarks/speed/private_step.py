"""The private step of every method on one task: checked against one answer, timed by turns, its memory taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from speed.costs import training_cost
from speed.peers.peer import NotRun, Peer, Step, relative_difference
from speed.peers.torch_modes import per_record
from speed.timing import Limits, Times, step_bytes, take_turns, wait_for
from speed.workloads import Task

BASELINE, PLAIN = "Opacus hooks", "plain SGD"
# Float32 and a max-pool that follows another of two equal inputs stay far below; a wrong gradient far above.
_TOLERANCE = 1e-2
_CHECKED_RECORDS = 8


@dataclass(frozen=True)
class Row:
    """One method on one task; all numbers are None where it was not run, and ``note`` says why."""

    workload: str
    records: int
    copies: int
    records_per_pass: int
    method: str
    private: bool
    note: str = ""
    seconds: tuple[float, ...] = ()
    records_per_second: float | None = None
    ratio_to_opacus: float | None = None
    ratio_to_sgd: float | None = None
    fraction_of_limit: float | None = None
    limited_by: str | None = None
    step_bytes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self)


def measure_task(task: Task, peers: Sequence[Peer], turns: int, limits: Limits) -> list[Row]:
    """A row for every method, in the given order."""
    rows: dict[str, Row] = {}
    steps: dict[str, Step] = {}
    for peer in peers:
        row = Row(task.workload.name, task.records, task.copies, task.records_per_pass, peer.name, private=peer.private)
        try:
            steps[peer.name] = _prepared(peer, task)
            rows[peer.name] = replace(row, note=steps[peer.name].note)
        except NotRun as reason:
            rows[peer.name] = replace(row, note=str(reason))
    times = take_turns({name: step.run for name, step in steps.items()}, turns, task.device)
    fastest, limited_by = training_cost(task).fastest(limits)
    for name, step in steps.items():
        rate = task.records / times[name].median
        rows[name] = replace(
            rows[name],
            seconds=times[name].seconds,
            records_per_second=rate,
            ratio_to_opacus=_ratio(times, name, BASELINE),
            ratio_to_sgd=_ratio(times, name, PLAIN),
            fraction_of_limit=rate / fastest,
            limited_by=limited_by,
            step_bytes=_memory(step, task),
        )
    return list(rows.values())


def _prepared(peer: Peer, task: Task) -> Step:
    """The peer's step, after it gave the right answer on a few records and ran once on all; NotRun otherwise."""
    few = task.first(min(_CHECKED_RECORDS, task.records))
    try:
        if peer.private:
            with _full_precision():
                difference = relative_difference(peer.step_for(few).run(), per_record(few).run())
            if not difference <= _TOLERANCE:
                raise NotRun(f"wrong answer: off by {difference:.2g} of the clipped sum's length")
        step = peer.step_for(task)
        step.run()
        wait_for(task.device)
    except torch.OutOfMemoryError as error:
        raise NotRun("out of memory") from error
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise NotRun(f"failed: {(str(error).strip().splitlines() or [type(error).__name__])[0][:120]}") from error
    return step


@contextmanager
def _full_precision() -> Iterator[None]:
    """Convolutions without TF32: deep ReLU networks would turn its rounding into differences as large as a mistake."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _ratio(times: dict[str, Times], name: str, baseline: str) -> float | None:
    return times[name].speed_over(times[baseline]) if baseline in times else None


def _memory(step: Step, task: Task) -> int | None:
    if step.reserved_bytes is not None or not step.shows_memory:
        return step.reserved_bytes
    return step_bytes(step.run, task.device)
