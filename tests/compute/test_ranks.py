"""Ranks over gloo: sums in order, messages, agreement, how they end; and how passes are shared among them."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from rank_processes import die, quick_to_part, run_ranks
from twinproof.compute.process_ranks import ProcessRanks
from twinproof.compute.ranks import ALONE, Ranks, Share
from twinproof.errors import DataError, RunError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
LENGTH = 1001


@pytest.fixture
def quick() -> Iterator[None]:
    with quick_to_part():
        yield


def vector(rank: int) -> torch.Tensor:
    """Numbers of very different size: their float64 sum depends on the order."""
    generator = torch.Generator().manual_seed(rank)
    size = 10.0 ** torch.randint(-8, 9, (LENGTH,), generator=generator).double()
    return torch.randn(LENGTH, generator=generator, dtype=torch.float64) * size


def in_order(world: int) -> torch.Tensor:
    total = vector(0).clone()
    for rank in range(1, world):
        total += vector(rank)
    return total


@pytest.mark.parametrize("world", [2, 4])
def test_sums_are_in_the_order_of_the_ranks_to_the_bit(world: int) -> None:
    def work(ranks: Ranks) -> list[str]:
        time.sleep(0.02 * ((ranks.rank * 3) % ranks.world))  # whoever comes first
        return [value.hex() for value in ranks.sum_in_order(vector(ranks.rank)).tolist()]

    wanted = [value.hex() for value in in_order(world).tolist()]
    assert all(ended.value == wanted for ended in run_ranks(world, work))
    backwards = sum((vector(rank) for rank in reversed(range(world))), torch.zeros(LENGTH, dtype=torch.float64))
    if world > 2:
        assert not torch.equal(backwards, in_order(world)), "the vectors must be able to tell an order from another"


def test_messages_of_any_length_arrive() -> None:
    def work(ranks: Ranks) -> list[object]:
        ranks.check_device(torch.device("cpu"))
        ranks.agree("nothing", "the same")
        sent = ranks.from_first(b"\x00\xffkey" if ranks.is_first else None)
        nothing = ranks.from_first(b"")
        words = ranks.gathered(b"x" * ranks.rank)
        return [sent.hex(), len(nothing), [len(word) for word in words], ranks.smallest(7 - ranks.rank), ranks.world]

    for ended in run_ranks(3, work):
        assert ended.value == [b"\x00\xffkey".hex(), 0, [0, 1, 2], 5, 3]


def test_numbers_are_given_to_one_rank_each_and_rows_do_not_mix() -> None:
    def work(ranks: Ranks) -> list[list[int]]:
        return [list(itertools.takewhile(last.__gt__, ranks.numbers())) for last in (20, 5)]

    ends = run_ranks(3, work)
    for row, last in enumerate((20, 5)):
        taken = [ended.value[row] for ended in ends]
        assert sorted(itertools.chain(*taken)) == list(range(last))
        assert all(numbers == sorted(numbers) for numbers in taken)


@pytest.mark.usefixtures("quick")
def test_numbers_end_when_a_rank_has_stopped() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise DataError("the data are broken", where="blobs.npz", got="a hole")
        for _ in ranks.numbers():
            time.sleep(0.05)

    error = run_ranks(2, work)[0].error
    assert error is not None
    assert (error["what"], error["where"]) == ("the data are broken", "rank 1, blobs.npz")


@pytest.mark.usefixtures("quick")
def test_a_disagreement_stops_everybody_with_one_error() -> None:
    def work(ranks: Ranks) -> None:
        ranks.agree("the colour", "blue" if ranks.rank != 2 else "red")

    ends = run_ranks(3, work)
    for ended in ends:
        assert ended.error is not None
        assert ended.error["what"] == "the ranks do not agree on the colour"
        assert (ended.error["where"], ended.error["got"], ended.error["wanted"]) == ("rank 2", "red", "blue, as on rank 0")
    assert [ended.quiet for ended in ends] == [False, True, True], "one message is enough"


@pytest.mark.usefixtures("quick")
def test_the_error_of_one_rank_is_told_by_rank_0() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise DataError("the data are broken", where="blobs.npz", got="a hole")
        ranks.wait()

    first, other = run_ranks(2, work)
    assert first.error is not None
    assert other.error is not None
    assert (first.error["what"], first.error["where"]) == ("the data are broken", "rank 1, blobs.npz")
    assert (first.quiet, other.quiet) == (False, True)


@pytest.mark.slow
def test_rank_0_leaves_when_a_busy_rank_has_read_why() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.is_first:
            raise RunError("there is no room", where="the disk")
        time.sleep(3)  # busy while rank 0, which keeps the store, wants to leave
        ranks.wait()

    for ended in run_ranks(2, work):
        assert ended.error is not None
        assert ended.error["what"] == "there is no room"


def test_a_killed_rank_is_named_by_the_others_in_time() -> None:
    def work(ranks: Ranks) -> None:
        ranks.wait()
        if ranks.rank == 2:
            die()
        ranks.sum_in_order(torch.ones(5))

    began = time.monotonic()
    ends = run_ranks(3, work)
    assert time.monotonic() - began < 30
    assert ends[2].signal == signal.SIGKILL
    for ended in ends[:2]:
        assert ended.error is not None
        assert (ended.error["what"], ended.error["where"]) == ("a rank was lost", "rank 2")


@pytest.mark.slow
def test_a_frozen_rank_is_found_by_its_silence() -> None:
    """Nothing breaks when a process is stopped: no connection closes."""
    stopped = []

    def work(ranks: Ranks) -> None:
        pids = [int(found) for found in ranks.gathered(str(os.getpid()).encode())]
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        stopped.append(pids[1])
        try:
            ranks.wait()
        finally:
            os.kill(pids[1], signal.SIGKILL)  # only this child, which is ours

    ends = run_ranks(2, work, patience=4)
    assert ends[0].error is not None
    assert ends[0].error["where"] == "rank 1"
    assert ends[1].signal == signal.SIGKILL


def test_one_process_speaks_to_itself() -> None:
    ALONE.check_device(torch.device("cpu"))
    ALONE.agree("anything", "a")
    ALONE.wait()
    assert ALONE.gathered(b"a") == [b"a"]
    assert ALONE.from_first(b"b") == b"b"
    assert ALONE.smallest(3) == 3
    assert list(itertools.islice(ALONE.numbers(), 3)) == [0, 1, 2]
    assert ALONE.sum_in_order(torch.ones(2, dtype=torch.float32)).dtype == torch.float64


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
def test_an_operation_that_is_late_is_no_broken_connection(ends_at: str, wanted: bool) -> None:
    """Planted once by ourselves: an operation that ended right after the moment counted as one that had failed."""
    assert over(Work(ends_at=ends_at)) is wanted


@pytest.mark.parametrize("ends_at", ["once", "just after the moment"])
def test_what_went_wrong_is_raised(ends_at: str) -> None:
    with pytest.raises(RuntimeError, match="closed by peer"):
        over(Work(ends_at=ends_at, error="Connection closed by peer"))


def parts_of(shares: list[Share], indices: Tensor, size: int) -> list[int]:
    return sorted(int(index) for share in shares for index in share.own(indices, size))


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize(("drawn", "size"), [(0, 8), (1, 1), (8, 8), (41, 8), (40, 1)])
def test_the_shares_are_a_partition_into_the_same_passes(world: int, drawn: int, size: int) -> None:
    indices = 3 * torch.arange(drawn) + 1
    shares = [Share(rank, world) for rank in range(world)]
    assert parts_of(shares, indices, size) == indices.tolist()
    passes = list(torch.split(indices, size)) if drawn else []
    found = {}
    for share in shares:
        own = share.own(indices, size)
        for mine, chunk in enumerate(torch.split(own, size) if len(own) else []):
            assert share.has(share.number(mine))
            found[share.number(mine)] = chunk.tolist()
    assert [found[number] for number in range(len(passes))] == [chunk.tolist() for chunk in passes]


class Overlapping(Share):
    """The bug: the first pass is everybody's."""

    def own(self, indices: Tensor, size: int) -> Tensor:
        return torch.cat([indices[:size], super().own(indices, size)]) if self.rank else super().own(indices, size)


def test_a_pass_that_two_ranks_have_is_caught() -> None:
    indices = torch.arange(20)
    assert parts_of([Overlapping(0, 2), Overlapping(1, 2)], indices, 8) != indices.tolist()


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank: int, world: int) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        Share(rank, world)
