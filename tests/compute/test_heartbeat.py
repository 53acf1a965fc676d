"""A lost rank is named: by the error that it left with, or by its silence; one that is only busy never is."""

from __future__ import annotations

from typing import Any, cast

import pytest

from twinproof.compute.heartbeat import Heartbeat


class FakeStore:
    """A store in memory, and a clock that moves when somebody sleeps; ``living`` ranks beat meanwhile."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.now = 0.0
        self.living: list[Heartbeat] = []
        self.broken = False

    def set(self, key: str, value: str, /) -> None:
        self._answer()
        self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        self._answer()
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        self._answer()
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int, /) -> int:
        self._answer()
        self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
        return int(self.values[key])

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if int(self.now + seconds) > int(self.now):
            for rank in self.living:
                rank.beat()
        self.now += seconds

    def _answer(self) -> None:
        if self.broken:
            raise RuntimeError("connection closed")


def world_of(count: int) -> tuple[FakeStore, list[Heartbeat]]:
    store = FakeStore()
    ranks = [Heartbeat(cast("Any", store), rank, count, clock=store.clock, sleep=store.sleep) for rank in range(count)]
    for rank in ranks:
        rank.beat()
    store.living = list(ranks)
    return store, ranks


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_silent_rank_is_named_and_no_other(victim: int) -> None:
    store, ranks = world_of(4)
    store.living.remove(ranks[victim])
    error = ranks[3].reason()
    assert error.where == f"rank {victim}"
    assert error.lost == (victim,)
    assert store.now < 30
    assert "--resume" in error.fix


def test_the_error_of_a_rank_is_passed_on_at_once() -> None:
    store, ranks = world_of(3)
    ranks[1].leave({"what": "the data are broken", "where": "blobs.npz", "got": "a hole", "wanted": "data", "fix": "mend them"})
    for error in (ranks[0].reason(), ranks[2].stopped()):
        assert error is not None
        found = (error.what, error.where, error.got, error.fix)
        assert found == ("the data are broken", "rank 1, blobs.npz", "a hole", "mend them")
        assert error.lost == ()
    assert store.now == 0


def test_a_rank_that_has_finished_is_not_missed() -> None:
    store, ranks = world_of(2)
    ranks[1].leave({})
    store.living.remove(ranks[1])
    assert ranks[0].stopped() is None
    assert "separated" in ranks[0].reason().what


def test_where_all_are_alive_nobody_is_named() -> None:
    _, ranks = world_of(3)
    error = ranks[2].reason()
    assert (error.lost, error.where) == ((), "")


@pytest.mark.parametrize(("rank", "lost"), [(0, ()), (1, (0,))])
def test_a_store_that_is_gone_means_that_rank_0_is(rank: int, lost: tuple[int, ...]) -> None:
    store, ranks = world_of(2)
    store.broken = True
    assert ranks[rank].reason().lost == lost


def test_rank_0_gets_time_to_print() -> None:
    store, ranks = world_of(2)
    assert not ranks[1].first_prints()
    assert store.now < 30
    ranks[0].leave({"what": "something"})
    assert ranks[1].first_prints()


def test_silence_is_counted_from_the_last_beat() -> None:
    store, ranks = world_of(2)
    ranks[0].listen()
    store.now = 5
    ranks[0].listen()
    assert ranks[0].silent(4) == [1]
    ranks[1].beat()
    ranks[0].listen()
    assert ranks[0].silent(0) == []


def test_rank_0_waits_for_all_who_can_still_read() -> None:
    store, ranks = world_of(4)
    ranks[0].leave({"what": "no room"})
    ranks[1].leave({"what": "no room"})
    ranks[0].wait_until_read(lost=(2, 3))
    assert store.now == 0
    ranks[0].wait_until_read(lost=(2,))  # rank 3 never leaves
    assert 10 < store.now < 30
    ranks[3].leave({})
    before = store.now
    ranks[0].wait_until_read(lost=(2,))
    assert store.now == before
