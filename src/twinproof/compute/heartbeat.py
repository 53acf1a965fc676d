"""Heartbeats of ranks on their launcher's store: how a lost rank is found and named.

The store also hands out numbers: work that ranks share without waiting for each other must end when one is lost, as well.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from twinproof.compute.ranks import RankError, broken, gone, stopped

INTERVAL = 1.0
"""Seconds between two signs of a living rank, whatever it is busy with."""
# After a broken connection: long enough for several signs, so that their absence means something.
_LISTEN = 5.0
_MISSING = 3.0
_LOOK = 0.1
# What rank 0 gets to learn of another one's error and to tell it; then, to end before its launcher ends it.
_WAIT_FOR_FIRST = 10.0
_LET_IT_TELL = 1.0
# What the others get to read why rank 0 stops, before it leaves and may take the store along. A rank that is busy with its own
# work learns it from its watch, which ends the process some eight seconds later at the latest; launchers kill after thirty.
_LET_THEM_READ = 15.0


class Store(Protocol):
    """What is used of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str, /) -> None:
        """Keeps ``value``."""

    def get(self, key: str, /) -> bytes:
        """The value."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys have values."""

    def add(self, key: str, amount: int, /) -> int:
        """Adds to a number that begins with 0; what it then is."""


class Farewell:
    """This rank's signs and last words, and what it hears of the others'.

    ``clock`` and ``sleep`` are those of :mod:`time`, unless a test says otherwise.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._rank = rank
        self._others = [other for other in range(world) if other != rank]
        self._clock, self._sleep = clock, sleep
        self._count = 0

    def give_sign(self) -> None:
        """Says that this rank is alive."""
        self._count += 1
        self._store.set(f"sign/{self._rank}", str(self._count))

    def speak(self, words: Mapping[str, str]) -> None:
        """This rank's last words: the fields of its error; none at the end of its work."""
        self._store.set(f"words/{self._rank}", json.dumps(dict(words)))

    def next_number(self, purpose: str) -> int:
        """0, 1, 2 and so on, each to one rank alone."""
        return self._store.add(f"numbers/{purpose}", 1) - 1

    def words_of(self, rank: int) -> dict[str, str] | None:
        """The last words of ``rank``, if it has spoken."""
        found = self._found(f"words/{rank}")
        return None if found is None else dict(json.loads(found))

    def signs(self) -> dict[int, bytes]:
        """The last sign of each of the others that has not taken its leave."""
        return {rank: self._found(f"sign/{rank}") or b"" for rank in self._others if self.words_of(rank) is None}

    def stopped(self) -> RankError | None:
        """The error of a rank that has stopped with one."""
        for rank in self._others:
            if words := self.words_of(rank):
                return stopped(rank, words)
        return None

    def reason(self) -> RankError:
        """Why the work was cut: the last words of a rank, else the ranks of which nothing more is heard."""
        try:
            silence, ends = Silence(self, self._clock), self._clock() + _LISTEN
            while self._clock() < ends:
                silence.listen()
                if (error := self.stopped()) is not None:
                    return error
                self._sleep(_LOOK)
            lost = silence.longer_than(_MISSING)
            return gone(lost) if lost else broken()
        except RuntimeError:  # the store itself is gone: rank 0 keeps it, or the launcher on the machine of rank 0
            return broken() if self._rank == 0 else gone([0])

    def first_tells(self) -> bool:
        """Whether rank 0 has ended with an error too, and so tells it; gives it the time to."""
        ends = self._clock() + _WAIT_FOR_FIRST
        try:
            while not self.words_of(0):
                if self._clock() >= ends:
                    return False
                self._sleep(_LOOK)
        except RuntimeError:  # rank 0 kept the store, and has left with it
            return True
        self._sleep(_LET_IT_TELL)
        return True

    def wait_until_read(self, lost: Collection[int] = ()) -> None:
        """Returns when all others but the ``lost`` have spoken too and need the store no longer, or when time is up."""
        ends = self._clock() + _LET_THEM_READ
        while self._clock() < ends and any(rank not in lost for rank in self.signs()):
            self._sleep(_LOOK)

    def _found(self, key: str) -> bytes | None:
        return self._store.get(key) if self._store.check([key]) else None


class Silence:
    """For how long each of the others has given no new sign."""

    def __init__(self, farewell: Farewell, clock: Callable[[], float] = time.monotonic) -> None:
        self._farewell = farewell
        self._clock = clock
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._present: list[int] = []

    def listen(self) -> None:
        """Takes in the signs that there are now."""
        signs = self._farewell.signs()
        self._present = list(signs)
        for rank, sign in signs.items():
            if rank not in self._heard or self._heard[rank][0] != sign:
                self._heard[rank] = (sign, self._clock())

    def longer_than(self, seconds: float) -> list[int]:
        """The ranks that have been silent for longer, and have not taken their leave."""
        return [rank for rank in self._present if self._clock() - self._heard[rank][1] > seconds]


PATIENCE = 15.0
"""Seconds of silence after which a rank counts as lost."""
# What the work gets to end by itself with a proper error. A wait for a GPU never ends, nor one inside torch for a frozen rank.
_GRACE = 8.0
_FAILED = 2
_TO_END = 10.0


class Watch(threading.Thread):
    """Gives a sign every second, and keeps in ``error`` that another rank has stopped or been silent for ``patience`` seconds.

    Work that waits for others looks at it. Work that cannot look is ended with its process some seconds later, as if it were
    killed, which a run survives at any moment.
    """

    def __init__(self, farewell: Farewell, *, speaks: bool, patience: float = PATIENCE, grace: float = _GRACE) -> None:
        super().__init__(name="signs of life", daemon=True)
        self.error: RankError | None = None
        self._farewell = farewell
        self._silence = Silence(farewell)
        self._speaks = speaks
        self._patience, self._grace = patience, grace
        self._over = threading.Event()

    def run(self) -> None:
        """The thread's work."""
        while not self._over.wait(INTERVAL):
            self.error = self.error or self._look()
            if self.error is not None:
                break
        while self.error is not None and not self._over.wait(INTERVAL):
            self._grace -= INTERVAL
            if self._grace <= 0:
                self._end(self.error)
            self._look()  # the others still want signs

    def end(self) -> None:
        """No more signs are given or expected; returns when the thread has ended, as it must before its process does."""
        self._over.set()
        self.join(_TO_END)

    def _look(self) -> RankError | None:
        try:
            self._farewell.give_sign()
            self._silence.listen()
            stopped = self._farewell.stopped()
        except RuntimeError:
            return broken() if self._speaks else gone([0])
        lost = self._silence.longer_than(self._patience)
        return stopped or (gone(lost) if lost else None)

    def _end(self, error: RankError) -> None:
        if self._speaks or 0 in error.lost:
            sys.stderr.write(f"error: {error.message()}\n")
            sys.stderr.flush()
        os._exit(_FAILED)
