"""run.json: replaced in one step, extended without losing what others wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twinproof.errors import RunError
from twinproof.files import sha256_file
from twinproof.runs.layout import (
    config_digest,
    file_digests,
    read_run_json,
    software_versions,
    update_run_json,
    utc_now,
    write_run_json,
)

ACCURACY = {"value": 0.5, "low": 0.25, "high": 0.75, "confidence": 0.95}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ledger.jsonl").write_text("1\n")
    (tmp_path / "metrics.jsonl").write_text("2\n")
    write_run_json(tmp_path, {"state": "training", "config": {"a": 1}, "files": file_digests(tmp_path, ["ledger.jsonl"])})
    return tmp_path


def test_update_keeps_other_entries(root: Path) -> None:
    before = read_run_json(root)
    assert before["format"] == 3
    assert not (root / "run.json.part").exists()
    after = update_run_json(root, files=["metrics.jsonl"], state="complete", accuracy=ACCURACY)
    assert after == read_run_json(root)
    assert (after["config"], after["state"], after["accuracy"]) == (before["config"], "complete", ACCURACY)
    assert after["files"]["ledger.jsonl"] == before["files"]["ledger.jsonl"]
    assert after["files"]["metrics.jsonl"] == {"sha256": sha256_file(root / "metrics.jsonl")}


def test_update_renews_only_the_digests_it_is_told_to(root: Path) -> None:
    (root / "ledger.jsonl").write_text("changed\n")
    kept = update_run_json(root)["files"]["ledger.jsonl"]["sha256"]
    assert kept != sha256_file(root / "ledger.jsonl"), "a change must not be covered up"
    renewed = update_run_json(root, files=["ledger.jsonl"])["files"]["ledger.jsonl"]["sha256"]
    assert renewed == sha256_file(root / "ledger.jsonl")


def test_a_file_that_is_gone_loses_its_digest(root: Path) -> None:
    (root / "ledger.jsonl").unlink()
    assert "ledger.jsonl" in update_run_json(root)["files"]
    assert "ledger.jsonl" not in update_run_json(root, files=["ledger.jsonl"])["files"]


def test_values_that_json_cannot_hold_leave_the_old_file(root: Path) -> None:
    before = (root / "run.json").read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        update_run_json(root, accuracy=float("nan"))
    assert (root / "run.json").read_bytes() == before


def test_update_of_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        update_run_json(tmp_path, state="complete")
    assert list(tmp_path.iterdir()) == []


def test_the_digest_of_settings_does_not_depend_on_their_order() -> None:
    assert config_digest({"a": 1, "b": [1.5, None]}) == config_digest({"b": [1.5, None], "a": 1})
    assert config_digest({"a": 1}) != config_digest({"a": 2})
    assert config_digest({"a": 1}) != config_digest({"a": "1"})


def test_environment() -> None:
    versions = software_versions()
    assert {"twinproof", "python", "torch", "numpy", "scipy", "dp-accounting", "safetensors"} <= set(versions)
    assert "unknown" not in versions.values()
    assert json.dumps(versions)
    assert len(utc_now()) == len("2026-01-01T00:00:00Z")
    assert utc_now().endswith("Z")
