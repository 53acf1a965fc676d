"""Progress on stderr: bars with rate and time left on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from twinproof.progress import Progress as Told

SECONDS_BETWEEN_LINES = 30.0
_LOOK_EVERY = 0.5


@contextmanager
def shown() -> Iterator[Told]:
    """Shows progress while the block runs: bars where stderr is a terminal, lines where it is a file or a pipe."""
    console = Console(stderr=True)
    if console.is_terminal:
        bars = Bars(console)
        with bars.drawn:
            yield bars
        return
    lines, done = Lines(_echo), threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_EVERY):
            lines.look()

    # A thread of its own: a step, or the work before the first one, may take longer than the time between two lines.
    watcher = threading.Thread(target=look, name="progress", daemon=True)
    watcher.start()
    try:
        yield lines
    finally:
        done.set()
        watcher.join()


def _echo(text: str) -> None:
    with suppress(OSError):  # whoever read it is gone; the work goes on
        typer.echo(text, err=True)


class _Rate(ProgressColumn):
    """Units per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s")


class Bars:
    """A ``twinproof.progress.Progress`` that draws bars."""

    def __init__(self, console: Console) -> None:
        self.drawn = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID | None = None

    def start(self, stage: str, total: int, done: int = 0) -> None:
        """Opens a bar."""
        self._task = self.drawn.add_task(stage, total=total, completed=done)

    def advance(self, units: int = 1) -> None:
        """Moves the open bar."""
        if self._task is not None:
            self.drawn.advance(self._task, units)

    def say(self, text: str) -> None:
        """Prints a line above the bars."""
        self.drawn.print(text, highlight=False)


class Lines:
    """A ``twinproof.progress.Progress`` that writes lines: when a stage begins and ends, and every 30 seconds in between.

    ``look`` writes a line if one is due; somebody has to call it now and then.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock, self._lock = write, clock, threading.RLock()
        self._began = self._told = clock()
        self._stage, self._total, self._done, self._before = "", 0, 0, 0

    def start(self, stage: str, total: int, done: int = 0) -> None:
        """A line about the stage that begins."""
        with self._lock:
            self._stage, self._total, self._done, self._before = stage, total, done, done
            self._began = self._clock()
            self._tell()

    def advance(self, units: int = 1) -> None:
        """Counts, and writes a line where the stage ends or one is due."""
        with self._lock:
            self._done += units
            if self._done == self._total:
                self._tell()
            else:
                self.look()

    def say(self, text: str) -> None:
        """Writes a line."""
        with self._lock:
            self._write(text)

    def look(self) -> None:
        """Writes a line if the last one is 30 seconds old."""
        with self._lock:
            if self._clock() - self._told >= SECONDS_BETWEEN_LINES:
                self._tell()

    def _tell(self) -> None:
        self._told = self._clock()
        self._write(self._line(self._told - self._began))

    def _line(self, seconds: float) -> str:
        if not self._stage or self._total < 1:
            return f"{self._stage or 'preparing'}: {_clock_time(seconds)} so far"
        share = f"{self._stage}: {self._done} of {self._total} ({100 * self._done // self._total} %)"
        rate = (self._done - self._before) / seconds if seconds > 0 else 0.0
        if not rate:
            return share if seconds < 1 else f"{share}, {_clock_time(seconds)} so far"
        left = (self._total - self._done) / rate
        return f"{share}, {rate:,.3g}/s, {_clock_time(seconds)} so far, {_clock_time(left)} left"


def _clock_time(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
