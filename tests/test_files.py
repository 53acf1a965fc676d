"""Files appear whole or not at all, and one value has one text."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinproof.errors import RunError
from twinproof.files import canonical_json, make_folder, sha256_file, write_atomic, write_json

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(value=values)
def test_canonical_json_reads_back_and_is_stable(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


def test_canonical_json_ignores_order_and_uses_no_spaces() -> None:
    assert canonical_json({"b": 1, "a": [1.5, None]}) == canonical_json({"a": [1.5, None], "b": 1}) == '{"a":[1.5,null],"b":1}'
    assert canonical_json({"größe": "ß"}) == '{"größe":"ß"}'


def test_a_path_that_cannot_be_a_folder_is_refused_in_words(tmp_path: Path) -> None:
    make_folder(tmp_path / "new" / "one", "the run")
    make_folder(tmp_path / "new" / "one", "the run")
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError, match="cannot be made") as raised:
            make_folder(place, "the run")
        assert (raised.value.where, (tmp_path / "file").read_text()) == (str(place), "")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_json_cannot_say_is_refused(value: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": [value]})
    target = tmp_path / "out.json"
    with pytest.raises(ValueError, match="JSON"):
        write_json(target, {"a": value})
    assert list(tmp_path.iterdir()) == []


def test_writing_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "file"
    for content in (b"first", b"", b"second" * 10_000):
        write_atomic(target, content)
        assert target.read_bytes() == content
        assert sha256_file(target) == hashlib.sha256(content).hexdigest()
    write_json(target, {"b": "ü", "a": 1})
    assert target.read_text(encoding="utf-8") == '{\n  "a": 1,\n  "b": "ü"\n}\n'
    assert list(tmp_path.iterdir()) == [target]


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


def crash_at(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*arguments: object, **settings: object) -> None:
        raise Killed

    if moment == "sync":
        monkeypatch.setattr(os, "fsync", die)
    else:
        monkeypatch.setattr(Path, "replace", die)


@pytest.mark.parametrize("moment", ["sync", "rename"])
def test_a_crash_before_the_rename_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    target = tmp_path / "file"
    write_atomic(target, b"old")
    with monkeypatch.context() as patch:
        crash_at(moment, patch)
        with pytest.raises(Killed):
            write_atomic(target, b"new and longer")
    assert target.read_bytes() == b"old"
    write_atomic(target, b"again")  # the leftover is in nobody's way
    assert target.read_bytes() == b"again"
    assert list(tmp_path.iterdir()) == [target]


def test_planted_plain_write_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing in place loses the old content in the same crash."""
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with monkeypatch.context() as patch, open(target, "wb") as handle:
        crash_at("sync", patch)
        handle.write(b"new")
        with pytest.raises(Killed):
            os.fsync(handle.fileno())
    assert target.read_bytes() != b"old"


def test_content_and_name_are_synced_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes before the rename, the folder after it: a power cut finds the old file or the new one, whole."""
    events: list[str] = []
    really_sync, really_replace = os.fsync, Path.replace

    def sync(handle: int) -> None:
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "content")  # noqa: PTH112
        really_sync(handle)

    def replace(source: Path, target: Path) -> Path:
        events.append("rename")
        return really_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    write_atomic(tmp_path / "file", b"content")
    assert events == ["content", "rename", "folder"]
