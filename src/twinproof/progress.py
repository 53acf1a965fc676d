"""Progress of long work; the command line draws bars, a library call stays silent."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the stages of long work."""

    def start(self, stage: str, total: int, done: int = 0) -> None:
        """A stage of ``total`` units begins, ``done`` of which were finished earlier."""

    def advance(self, units: int = 1) -> None:
        """``units`` more are done."""

    def say(self, text: str) -> None:
        """Something worth reading now."""


class Silent:
    """Says nothing."""

    def start(self, stage: str, total: int, done: int = 0) -> None:
        """Nothing."""

    def advance(self, units: int = 1) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""
