"""Progress bars with rate and time left, on stderr; plain lines where no terminal is there to draw on."""

from __future__ import annotations

from types import TracebackType

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


class _Rate(ProgressColumn):
    """Units per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s")


class Bars:
    """A ``twinproof.progress.Progress`` that draws; use it as a context manager."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description:<11}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bars.stop()

    def start(self, stage: str, total: int, done: int = 0) -> None:
        """Opens a bar."""
        self._task = self._bars.add_task(stage, total=total, completed=done)

    def advance(self, units: int = 1) -> None:
        """Moves the open bar."""
        if self._task is not None:
            self._bars.advance(self._task, units)

    def say(self, text: str) -> None:
        """Prints a line above the bars."""
        if self._console.is_terminal:
            self._bars.print(text, highlight=False)
        else:
            typer.echo(text, err=True)
