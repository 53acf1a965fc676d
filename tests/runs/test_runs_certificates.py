"""Certificates on disk: rounded down, read back as written; settings of every format read into the same record."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinproof.certification.method import certifications, find_certification, read_certificate_settings
from twinproof.errors import ConfigError, RunError
from twinproof.guarantee import round_down
from twinproof.runs.reading import NUMBER, WHOLE, parse_table
from twinproof.runs.records import (
    ABSTAIN,
    HEADER,
    MORE,
    UNKNOWN,
    Certificate,
    format_certificates,
    json_file,
    read_certificates,
)
from work_settings import CERTIFICATES, changed

FIXTURES = Path(__file__).parents[1] / "fixtures"
LINES = [Certificate(index, index % 3, 1, 900 + index, 1, index / 8, 1000 + index) for index in range(6)]


@pytest.mark.parametrize("more", [False, True])
def test_round_trip(tmp_path: Path, more: bool) -> None:
    path, extra = tmp_path / "certificates.csv", {"squares": 4505, "runner_up": 90, "runner_up_squares": 400} if more else {}
    lines = [replace(line, **extra) for line in LINES]
    path.write_bytes(format_certificates(lines, more=more))
    assert read_certificates(path) == lines
    text = path.read_text().splitlines()
    assert text[0] == ",".join(HEADER + MORE if more else HEADER)
    assert text[2] == "1,1,1,901,1,0.125000,1,1001" + (",4505,90,400" if more else "")
    assert b"\r" not in path.read_bytes()
    assert read_certificates(tmp_path / "nowhere.csv") == []


@pytest.mark.parametrize(
    ("prediction", "radius", "size", "robust"),
    [(1, 0.25, 0.25, True), (1, 0.25, 0.250001, False), (1, 0.0, 0.0, True), (ABSTAIN, 0.0, 0.0, False), (1, 0.25, 0.0, True)],
)
def test_robustness_at_a_size(prediction: int, radius: float, size: float, robust: bool) -> None:
    assert Certificate(0, 0, prediction, 10, 1, radius).robust_at(size) is robust


def test_robustness_at_a_size_is_said_as_the_theorem_says_it() -> None:
    """The theorem is strict: a change of exactly the radius may change the answer."""
    assert "smaller than ``size``" in (Certificate.robust_at.__doc__ or "")


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


def test_a_torn_tail_is_passed_over_at_every_byte(tmp_path: Path) -> None:
    whole, path = format_certificates(LINES), tmp_path / "certificates.csv"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert read_certificates(path) == LINES[: max(whole[:length].count(b"\n") - 1, 0)]


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
        read_certificates(tmp_path / "certificates.csv")


def written(root: Path, record: dict[str, Any], name: str = "l2") -> Path:
    path = root / "certificates" / name / "certificates.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(json_file(record))
    return path


def test_settings_round_trip(tmp_path: Path) -> None:
    asked = changed(CERTIFICATES, target_radius=0.25, norm="l1", slackless_norm=2.0)
    path = written(tmp_path, asked.as_dict())
    assert read_certificate_settings(path) == asked
    record = json.loads(path.read_text())
    assert (record["format"], record["noise"]["sigma"], record["sampling"]["target_radius"]) == (3, 0.25, 0.25)


def without(record: dict[str, Any], *path: str) -> dict[str, Any]:
    inner = {name: value for name, value in record.items() if name != path[0] or len(path) > 1}
    return inner if len(path) == 1 else {**inner, path[0]: without(record[path[0]], *path[1:])}


WHOLE_RECORD = json.loads(json_file(CERTIFICATES.as_dict()))


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"sigma": 1},
        {"format": 3},
        {"format": 2},
        without(WHOLE_RECORD, "key"),
        without(WHOLE_RECORD, "method", "norm"),
        without(WHOLE_RECORD, "sampling", "target_radius"),
        {**WHOLE_RECORD, "method": {**WHOLE_RECORD["method"], "norm": "wishful"}},
        {**WHOLE_RECORD, "noise": {**WHOLE_RECORD["noise"], "sigma": "0.25"}},
        *({**WHOLE_RECORD, "looks": looks} for looks in (None, 3, [3], [{"draws": 1}], [{"draws": 1, "alpha": 0.1, "x": 1}])),
    ],
    ids=lambda record: str(list(record))[:40],
)
def test_broken_settings_are_an_error(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(RunError, match=r"certificates\.json (is broken|has an unknown format)"):
        read_certificate_settings(written(tmp_path, record))


@pytest.mark.parametrize("run", ["demo", "hgm-pixeldp", "stobatch"])
def test_runs_of_format_1_hold_one_certification_by_its_norm(run: str) -> None:
    root = FIXTURES / "format-1" / run
    flat = json.loads((root / "certificates.json").read_text())
    (found,) = certifications(root).values()
    nested = asdict(found.settings)
    sections = {**{name: value for part in nested.values() if isinstance(part, dict) for name, value in part.items()}, **nested}
    assert {name: sections[name] for name in flat if name not in ("format", "looks", "versions")} == {
        name: value for name, value in flat.items() if name not in ("format", "looks", "versions")
    }
    assert found.name == flat["norm"]
    assert len(found.certificates) == flat["inputs"]


def test_a_certification_is_found_by_name_norm_or_alone(tmp_path: Path) -> None:
    assert find_certification(tmp_path) is None
    for name, norm in (("linf", "linf"), ("linf-hgm", "linf"), ("mine", "l1")):
        written(tmp_path, changed(CERTIFICATES, norm=norm).as_dict(), name)

    def found(**asked: str) -> str:
        one = find_certification(tmp_path, **asked)
        assert one is not None
        return one.name

    assert [found(norm="linf"), found(norm="l1"), found(name="linf-hgm")] == ["linf", "mine", "linf-hgm"]
    with pytest.raises(ConfigError, match="several certifications"):
        found(norm="l2")
    with pytest.raises(RunError, match="no certificates of that name"):
        found(name="yours")


@pytest.mark.parametrize(
    ("changes", "more"),
    [({}, False), ({"statistic": "scores"}, True), ({"runner_up": "union"}, True), ({"norm": "linf"}, False)],
)
def test_more_columns_are_needed_where_votes_are_not_all(changes: dict[str, str], more: bool) -> None:
    scores = {"confidence": "hoeffding"} if "statistic" in changes else {}
    assert changed(CERTIFICATES, **scores, **changes).needs_more is more


@pytest.mark.parametrize(("target", "decided"), [(None, 0.37), (0.25, 0.25), (0.5, 0.37)])
def test_radii_are_decided_up_to_the_target(target: float | None, decided: float) -> None:
    assert changed(CERTIFICATES, target_radius=target).decided_radius == decided
