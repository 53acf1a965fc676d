"""Progress without a terminal: a line at least every 30 seconds, on stderr, whatever the work is doing."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from twinproof.cli.output import SECONDS_BETWEEN_LINES, Bars, Lines, shown


class FakeClock:
    """A clock that a test moves; it remembers when lines were written."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lines: list[tuple[float, str]] = []

    def __call__(self) -> float:
        return self.now

    def write(self, text: str) -> None:
        self.lines.append((self.now - 100, text))


class Forgetful(Lines):
    """The planted bug: a line comes only when a unit is done."""

    def look(self) -> None:
        pass

    def advance(self, units: int = 1) -> None:
        Lines.look(self)
        self._done += units


def longest_silence(kind: type[Lines]) -> float:
    """Preparation of 70 s, then units of 7 s, then one of 200 s, looked at twice a second."""
    clock = FakeClock()
    lines = kind(clock.write, clock)
    for unit in [None, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 200.0, 7.0]:
        if unit is None:
            _pass(clock, lines, 70)
            lines.start("training", 8)
        else:
            _pass(clock, lines, unit)
            lines.advance()
    times = [0.0, *(moment for moment, _ in clock.lines), clock.now - 100]
    return max(after - before for before, after in pairwise(times))


def _pass(clock: FakeClock, lines: Lines, seconds: float) -> None:
    end = clock.now + seconds
    while clock.now < end:
        clock.now += 0.5
        lines.look()


def test_no_silence_is_longer_than_thirty_seconds() -> None:
    assert SECONDS_BETWEEN_LINES == 30
    assert longest_silence(Lines) <= 30.5
    assert longest_silence(Forgetful) > 100, "lines that wait for the work are caught"


def test_what_the_lines_say() -> None:
    clock = FakeClock()
    lines = Lines(clock.write, clock)
    clock.now += 31
    lines.look()
    lines.say("a warning")
    lines.start("training", 400, 100)
    clock.now += 60
    lines.advance(120)
    clock.now += 40
    lines.advance(180)
    assert [text for _, text in clock.lines] == [
        "preparing: 0:00:31 so far",
        "a warning",
        "training: 100 of 400 (25 %)",
        "training: 220 of 400 (55 %), 2/s, 0:01:00 so far, 0:01:30 left",
        "training: 400 of 400 (100 %), 3/s, 0:01:40 so far, 0:00:00 left",
    ]


def test_a_resumed_stage_and_an_empty_one() -> None:
    clock = FakeClock()
    lines = Lines(clock.write, clock)
    lines.start("training", 5, 5)
    lines.start("certifying", 0)
    clock.now += 40
    lines.look()
    assert [text for _, text in clock.lines] == [
        "training: 5 of 5 (100 %)",
        "certifying: 0:00:00 so far",
        "certifying: 0:00:40 so far",
    ]


CHILD = """
import sys
from twinproof.cli import main, output
output.SECONDS_BETWEEN_LINES, output._SECONDS_BETWEEN_CHECKS = 0.1, 0.02
main.run(sys.argv[1:])
"""


def test_lines_come_through_a_pipe_beside_the_answer_for_machines(tmp_path: Path) -> None:
    settings = ["--set", "model=mlp", "--set", "steps=60", "--set", "noise_multiplier=5", "--delta", "1e-4"]
    arguments = ["train", "--data", "digits", *settings, "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "proven"
    lines = done.stderr.splitlines()
    assert "training: 0 of 60 (0 %)" in lines
    assert lines[-1].startswith("training: 60 of 60 (100 %)")
    assert all(re.fullmatch(r"(preparing|training): .*(so far.*|\(0 %\))", line) for line in lines), lines
    assert len(lines) >= 4, "at least two more between the first and the last"


def test_a_reader_who_leaves_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(typer, "echo", gone)
    with shown() as progress:
        progress.start("training", 2)
        progress.say("a warning")
        progress.advance(2)
    with pytest.raises(BrokenPipeError):
        typer.echo("the planted fault is there")


def test_every_long_verb_tells_of_itself(call: Any, trained: Path, tmp_path: Path) -> None:
    """Train, reproduce and federate share the same display."""
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    certified = call("certify", root, "--n", "100", "--limit", "4", "--json")
    assert "certifying: 0 of 4 (0 %)" in certified.err
    assert "certifying: 4 of 4 (100 %)" in certified.err
    attacked = call("attack", root, "--limit", "4", "--n", "50", "--attack", "fgsm", "--size", "0.1", "--json")
    assert attacked.code == 0, attacked.err
    assert all(words in attacked.err for words in ("attacking: 0 of 12 (0 %)", "judging: "))
    audited = call("audit", root, "--steps", "2", "--votes", "100", "--json")
    assert audited.code == 0, audited.err
    assert "attacking: " in audited.err


def test_a_terminal_gets_bars() -> None:
    screen = io.StringIO()
    bars = Bars(Console(file=screen, force_terminal=True, width=100, color_system=None))
    with bars.drawn:
        bars.advance()  # before any stage: nothing to move
        bars.start("training", 4, 1)
        bars.advance(3)
        bars.say("a warning")
    assert all(words in screen.getvalue() for words in ("a warning", "training", "4/4"))
