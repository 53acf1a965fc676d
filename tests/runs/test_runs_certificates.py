"""Certificates on disk: rounded down, read back as written, and cut exactly where they should be."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinproof.errors import RunError
from twinproof.rounding import round_down
from twinproof.runs.certificates import (
    ABSTAIN,
    HEADER,
    MORE,
    UNKNOWN,
    Certificate,
    CertificateSettings,
    CertificateWriter,
    Look,
    read_certificates,
    read_settings,
    write_settings,
)
from twinproof.runs.reading import NUMBER, WHOLE, parse_table

LINES = [Certificate(index, index % 3, 1, 900 + index, 1, index / 8, 1000 + index) for index in range(6)]
SETTINGS = CertificateSettings(
    "0" * 64, "l2", 0.25, 0.125, 255, 4, 1e-9, 10, 100, 0.001, "ab" * 32, 0.37, 5, "sampling", "cpu", {"torch": "2"}, "now", 0.0
)


def _write(root: Path, lines: list[Certificate], keep: int = 0) -> None:
    writer = CertificateWriter(root, keep=keep)
    writer.append(lines)
    writer.close()


def test_round_trip(tmp_path: Path) -> None:
    _write(tmp_path, LINES)
    assert read_certificates(tmp_path) == LINES
    text = (tmp_path / "certificates.csv").read_text()
    assert text.splitlines()[0] == ",".join(HEADER) == "index,label,prediction,votes,top,radius,correct,draws"
    assert text.splitlines()[2] == "1,1,1,901,1,0.125000,1,1001"
    assert text.endswith("\n")
    assert "\r" not in text


def test_more_columns_round_trip(tmp_path: Path) -> None:
    lines = [replace(line, squares=5 * line.votes, runner_up=90, runner_up_squares=400) for line in LINES]
    writer = CertificateWriter(tmp_path, more=True)
    writer.append(lines)
    writer.close()
    assert read_certificates(tmp_path) == lines
    text = (tmp_path / "certificates.csv").read_text().splitlines()
    assert text[0] == ",".join(HEADER + MORE) == ",".join(HEADER) + ",squares,runner_up,runner_up_squares"
    assert text[2] == "1,1,1,901,1,0.125000,1,1001,4505,90,400"


def test_without_more_columns_the_line_is_short_and_the_numbers_are_zero(tmp_path: Path) -> None:
    _write(tmp_path, [replace(LINES[0], squares=7)])
    assert read_certificates(tmp_path) == [LINES[0]]
    assert len(LINES[0].row()) == len(HEADER)
    assert len(LINES[0].row(more=True)) == len(HEADER) + len(MORE)


@pytest.mark.parametrize(
    ("prediction", "radius", "size", "robust"),
    [(1, 0.25, 0.25, True), (1, 0.25, 0.250001, False), (1, 0.0, 0.0, True), (ABSTAIN, 0.0, 0.0, False), (1, 0.25, 0.0, True)],
)
def test_robustness_at_a_size(prediction: int, radius: float, size: float, robust: bool) -> None:
    assert Certificate(0, 0, prediction, 10, 1, radius).robust_at(size) is robust


def test_robustness_at_a_size_is_said_as_the_theorem_says_it() -> None:
    """The theorem is strict: a change of exactly the radius may change the answer."""
    assert "smaller than ``size``" in (Certificate.robust_at.__doc__ or "")


@pytest.mark.parametrize(
    ("changes", "more"),
    [({}, False), ({"statistic": "scores"}, True), ({"runner_up": "union"}, True), ({"norm": "linf", "bound": "hgm"}, False)],
)
def test_more_columns_are_needed_where_votes_are_not_all(changes: dict[str, str], more: bool) -> None:
    assert replace(SETTINGS, **changes).needs_more is more  # type: ignore[arg-type]


@given(st.floats(min_value=0, max_value=100))
def test_the_text_of_a_radius_never_exceeds_it(radius: float) -> None:
    text = Certificate(0, 0, 0, 1, 0, radius).row()[5]
    assert float(text) <= radius
    assert Decimal(radius) < Decimal(text) + Decimal("0.000001")
    assert len(text.split(".")[1]) == 6


@given(st.floats(min_value=0, max_value=100))
def test_a_radius_already_rounded_survives_the_file(radius: float) -> None:
    made = Certificate(3, 1, 1, 7, 1, round_down(radius))
    text = f"{','.join(HEADER)}\n{','.join(made.row())}\n"
    (row,) = parse_table(text.encode(), Path("certificates.csv"), (dict.fromkeys(HEADER, WHOLE) | {"radius": NUMBER},))
    assert row["radius"] == made.radius


def test_planted_nearest_rounding_would_be_caught() -> None:
    radius = 0.1234567
    assert float(f"{radius:.6f}") > radius
    assert Certificate(0, 0, 0, 1, 0, radius).row()[5] == "0.123456"


@pytest.mark.parametrize(
    ("prediction", "label", "correct"),
    [(1, 1, True), (1, 2, False), (ABSTAIN, 1, False), (ABSTAIN, UNKNOWN, False), (1, UNKNOWN, False)],
)
def test_an_abstention_is_never_correct(prediction: int, label: int, correct: bool) -> None:
    made = Certificate(0, label, prediction, 10, 1, 0.0)
    assert made.correct is correct
    assert made.row()[6] == str(int(correct))


@pytest.mark.parametrize("keep", [1, 3, 6])
@pytest.mark.parametrize("tail", [b"", b"6,0,1", b"6,0,1,900,1,0.5", b"\xff\xfe", b"x" * 20_000])
def test_the_writer_goes_on_exactly_behind_what_it_keeps(tmp_path: Path, keep: int, tail: bytes) -> None:
    _write(tmp_path, LINES)
    path = tmp_path / "certificates.csv"
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    _write(tmp_path, LINES[keep:], keep=keep)
    assert path.read_bytes() == whole


def test_keeping_nothing_starts_anew(tmp_path: Path) -> None:
    _write(tmp_path, LINES)
    _write(tmp_path, LINES[:1])
    assert read_certificates(tmp_path) == LINES[:1]


def test_keeping_more_than_there_is_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, LINES[:2])
    with pytest.raises(RunError, match="shorter than expected"):
        CertificateWriter(tmp_path, keep=3)
    assert read_certificates(tmp_path) == LINES[:2]


def test_what_was_appended_is_durable_before_the_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: lengths.append(os.fstat(handle).st_size))
    writer = CertificateWriter(tmp_path)
    writer.append(LINES[:2])
    assert read_certificates(tmp_path) == LINES[:2]
    assert lengths == [(tmp_path / "certificates.csv").stat().st_size], "the lines were not brought to the disk"
    writer.close()


def test_a_torn_tail_is_passed_over_at_every_byte(tmp_path: Path) -> None:
    _write(tmp_path, LINES)
    path = tmp_path / "certificates.csv"
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        complete = max(whole[:length].count(b"\n") - 1, 0)
        assert read_certificates(tmp_path) == LINES[:complete]


def test_no_file_is_no_certificates(tmp_path: Path) -> None:
    assert read_certificates(tmp_path) == []
    assert read_settings(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        b"index,label\n0,1\n",
        b"index,label,prediction,votes,top,radius,correct,draws\n0,1,1,x,1,0.5,1,9\n",
        b"index,label,prediction,votes,top,radius,correct,draws\n0,1,1\n",
        b"index,label,prediction,votes,top,radius,correct,draws\n\xff,1,1,1,1,0.5,1,9\n",
        b"index,label,prediction,votes,top,radius,correct\n0,1,1,1,1,0.5,1\n",
    ],
)
def test_broken_lines_are_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "certificates.csv").write_bytes(content)
    with pytest.raises(RunError, match=r"certificates\.csv is broken"):
        read_certificates(tmp_path)


def test_settings_round_trip(tmp_path: Path) -> None:
    write_settings(tmp_path, SETTINGS)
    assert read_settings(tmp_path) == SETTINGS
    assert json.loads((tmp_path / "certificates.json").read_text())["format"] == 2


def test_looks_round_trip_and_are_one_by_default(tmp_path: Path) -> None:
    assert SETTINGS.looks == (Look(SETTINGS.n, SETTINGS.alpha),)
    several = replace(SETTINGS, target_radius=0.25, looks=(Look(50, 0.0005), Look(100, 0.0005)))
    write_settings(tmp_path, several)
    assert read_settings(tmp_path) == several
    record = json.loads((tmp_path / "certificates.json").read_text())
    assert record["looks"] == [{"draws": 50, "alpha": 0.0005}, {"draws": 100, "alpha": 0.0005}]
    assert record["target_radius"] == 0.25


@pytest.mark.parametrize("looks", [None, 3, [3], [{"draws": 1}], [{"draws": 1, "alpha": 0.1, "more": 1}]])
def test_broken_looks_are_an_error(tmp_path: Path, looks: object) -> None:
    (tmp_path / "certificates.json").write_text(json.dumps({**SETTINGS.as_dict(), "looks": looks}))
    with pytest.raises(RunError, match=r"certificates\.json (is broken|has an unknown format)"):
        read_settings(tmp_path)


@pytest.mark.parametrize(("target", "decided"), [(None, 0.37), (0.25, 0.25), (0.5, 0.37)])
def test_radii_are_decided_up_to_the_target(target: float | None, decided: float) -> None:
    assert replace(SETTINGS, target_radius=target).decided_radius == decided


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "null", '{"sigma": 1}'])
def test_broken_settings_are_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "certificates.json").write_text(content)
    with pytest.raises(RunError, match=r"certificates\.json (is broken|has an unknown format)"):
        read_settings(tmp_path)
