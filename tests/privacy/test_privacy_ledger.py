"""The ledger: a chain that shows every change, survives a kill, and adds up to what was spent."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twinproof.errors import RunError
from twinproof.privacy import ledger as ledger_module
from twinproof.privacy.accounting import GaussianEvent, LaplaceEvent, PoissonGaussianEvent
from twinproof.privacy.ledger import GENESIS, Entry, Ledger

BROKEN = "chain is broken|cannot be read|cannot be counted"


def block(first: int, steps: int, rate: float = 0.0042666666666666667, multiplier: float = 1.1) -> dict[str, Any]:
    return {"sample_rate": rate, "noise_multiplier": multiplier, "first_step": first, "steps": steps}


def closing(steps: int) -> dict[str, Any]:
    return {"steps": steps, "model_sha256": "ab" * 32, "epsilon": 1.25, "epsilon_rdp": 1.5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A finished ledger of seven lines."""
    file = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(file, config_sha256="cd" * 32, delta=1e-5)
    ledger.append("gaussian", {"noise_multiplier": 20.0, "purpose": "Merkmalsgrößen"})
    for first in (0, 100, 200, 300):
        ledger.append("poisson-gaussian", block(first, 100))
    ledger.append("close", closing(400))
    return file


def test_what_was_appended_is_loaded(path: Path) -> None:
    ledger = Ledger.load(path)
    assert [entry.kind for entry in ledger.entries] == ["open", "gaussian", *["poisson-gaussian"] * 4, "close"]
    assert [entry.index for entry in ledger.entries] == list(range(7))
    assert ledger.entries[0].previous == GENESIS
    assert ledger.entries[0].body["delta"] == 1e-5
    assert ledger.config_sha256 == "cd" * 32
    assert ledger.closed
    assert ledger.reserved_steps == 400
    assert b"".join(entry.line() for entry in ledger.entries) == path.read_bytes()


def test_the_chain_is_the_one_of_the_format(path: Path) -> None:
    """Recomputed from the format document's words, without our code."""
    previous = "0" * 64
    for index, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        record = json.loads(line)
        digest = record.pop("hash")
        text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert digest == hashlib.sha256(text.encode()).hexdigest()
        assert (record["index"], record["previous"]) == (index, previous)
        previous = digest


def test_events_are_merged_and_equal_the_sum(path: Path, tmp_path: Path) -> None:
    assert Ledger.load(path).events() == [GaussianEvent(20.0), PoissonGaussianEvent(block(0, 1)["sample_rate"], 1.1, 400)]
    mixed = Ledger.create(tmp_path / "mixed", config_sha256="0" * 64, delta=1e-5)
    parts = [(0.1, 1.0, 5), (0.1, 1.0, 7), (0.1, 2.0, 3), (0.2, 2.0, 4), (0.1, 1.0, 1)]
    for rate, multiplier, steps in parts:
        mixed.append("poisson-gaussian", block(mixed.reserved_steps, steps, rate, multiplier))
    events = [event for event in mixed.events() if isinstance(event, PoissonGaussianEvent)]
    assert [(event.sample_rate, event.noise_multiplier, event.steps) for event in events] == [(0.1, 1.0, 12), *parts[2:]]
    assert sum(event.steps for event in events) == mixed.reserved_steps == 20
    for _ in range(2):  # between two equal blocks of steps these neither join them nor get lost
        mixed.append("laplace", {"noise_multiplier": 4.0, "purpose": "coefficients"})
    mixed.append("poisson-gaussian", block(20, 1, 0.1, 1.0))
    last = PoissonGaussianEvent(0.1, 1.0, 1)
    assert Ledger.load(tmp_path / "mixed").events()[-4:] == [last, LaplaceEvent(4.0), LaplaceEvent(4.0), last]


