"""The command: its exit codes, its JSON, and the test set as an npz file."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from synthetic_attacks import stored_inputs, stored_labels
from synthetic_run import forge_run, write_run
from twinproof_verify import Verification, cli

KEYS = {"ok", "run", "problems", "checks", "epsilon", "epsilon_rdp", "delta", "steps", "certificates", "not_checked"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def made(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["twinproof-verify", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.run()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return made


Call = Callable[..., tuple[int, str, str]]


def test_a_good_run_and_a_bad_one(root: Path, call: Call) -> None:
    code, out, _ = call(root)
    assert code == 0
    assert out.splitlines()[-1] == "everything that was checked is right"
    code, out, _ = call(root, "--json")
    assert (code, set(json.loads(out)), json.loads(out)["ok"]) == (0, KEYS, True)
    forge_run(lambda run: run["accuracy"].update(value=0.9))(root)
    code, out, _ = call(root, "--json")
    assert code == 1
    assert set(json.loads(out)["problems"][0]) == {"file", "what", "got", "wanted"}


def test_a_mistake_in_the_call(root: Path, call: Call, tmp_path: Path) -> None:
    code, out, _ = call(tmp_path / "nothing", "--json")
    assert (code, set(json.loads(out)["error"])) == (2, {"what", "where", "got", "wanted", "fix"})
    forge_run(lambda run: run.update(state="training"))(root)
    code, _, err = call(root)
    assert code == 2
    assert "not finished" in err
    assert call(root, "--nonsense")[0] == 2
    assert call("--version")[:2] == (0, "twinproof-verify 0.1.0\n")


def test_the_system_fails(root: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Verification:
        raise MemoryError("no more")

    monkeypatch.setattr(cli, "verify", full)
    code, out, _ = call(root, "--json")
    assert (code, json.loads(out)["error"]["got"]) == (3, "no more")


def archive(**arrays: object) -> bytes:
    made = io.BytesIO()
    np.savez(made, **arrays)  # type: ignore[arg-type]
    return made.getvalue()


def test_labels_are_compared_with_the_test_set(root: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "test.npz").write_bytes(archive(x=stored_inputs(), y=stored_labels()))
    code, out, _ = call(root, "--inputs", tmp_path / "test.npz")
    assert code == 0
    assert "labels" in out
    (tmp_path / "test.npz").write_bytes(archive(x=stored_inputs(), y=(stored_labels() + 1) % 3))
    code, out, _ = call(root, "--inputs", tmp_path / "test.npz")
    assert code == 1
    assert "label is not that of the test record" in out


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 nonsense",
        archive(x=stored_inputs()),
        archive(x=stored_inputs(), y=np.array(["a"])),
        archive(x=np.array([{"a": 1}], dtype=object), y=stored_labels()),
        archive(x=stored_inputs() / 255, y=stored_labels()),
    ],
    ids=["empty", "broken", "no-labels", "text", "pickled", "floats"],
)
def test_what_is_no_test_set_is_refused(root: Path, call: Call, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "test.npz").write_bytes(content)
    code, _, err = call(root, "--inputs", tmp_path / "test.npz")
    assert code == 2
    assert "test set" in err


def test_a_test_set_beyond_all_bounds_is_not_read(
    root: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "MOST_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "test.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", b"0" * 10**6)
    code, _, err = call(root, "--inputs", tmp_path / "test.npz")
    assert code == 2
    assert "too large" in err
