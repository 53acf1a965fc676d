"""What only the owner may read, and the refusal to reuse noise on other records."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from twinproof.data.record import Split
from twinproof.errors import RunError
from twinproof.keys import Key
from twinproof.runs import private_files
from twinproof.runs.layout import create_private_folder

RECORDS = Split(np.arange(12, dtype=np.uint8).reshape(4, 3), np.array([0, 1, 0, 1], dtype=np.int64))


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_the_folder_is_the_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    create_private_folder(folder)
    assert _mode(folder) == 0o700
    folder.chmod(0o755)
    create_private_folder(folder)
    assert _mode(folder) == 0o700


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077], ids=oct)
def test_the_key_file_is_the_owners_alone(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        private_files.save_key(tmp_path, Key.from_seed(1))
    finally:
        os.umask(before)
    assert _mode(tmp_path / "key") == 0o600
    assert private_files.load_key(tmp_path) == Key.from_seed(1)
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("content", [None, "", "00", "xy" * 32, "00" * 33])
def test_a_key_that_cannot_be_read(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "key").write_text(content)
    with pytest.raises(RunError, match="noise key") as refused:
        private_files.load_key(tmp_path)
    assert "start a new run" in refused.value.fix


def _changed(row: int, value: int) -> Split:
    inputs = RECORDS.inputs.copy()
    inputs[row, 0] = value
    return Split(inputs, RECORDS.labels)


@pytest.mark.parametrize(
    "other",
    [
        _changed(3, 200),
        Split(RECORDS.inputs[:3], RECORDS.labels[:3]),
        Split(RECORDS.inputs[::-1].copy(), RECORDS.labels[::-1].copy()),
        Split(RECORDS.inputs, 1 - RECORDS.labels),
        Split(RECORDS.inputs.reshape(4, 1, 3), RECORDS.labels),
        Split(RECORDS.inputs.astype(np.uint16), RECORDS.labels),
    ],
    ids=["one value", "one record less", "other order", "other labels", "other shape", "other type"],
)
def test_other_records_are_refused(tmp_path: Path, other: Split) -> None:
    private_files.save_fingerprint(tmp_path, RECORDS)
    private_files.check_fingerprint(tmp_path, RECORDS)
    with pytest.raises(RunError, match="not the ones this run was started with"):
        private_files.check_fingerprint(tmp_path, other)


def test_the_fingerprint_is_keyed_anew_each_time(tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        private_files.save_fingerprint(tmp_path, RECORDS)
        texts.append(json.loads((tmp_path / "fingerprint.json").read_text()))
    assert texts[0]["key"] != texts[1]["key"]
    assert texts[0]["hmac_sha256"] != texts[1]["hmac_sha256"]


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"key": "zz", "hmac_sha256": ""}', '{"key": 1, "hmac_sha256": ""}'])
def test_a_fingerprint_that_cannot_be_read(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "fingerprint.json").write_text(content)
    with pytest.raises(RunError, match="fingerprint"):
        private_files.check_fingerprint(tmp_path, RECORDS)


def test_source_round_trip_and_absence(tmp_path: Path) -> None:
    assert private_files.load_source(tmp_path) is None
    private_files.save_source(tmp_path, {"source": "somewhere", "test": None})
    assert private_files.load_source(tmp_path) == {"source": "somewhere", "test": None}
    for broken in ("{", "[1]", "7", "null"):
        (tmp_path / "source.json").write_text(broken)
        with pytest.raises(RunError, match="is broken"):
            private_files.load_source(tmp_path)


def test_diagnostics_are_appended(tmp_path: Path) -> None:
    for step in range(3):
        private_files.append_diagnostics(tmp_path, {"step": step})
    lines = (tmp_path / "diagnostics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]


def test_secrets_are_forgotten_and_nothing_else(tmp_path: Path) -> None:
    private_files.save_key(tmp_path, Key.from_seed(1))
    private_files.save_source(tmp_path, {})
    (tmp_path / "checkpoint").write_bytes(b"weights")
    for _ in range(2):  # the second time there is nothing left to forget
        private_files.forget_training_secrets(tmp_path, "checkpoint")
        assert [path.name for path in tmp_path.iterdir()] == ["source.json"]