def test_an_entry_is_on_the_disk_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synced, and with all of its bytes in the file at that moment."""
    file = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(file, config_sha256="0" * 64, delta=1e-5)
    synced: list[bytes] = []
    really_sync = os.fsync

    def watched(handle: int) -> None:
        really_sync(handle)
        synced.append(file.read_bytes())

    monkeypatch.setattr(os, "fsync", watched)
    ledger.append("poisson-gaussian", block(0, 100))
    assert synced
    assert synced[-1] == file.read_bytes()
    assert synced[-1].endswith(ledger.entries[-1].line())


def test_every_cut_of_the_last_line_is_mended(path: Path, tmp_path: Path) -> None:
    """A kill may leave any part of the last line: the lines before stay, and the ledger can be continued."""
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for length in range(start, len(whole)):
        file = tmp_path / "cut"
        file.write_bytes(whole[:length])
        ledger = Ledger.load(file)
        lost_only_its_newline = length == len(whole) - 1
        assert ledger.closed == lost_only_its_newline
        assert ledger.reserved_steps == 400
        assert file.read_bytes() == (whole if lost_only_its_newline else whole[:start])
        if not ledger.closed:
            ledger.append("close", closing(400))
        assert Ledger.load(file).closed


def test_every_changed_byte_is_refused(path: Path, tmp_path: Path) -> None:
    """Seeded sample of all (position, value) pairs; the ends of lines and carriage returns in full."""
    whole = path.read_bytes()
    generator = random.Random(4)
    changes = {(generator.randrange(len(whole)), generator.randrange(256)) for _ in range(300)}
    changes |= {(position, byte) for position, value in enumerate(whole) if value == 10 for byte in b"\r }x\x00\x0b\x85"}
    changes |= {(position, whole[position] ^ 1 << bit) for position in range(0, len(whole), 29) for bit in range(8)}
    file = tmp_path / "changed"
    for position, byte in sorted(changes):
        if whole[position] == byte:
            continue
        file.write_bytes(whole[:position] + bytes([byte]) + whole[position + 1 :])
        with pytest.raises(RunError, match=BROKEN):
            Ledger.load(file)


def test_another_spelling_of_the_same_values_is_refused(path: Path, tmp_path: Path) -> None:
    """The seventeenth digit of a float, a space, a key more: the values would be the same, the bytes are not."""
    whole = path.read_bytes()
    rate = str(block(0, 1)["sample_rate"]).encode()
    for old, new in (
        (rate, rate + b"0"),
        (b'"index":2', b'"index": 2'),
        (b'"kind":"close"', b'"kind":"close","note":1'),
        (b'"index":2', b'"index":7,"index":2'),
        ("öß".encode(), rb"\u00f6\u00df"),
    ):
        assert old in whole
        file = tmp_path / "spelled"
        file.write_bytes(whole.replace(old, new, 1))
        with pytest.raises(RunError, match=BROKEN):
            Ledger.load(file)


Lines = list[bytes]
CHANGES: dict[str, Callable[[Lines], Lines]] = {
    "deleted": lambda lines: lines[:2] + lines[3:],
    "first deleted": lambda lines: lines[1:],
    "swapped": lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
    "doubled": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "last doubled": lambda lines: [*lines, lines[-1]],
    "reversed": lambda lines: lines[::-1],
    "empty line": lambda lines: [*lines[:3], b"\n", *lines[3:]],
    "empty end": lambda lines: [*lines, b"\n"],
    "list": lambda lines: [*lines, b"[]\n"],
    "null": lambda lines: [*lines, b"null\n"],
    "bytes": lambda lines: [*lines, b"\xff\xfe\n"],
    "deep": lambda lines: [*lines, b"[" * 100_000 + b"\n"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_deleted_moved_and_added_lines_are_refused(path: Path, change: str) -> None:
    path.write_bytes(b"".join(CHANGES[change](path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(RunError, match=BROKEN):
        Ledger.load(path)


def test_planted_reader_without_the_chain_lets_a_deleted_line_pass(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each remaining line still has a right hash of its own: the chain is what shows that one is gone."""

    def unchained(file: Path, number: int, line: bytes, previous: str) -> Entry:
        record = json.loads(line)
        entry = Entry(record["index"], record["kind"], record["body"], record["previous"])
        assert entry.hash == record["hash"]
        return entry

    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    monkeypatch.setattr(ledger_module, "_checked_entry", unchained)
    assert Ledger.load(path).reserved_steps == 300


