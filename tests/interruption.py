"""A progress that interrupts: for tests of work that goes on where it stopped."""

from __future__ import annotations

from twinproof.progress import Silent


class StopAfter(Silent):
    """Interrupts the work when some batches are done, those of one ``stage`` where it is named."""

    def __init__(self, batches: int, stage: str = "") -> None:
        self.left, self.stage = batches, stage
        self.started: tuple[str, int, int] | None = None

    def start(self, stage: str, total: int, done: int = 0) -> None:
        """Remembers what was announced."""
        self.started = (stage, total, done)

    def advance(self, units: int = 1) -> None:
        """Counts what was really done."""
        if units and self.started and self.stage in ("", self.started[0]):
            self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
