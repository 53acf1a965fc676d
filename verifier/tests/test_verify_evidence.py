"""Hostile bytes become values or words, never exceptions."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest

from twinproof_verify import VerifyError as RunError
from twinproof_verify import evidence
from twinproof_verify.evidence import RunFolder, digest_of, parse_object, shown
from twinproof_verify.findings import Problem


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
    monkeypatch.setattr(evidence, "LARGEST_RECORD", 10)
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


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"short")
    whole = os.fstat

    def growing(handle: int) -> os.stat_result:
        status = whole(handle)
        with path.open("ab") as file:
            file.write(b", and then longer")
        return status

    monkeypatch.setattr(os, "fstat", growing)
    outcome = RunFolder(tmp_path).content("run.json")
    assert isinstance(outcome, Problem)
    assert "while it was read" in outcome.got


def test_no_more_memory_is_taken_than_the_file_needs(tmp_path: Path) -> None:
    """Weights may have gigabytes; a reader that asks for so many whatever the file holds fails where there are fewer."""
    (tmp_path / "run.json").write_bytes(b"{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    tracemalloc.start()
    try:
        assert RunFolder(tmp_path).content("model.safetensors") == b"weights"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["absent", "with\x00nul", "x" * 5000, "\udcff"], ids=kind)
def test_a_path_that_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        RunFolder(tmp_path / name)