def forged(lines: list[tuple[str, dict[str, Any]]], **wrong: Any) -> bytes:
    """A ledger with right hashes from any content; ``wrong`` replaces fields of its last line."""
    content, previous = b"", GENESIS
    for index, (kind, body) in enumerate(lines):
        record = {"index": index, "kind": kind, "body": body, "previous": previous}
        record |= wrong if index == len(lines) - 1 else {}
        text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        previous = hashlib.sha256(text.encode()).hexdigest()
        record["hash"] = previous
        content += json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    return content


@pytest.mark.parametrize("wrong", [{"index": 1}, {"index": 3}, {"index": "2"}, {"previous": GENESIS}, {"previous": "x"}])
def test_a_line_with_a_right_hash_in_the_wrong_place_is_refused(path: Path, wrong: dict[str, Any]) -> None:
    lines: list[tuple[str, dict[str, Any]]] = [("open", {}), *[("gaussian", {"noise_multiplier": 1.0})] * 2]
    path.write_bytes(forged(lines))
    assert len(Ledger.load(path).entries) == 3
    path.write_bytes(forged(lines, **wrong))
    with pytest.raises(RunError, match="chain is broken"):
        Ledger.load(path)


@pytest.mark.parametrize(
    "lines",
    [
        [("open", {}), ("staircase", {"scale": 1.0})],
        [("gaussian", {"noise_multiplier": 1.0})],
        [("open", {}), ("open", {})],
    ],
    ids=["unknown kind", "no opening", "two openings"],
)
def test_an_entry_that_nobody_can_count_is_refused(path: Path, lines: list[tuple[str, dict[str, Any]]]) -> None:
    """An unknown kind may have spent privacy: passing over it would count too little."""
    path.write_bytes(forged(lines))
    with pytest.raises(RunError, match="cannot be counted"):
        Ledger.load(path)


def test_what_cannot_be_added_or_opened_is_refused(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(RunError, match="cannot be added"):
        Ledger.load(path).append("poisson-gaussian", block(400, 1))
    assert path.read_bytes() == before
    other = tmp_path / "other"
    ledger = Ledger.create(other, config_sha256="0" * 64, delta=None)
    before = other.read_bytes()
    with pytest.raises(RunError, match="cannot be added"):
        ledger.append("staircase", {})
    with pytest.raises(ValueError, match="JSON"):
        ledger.append("gaussian", {"noise_multiplier": float("nan"), "purpose": ""})
    assert other.read_bytes() == before
    assert len(ledger.entries) == 1
    with pytest.raises(RunError, match="ledger already"):
        Ledger.create(other, config_sha256="0" * 64, delta=1e-5)
    with pytest.raises(RunError, match="ledger is missing"):
        Ledger.load(tmp_path / "nowhere")
    for content in (b"", b'{"body":{"config_sha256":"00'):
        (tmp_path / "torn").write_bytes(content)
        with pytest.raises(RunError, match="ledger is empty"):
            Ledger.load(tmp_path / "torn")


def test_a_second_writer_is_refused_and_adds_nothing(tmp_path: Path) -> None:
    """A line's number names noise: two handles that both write line 1 would give one noise to two releases."""
    ledger = Ledger.create(tmp_path / "ledger.jsonl", config_sha256="0" * 64, delta=1e-5)
    other = Ledger.load(tmp_path / "ledger.jsonl")
    ledger.append("laplace", {"noise_multiplier": 2.0, "purpose": "first"})
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(RunError, match="changed by another process"):
        other.append("laplace", {"noise_multiplier": 2.0, "purpose": "second"})
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    assert len(other.entries) == 1
    ledger.append("laplace", {"noise_multiplier": 2.0, "purpose": "second"})
    assert [entry.index for entry in Ledger.load(tmp_path / "ledger.jsonl").entries] == [0, 1, 2]
