"""audit.json: read back as it was written, beside other sections, and bound only when it is to be."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from twinproof.errors import RunError
from twinproof.runs.audits import (
    FLIPPED,
    HELD,
    AttackedCertificate,
    AuditSettings,
    CertificateAudit,
    Flip,
    Verdict,
    read_audit,
    unbind_audit,
    write_audit,
)
from twinproof.runs.layout import read_run_json, update_run_json

VALUES: dict[str, Any] = {
    "str": "x",
    "Digest": "a" * 64,
    "Key": "b" * 64,
    "Count": 3,
    "Length": 0.5,
    "Share": 0.5,
    "dict[str, str]": {"torch": "2"},
}
SETTINGS = AuditSettings(**{field.name: VALUES.get(str(field.type), 0.5) for field in fields(AuditSettings)})
VERDICT = Verdict(12, 2, 1, 0, 0.001, 0.012, "binomial", 0.01, False, 0.8, 0.8, 1)
ATTACKED = (
    AttackedCertificate(0, 1, 0.5, FLIPPED, Flip(0.4, 0.8, 2, 90, 100, "ascent", (1, 2, 3))),
    AttackedCertificate(4, 1, 0.25, HELD),
)


@pytest.mark.parametrize("verdict", [None, VERDICT])
def test_it_is_read_back_as_it_was_written(tmp_path: Path, verdict: Verdict | None) -> None:
    audit = CertificateAudit(SETTINGS, ATTACKED, verdict)
    write_audit(tmp_path, audit)
    assert read_audit(tmp_path) == audit
    assert read_audit(tmp_path / "nowhere") is None


def test_other_sections_stay(tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text('{"format": 1, "privacy": {"lower_bound": 0.25}}')
    assert read_audit(tmp_path) is None
    write_audit(tmp_path, CertificateAudit(SETTINGS, ()))
    record = json.loads((tmp_path / "audit.json").read_text())
    assert record["privacy"] == {"lower_bound": 0.25}
    assert set(record) == {"format", "privacy", "certificates"}


def test_a_new_audit_is_unbound(trained: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    before = read_run_json(root)
    write_audit(root, CertificateAudit(SETTINGS, ()))
    update_run_json(root, files=("audit.json",))
    assert "audit.json" in read_run_json(root)["files"]
    unbind_audit(root)
    assert read_run_json(root) == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nonsense",
        '{"format": 1, "certificates": []}',
        '{"format": 1, "certificates": {"norm": "l2"}}',
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(RunError, match=r"audit\.json is broken"):
        read_audit(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"), [('{"format": 3}', "newer version"), ('{"format": "2"}', "unknown format"), ("{}", "unknown")]
)
def test_another_format_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(RunError, match=said):
        read_audit(tmp_path)


@pytest.mark.parametrize(
    ("attacked", "refuted", "words"), [(0, False, "nothing to attack"), (2, False, "not refuted"), (2, True, "refuted")]
)
def test_words(attacked: int, refuted: bool, words: str) -> None:
    verdict = Verdict(12, attacked, 1, 0, 0.001, 0.012, "binomial", 0.01, refuted, None, None, 0)
    assert verdict.words == words
    assert CertificateAudit(SETTINGS, (), verdict).as_dict()["verdict"]["verdict"] == words
