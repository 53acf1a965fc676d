"""A thread that gives this rank's signs of life and listens for signs and last words of the others."""

from __future__ import annotations

import os
import sys
import threading

from twinproof.training.distributed.farewell import INTERVAL, Farewell, Silence
from twinproof.training.distributed.rank_error import RankError, broken, gone

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
