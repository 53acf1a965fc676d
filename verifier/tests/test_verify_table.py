"""Tables of numbers in text: read to the letter, a megabyte at a time, and bounded whatever they hold."""

from __future__ import annotations

import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from twinproof_verify import certificate_lines
from twinproof_verify.certificate_lines import (
    CLASS,
    COUNT,
    HEADER,
    LENGTH,
    SUM,
    WIDE_HEADER,
    Form,
    line_problems,
    read_lines,
    read_table,
)
from twinproof_verify.findings import MOST_PROBLEMS, Findings, Problem
from twinproof_verify.run_json import PublicData

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

FORM = Form(b"a,b,c", "this is no line", (COUNT, CLASS, LENGTH))


def _table(*lines: bytes) -> bytes:
    return b"\n".join((b"a,b,c", *lines, b""))


def test_numbers_and_decimals_are_the_ones_that_are_written() -> None:
    values = np.random.default_rng(0).integers(0, 10**15, 2000)
    table = read_table(
        _table(*(b"%d,-1,%d.%06d" % (at, value // 10**6, value % 10**6) for at, value in enumerate(values))), FORM, "x.csv"
    )
    assert table.problems == []
    np.testing.assert_array_equal(table.rows, np.arange(2, 2002))
    np.testing.assert_array_equal(table.cells[:, 0], np.arange(2000))
    np.testing.assert_array_equal(table.cells[:, 1], -1)
    np.testing.assert_array_equal(table.decimals(2), [float(f"{value // 10**6}.{value % 10**6:06d}") for value in values])


@pytest.mark.parametrize(
    "line",
    [
        b"01,0,0.000000",
        b"1,-2,0.000000",
        b"1,0,0.00000",
        b"1,0,.000000",
        b" 1,0,0.000000",
        b"1,0,0.000000,",
        b"",
        b"1,0,0.000000\r",
        b"1e3,0,0.000000",
        b"+1,0,0.000000",
        b"1,0,0.000000 ",
        b"1_0,0,0.000000",
        b"\xb2,0,0.000000",
        b"1" * 16 + b",0,0.000000",
    ],
)
def test_a_number_has_one_spelling(line: bytes) -> None:
    table = read_table(_table(b"1,0,0.500000", line, b"2,1,0.250000"), FORM, "x.csv")
    assert [problem.what for problem in table.problems] == ["line 3: this is no line"]
    assert table.rows.tolist() == [2, 4]
    assert table.cells.tolist() == [[1, 0, 500000], [2, 1, 250000]]


@pytest.mark.parametrize("size", [1, 20, 64, 2**20])
def test_the_size_of_a_chunk_changes_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b"%d,%d,0.%06d" % (at, at % 7, at) for at in range(300)]
    lines[100] = b"no line"
    whole = read_table(_table(*lines), FORM, "x.csv")
    monkeypatch.setattr(certificate_lines, "_CHUNK", size)
    parts = read_table(_table(*lines), FORM, "x.csv")
    assert parts.problems == whole.problems
    np.testing.assert_array_equal(parts.cells, whole.cells)
    np.testing.assert_array_equal(parts.rows, whole.rows)
    assert 102 not in parts.rows


@pytest.mark.parametrize("content", [b"", b"\n", b"a,b,c", b"a,b,c\n", b"a,b,c\n1,0,0.500000", b"x\n1,0,0.500000\n"])
def test_short_files_are_read_too(content: bytes) -> None:
    table = read_table(content, FORM, "x.csv")
    assert len(table.cells) == (content == b"x\n1,0,0.500000\n")
    assert bool(table.problems) == (content != b"a,b,c\n")


def test_sums_of_19_digits_are_exact() -> None:
    line = b"0,0,0,5,0,0.000000,1,9,9199999999999999999,0,8999999999999999999"
    lines, problems = read_lines(WIDE_HEADER + b"\n" + line + b"\n", "certificates.csv", wide=True)
    assert problems == []
    assert (lines.counts.squares[0], lines.counts.other_squares[0]) == (9199999999999999999, 8999999999999999999)
    assert Form(b"", "", (SUM,)).line == SUM


@pytest.mark.parametrize("content", [b"\n" * 2**22, b"1" * 2**23 + b"\n", b"1," * 2**22, b",\n" * 2**21])
def test_hostile_bytes_cost_little(content: bytes) -> None:
    tracemalloc.start()
    started = time.thread_time()
    table = read_table(b"a,b,c\n" + content, FORM, "x.csv")
    assert time.thread_time() - started < 3
    assert tracemalloc.get_traced_memory()[1] < 2**27
    tracemalloc.stop()
    assert len(table.cells) == 0
    assert 0 < len(table.problems) < 30


def test_a_hundred_thousand_certificates_are_checked_in_a_second() -> None:
    """The short form of the million in ``benchmarks/verify_limits.py``."""
    count = 100_000
    lines = b"".join(b"%d,1,-1,400,1,0.000000,0,1000\n" % at for at in range(count))
    started = time.thread_time()
    read, problems = read_lines(HEADER + b"\n" + lines, "certificates.csv")
    assert [*problems, *line_problems(read, (), count, PublicData(3, 16, 255, count))] == []
    assert time.thread_time() - started < 1.5


def test_a_check_lists_a_bounded_number_of_problems() -> None:
    findings = Findings()
    endless = (Problem("x", f"number {at}", "", "") for at in range(10**9))
    assert not findings.check("everything", endless, "all")
    assert len(findings.problems) == MOST_PROBLEMS + 1
    assert "more problems" in findings.problems[-1].what


def test_the_demo_run_and_hostile_ones_keep_to_their_limits_on_the_command_line() -> None:
    """Each in a process with 6,000,000 KiB of addresses."""
    from verify_limits import measured_runs

    rows = measured_runs(quick=True, only=["the demo run", "run.json of brackets"])
    assert [row["status"] for row in rows] == [0, 1]
    for row in rows:
        assert row["seconds"] < row["limits"][0]
        assert row["mebibytes"] < row["limits"][1]
