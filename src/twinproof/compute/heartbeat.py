"""Heartbeats of ranks on their launcher's store: how a lost rank is found and named.

Torch's own means do not serve: a time limit of an operation, or of ``monitored_barrier``, says that somebody is late, and ranks
may rightly work for hours between two operations.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from twinproof.compute.ranks import RankError, broken, gone, stopped

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

INTERVAL = 1.0
"""Seconds between two heartbeats of a rank, also of a busy one."""
PATIENCE = 15.0
"""Seconds without a heartbeat after which a rank counts as lost."""
# After a broken connection: long enough for several heartbeats, so that their absence means something.
_LISTEN, _MISSING, _LOOK = 5.0, 3.0, 0.1
# What rank 0 gets to learn of another one's error and to print it; then, to end before its launcher ends it.
_WAIT_FOR_FIRST, _LET_IT_PRINT = 10.0, 1.0
# What the others get to read why rank 0 stops, before it leaves and may take the store along. A rank that is busy with its own
# work learns it from its heartbeat, which ends the process some eight seconds later at the latest; launchers kill after thirty.
_LET_THEM_READ = 15.0
# What the work gets to end by itself with a proper error. A wait for a GPU never ends, nor one inside torch for a frozen rank.
_GRACE = 8.0
_FAILED = 2
_TO_END = 10.0


class Heartbeat(threading.Thread):
    """Beats every second, listens for the others, and keeps in ``error`` that one of them has stopped or is lost.

    Work that waits for others looks at ``error``. Work that cannot look is ended with its process some seconds later, as if it
    were killed, which a run survives at any moment. ``clock`` and ``sleep`` are replaced in tests.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        *,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.error: RankError | None = None
        self._store, self._rank = store, rank
        self._others = [other for other in range(world) if other != rank]
        self._patience, self._grace = patience, _GRACE
        self._clock, self._sleep = clock, sleep
        self._beats = 0
        self._heard: dict[int, tuple[bytes | None, float]] = {}  # the last beat of each, and when it was new
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
                self._end_process(self.error)
            self._look()  # the others still want heartbeats

    def end(self) -> None:
        """Stops beating and listening; returns when the thread has ended, as it must before its process does."""
        self._over.set()
        self.join(_TO_END)

    def beat(self) -> None:
        """Says that this rank is alive."""
        self._beats += 1
        self._store.set(f"beat/{self._rank}", str(self._beats))

    def leave(self, error: Mapping[str, str]) -> None:
        """Says that this rank leaves: with the fields of its error, or with none at the end of its work."""
        self._store.set(f"left/{self._rank}", json.dumps(dict(error)))

    def next_number(self, purpose: str) -> int:
        """0, 1, 2 and so on, each to one rank alone."""
        return self._store.add(f"numbers/{purpose}", 1) - 1

    def listen(self) -> None:
        """Takes in the heartbeats that there are now; a rank that has left is not expected to beat."""
        now, heard = self._clock(), self._heard
        beats = {rank: self._found(f"beat/{rank}") for rank in self._present()}
        self._heard = {
            rank: heard[rank] if rank in heard and heard[rank][0] == beat else (beat, now) for rank, beat in beats.items()
        }

    def silent(self, seconds: float) -> list[int]:
        """The ranks that have not beaten for longer than that."""
        return [rank for rank, (_, since) in self._heard.items() if self._clock() - since > seconds]

    def stopped(self) -> RankError | None:
        """The error of a rank that has left with one."""
        for rank in self._others:
            if fields := json.loads(self._found(f"left/{rank}") or "{}"):
                return stopped(rank, fields)
        return None

    def reason(self) -> RankError:
        """Why the work was cut: the error of a rank that has left, or the ranks that beat no more."""
        try:
            ends = self._clock() + _LISTEN
            while self._clock() < ends:
                self.listen()
                if (error := self.stopped()) is not None:
                    return error
                self._sleep(_LOOK)
            lost = self.silent(_MISSING)
            return gone(lost) if lost else broken()
        except RuntimeError:  # the store itself is gone: rank 0 keeps it, or the launcher on the machine of rank 0
            return self._without_store()

    def first_prints(self) -> bool:
        """Whether rank 0 has left with an error too, and so prints it; gives it the time to."""
        ends = self._clock() + _WAIT_FOR_FIRST
        try:
            while not json.loads(self._found("left/0") or "{}"):
                if self._clock() >= ends:
                    return False
                self._sleep(_LOOK)
        except RuntimeError:  # rank 0 kept the store, and has left with it
            return True
        self._sleep(_LET_IT_PRINT)
        return True

    def wait_until_read(self, lost: Collection[int] = ()) -> None:
        """Returns when all others but the ``lost`` have left too and need the store no longer, or when time is up."""
        ends = self._clock() + _LET_THEM_READ
        while self._clock() < ends and any(rank not in lost for rank in self._present()):
            self._sleep(_LOOK)

    def _present(self) -> list[int]:
        return [rank for rank in self._others if not self._store.check([f"left/{rank}"])]

    def _found(self, key: str) -> bytes | None:
        return self._store.get(key) if self._store.check([key]) else None

    def _without_store(self) -> RankError:
        return broken() if self._rank == 0 else gone([0])

    def _look(self) -> RankError | None:
        try:
            self.beat()
            self.listen()
            error = self.stopped()
        except RuntimeError:
            return self._without_store()
        lost = self.silent(self._patience)
        return error or (gone(lost) if lost else None)

    def _end_process(self, error: RankError) -> None:
        if self._rank == 0 or 0 in error.lost:
            sys.stderr.write(f"error: {error.message()}\n")
            sys.stderr.flush()
        os._exit(_FAILED)
