"""Table 2 from nothing with every recipe of it on embedded data, and the figures that follow from its models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinproof_papers import making as measuring
from twinproof_papers.options import Options
from twinproof_papers.reproduce import PAGE, PICTURE, reproduce
from twinproof_papers.results_file import FILE as RESULTS

EFFORT = Options(seeds=1, limit=6, epochs=1, quick=True, device="cpu")


def _refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing was to be trained")


@pytest.mark.slow
def test_table_2_and_the_figures_of_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reproduce("dpcert-table2", tmp_path, EFFORT)
    record = json.loads((tmp_path / "dpcert-table2" / RESULTS).read_text())
    assert len(record["cells"]) == 3 + 3 * 6
    for cell in record["cells"]:
        private = cell["method"] not in ("regular", "gaussian")
        assert cell["numbers"]["privacy_status"] == ("proven" if private else "none")
        assert not private or 0 < cell["numbers"]["epsilon"] <= 3
        assert all(0 <= sigma["acr"] <= sigma["largest_radius"] for sigma in cell["numbers"]["smoothed"].values())
    assert [table["title"] for table in record["tables"]] == [table.title for table in made.findings.tables]
    monkeypatch.setattr(measuring, "measure", _refuse)
    for name in ("dpcert-table2", "dpcert-fig7", "dpcert-fig15", "dpcert-fig16"):
        again = reproduce(name, tmp_path, EFFORT)
        assert (again.folder / PICTURE).is_file()
        assert (again.folder / PAGE).is_file()


@pytest.mark.slow
def test_the_figures_of_single_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = reproduce("dpcert-fig5", tmp_path, EFFORT)
    assert len(first.findings.panels) == 6
    monkeypatch.setattr(measuring, "measure", _refuse)
    for number in (6, 17, 18, 19):
        assert reproduce(f"dpcert-fig{number}", tmp_path, EFFORT).findings.panels
