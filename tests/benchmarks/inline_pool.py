"""A pool of processes that is none, for tests of what the work of a pool makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any


class Inline:
    """A pool that works at once, and in this process."""

    def __init__(self, processes: int, **named: Any) -> None:
        self.processes = processes

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, work: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        """See ``Executor``."""
        return map(work, *arguments)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """See ``Executor``."""
        done: Future[Any] = Future()
        done.set_result(work(*arguments))
        return done
