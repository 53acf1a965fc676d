"""Hostile bytes become values or words, never exceptions."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from twinproof.audit import evidence
from twinproof.audit.evidence import RunFolder, digest_of, parse_object, shown
from twinproof.audit.verification import Problem
from twinproof.errors import RunError


def kind(value: object) -> str:
    """Test names that do not spell out megabytes."""
    return type(value).__name__


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b"[]", "type list"),
        (b"1", "type int"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": {"b": 1, "b": 1}}', "twice"),
        (b'{"a": "\xff"}', "utf-8"),
        (b'{"a": ' + b"[" * 10**6, "nested"),
        (b'{"a": ' + b"9" * 10**4 + b"}", "digit"),
        (b"{} {}", "Extra data"),
    ],
    ids=kind,
)
def test_what_is_no_object_is_said_in_words(content: bytes, words: str) -> None:
    outcome = parse_object(content)
    assert isinstance(outcome, str)
    assert words in outcome


def test_the_digest_is_the_one_of_the_format_document() -> None:
    text = '{"a":{"y":[1,2.5,null],"z":"é"},"b":true}'
    assert digest_of({"b": True, "a": {"z": "é", "y": [1, 2.5, None]}}) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1, 2}])
def test_what_has_no_canonical_form_has_no_digest(value: object) -> None:
    assert digest_of(value) is None


@pytest.mark.parametrize(
    "value", ["\x1b[31m", "\ud800", "é" * 10**4, 10**5000, -(10**5000), [10**5000], {"a": object()}, "\n\r"], ids=kind
)
def test_anything_is_shown_short_and_printable(value: object) -> None:
    text = shown(value)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 200


def test_a_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"first")
    folder = RunFolder(tmp_path)
    assert folder.content("run.json") == b"first"
    (tmp_path / "run.json").write_bytes(b"second")
    assert folder.content("run.json") == b"first"


def test_what_is_not_a_plain_file_of_bearable_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LARGEST_TEXT", 10)
    (tmp_path / "run.json").write_bytes(b"x" * 11)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    folder = RunFolder(tmp_path)
    for name, words in (
        ("run.json", "large"),
        ("folder", "regular"),
        ("link", "regular"),
        ("pipe", "regular"),
        ("no", "missing"),
    ):
        outcome = folder.content(name)
        assert isinstance(outcome, Problem)
        assert words in outcome.what
        assert outcome.file == name


@pytest.mark.parametrize("name", ["absent", "with\x00nul", "x" * 5000, "\udcff"], ids=kind)
def test_a_path_that_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        RunFolder(tmp_path / name)
