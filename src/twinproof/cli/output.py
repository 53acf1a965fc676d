"""Printing and progress: answers on stdout as a table or one JSON object, progress and errors on stderr."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from rich.table import Table
from rich.text import Text

from twinproof.errors import TwinproofError

if TYPE_CHECKING:
    from twinproof.progress import Progress as AnyProgress

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.", show_default="auto")]
DataRoot = Annotated[
    Path | None, typer.Option(help="Folder of the standard data sets.", show_default="the variable TWINPROOF_DATA")
]
DataPlace = Annotated[str | None, typer.Option("--data", help="Where the data are now, if they were moved.")]
Test = Annotated[
    Path | None, typer.Option("--test", help="File or folder of test records, which are public; for own data without them.")
]
PublicFraction = Annotated[
    float | None,
    typer.Option(
        "--public-fraction",
        help="Instead of --test: the share of your records that becomes the test part. They have no privacy: raw values and "
        "labels may appear in certificates.csv, attacks.safetensors and the report.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Name of the result.", show_default="the norm, and the bound where it is not the best"),
]
Certificates = Annotated[
    str | None,
    typer.Option("--certificates", help="Name of the certification.", show_default="that in the same norm, or the only one"),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what has this name and other settings; other names are not touched.")
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]


def given_options(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Those of the parameters ``names`` that the call sets, as they are typed."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        f"--{name.replace('_', '-')}" for name, source in sources.items() if source is not None and source.name != "DEFAULT"
    ]


def print_json(value: Any) -> None:
    """Prints the answer of ``--json``. Infinity, which JSON does not have, is written as text."""
    typer.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


def print_error(error: TwinproofError, *, as_json: bool) -> None:
    """Prints what happened, where, what was given, what is needed and how to fix it."""
    if as_json:
        print_json({"error": error.as_dict()})
    else:
        typer.echo(f"error: {error.message()}", err=True)


def print_rows(rows: Sequence[Sequence[str]], *, header: Sequence[str] = ()) -> None:
    """Prints aligned columns. Cells are wrapped to the width of a terminal; in a file or a pipe each row is one line."""
    table = Table(box=None, show_header=bool(header), pad_edge=False, padding=(0, 2, 0, 0))
    for name in header or (rows[0] if rows else ()):
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 100_000)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BETWEEN_CHECKS = 0.5


@contextmanager
def shown() -> Iterator[AnyProgress]:
    """Shows progress while the block runs: bars where stderr is a terminal, lines where it is a file or a pipe."""
    console = Console(stderr=True)
    if console.is_terminal:
        bars = Bars(console)
        with bars.drawn:
            yield bars
        return
    lines, done = Lines(_echo), threading.Event()

    def watch() -> None:
        while not done.wait(_SECONDS_BETWEEN_CHECKS):
            lines.look()

    # In a thread: one step, or the work before the first one, may take longer than the time between two lines.
    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield lines
    finally:
        done.set()
        watcher.join()


def _echo(text: str) -> None:
    with suppress(OSError):  # nobody reads stderr any more; the work goes on
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
        self._task = self.drawn.add_task(stage, total=total, completed=done)

    def advance(self, units: int = 1) -> None:
        if self._task is not None:
            self.drawn.advance(self._task, units)

    def say(self, text: str) -> None:
        self.drawn.print(text, highlight=False)


class Lines:
    """A ``twinproof.progress.Progress`` that writes lines: at the start and end of a stage, and every 30 seconds in between.

    Something has to call ``look`` regularly; it writes a line if one is due.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock, self._lock = write, clock, threading.RLock()
        self._began = self._written = clock()
        self._stage, self._total, self._done, self._before = "", 0, 0, 0

    def start(self, stage: str, total: int, done: int = 0) -> None:
        with self._lock:
            self._stage, self._total, self._done, self._before = stage, total, done, done
            self._began = self._clock()
            self._write_line()

    def advance(self, units: int = 1) -> None:
        with self._lock:
            self._done += units
            if self._done == self._total:
                self._write_line()
            else:
                self.look()

    def say(self, text: str) -> None:
        with self._lock:
            self._write(text)

    def look(self) -> None:
        """Writes a line if the last one is 30 seconds old."""
        with self._lock:
            if self._clock() - self._written >= SECONDS_BETWEEN_LINES:
                self._write_line()

    def _write_line(self) -> None:
        self._written = self._clock()
        self._write(self._line(self._written - self._began))

    def _line(self, seconds: float) -> str:
        if not self._stage or self._total < 1:
            return f"{self._stage or 'preparing'}: {_clock(seconds)} so far"
        share = f"{self._stage}: {self._done} of {self._total} ({100 * self._done // self._total} %)"
        rate = (self._done - self._before) / seconds if seconds > 0 else 0.0
        if not rate:
            return share if seconds < 1 else f"{share}, {_clock(seconds)} so far"
        left = (self._total - self._done) / rate
        return f"{share}, {rate:,.3g}/s, {_clock(seconds)} so far, {_clock(left)} left"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=int(seconds)))
