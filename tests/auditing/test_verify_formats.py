"""Runs of format 1 still verify, open and report; a newer format is named as such, and never called false."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import twinproof as tp
from synthetic_run import CORE_FILES, write_run
from twinproof.auditing.verify import verify_run
from twinproof.cli.main import run
from twinproof.errors import RunError
from twinproof.privacy import ledger
from twinproof.runs import layout
from twinproof.runs.layout import update_run_json
from twinproof.runs.run import Run
from twinproof_verify.ledger import NEIGHBOURS
from twinproof_verify.models import FORMATS

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format-1"
OLD_RUNS = ("demo", "hgm-pixeldp", "stobatch")


def test_writers_and_verifier_know_the_same_formats() -> None:
    assert layout.FORMATS == FORMATS
    assert layout.FORMAT == FORMATS[-1] == 3
    assert ledger.FORMAT == 2
    assert NEIGHBOURS[ledger.FORMAT] == ledger.NEIGHBOURS


@pytest.mark.parametrize("name", OLD_RUNS)
def test_a_run_of_format_1_verifies_opens_and_reports(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    shutil.copytree(FIXTURES / name, root)
    assert verify_run(root).problems == ()
    assert Run.open(root).model() is not None
    tp.report_run(root)
    assert "training records" in (root / "report.html").read_text()
    assert verify_run(root).problems == ()


def test_what_is_added_to_an_old_run_leaves_its_number(tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(FIXTURES / "demo", root)
    update_run_json(root, files=("certificates.json",))
    assert json.loads((root / "run.json").read_text())["format"] == 1
    assert verify_run(root).problems == ()


@pytest.mark.parametrize("verb", ["certify", "attack", "audit"])
def test_nothing_can_be_added_to_a_run_of_format_1(tmp_path: Path, verb: str) -> None:
    root = tmp_path / "run"
    shutil.copytree(FIXTURES / "demo", root)
    with pytest.raises(RunError, match="nothing can be added to this run of an earlier format") as refused:
        getattr(tp, verb)(Run.open(root), tp.data.load("digits"), limit=3, device="cpu", overwrite=True)
    assert refused.value.fix == "train again"
    assert verify_run(root).problems == ()


def test_the_number_is_that_of_the_ledger(tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(FIXTURES / "demo", root)
    record = json.loads((root / "run.json").read_text())
    (root / "run.json").write_text(json.dumps({**record, "format": 2}))
    assert "format is not the one of the ledger" in {problem.what for problem in verify_run(root).problems}


@pytest.mark.parametrize("name", [name for name in CORE_FILES if name.endswith(".json")])
def test_a_newer_format_is_called_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    root = tmp_path / "run"
    write_run(root)
    record = json.loads((root / name).read_text())
    (root / name).write_text(json.dumps({**record, "format": 4}))
    with pytest.raises(RunError, match="made by a newer version") as refused:
        verify_run(root)
    assert refused.value.fix == "upgrade twinproof"
    with pytest.raises(SystemExit) as ended:
        run(["verify", str(root)])
    assert ended.value.code == 2
    assert "newer version" in capsys.readouterr().err
